"""Jobs are run so many at once, each is seen to its end, and nobody waits for ever."""

import os
import signal
import threading
import time

import pytest

from statewise.interrupts import Interrupted
from statewise.sweeps import watch as watching
from statewise.sweeps.watch import watch


class Fake:
    """A job that runs for some looks and then ends with a code."""

    def __init__(self, looks=2, code=0):
        self.looks = looks
        self.wanted = code
        self.code = None
        self.asked = []

    def has_ended(self):
        self.looks -= 1
        if self.looks <= 0 and self.code is None:
            self.code = self.wanted
        return self.code is not None

    def ask_to_end(self, number, *, patience=None):
        self.asked.append((number, patience))
        self.looks, self.wanted = 1, -number

    def kill(self):
        self.code = -9


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watching, "POLL", 0.005)


def run(jobs, at_once=2, timeout=None):
    """Watch over fake jobs and return (how many ran at once at most, the slots, what ended how)."""
    running, most, slots, ends = set(), [0], [], []

    def start(index, slot):
        running.add(index)
        most[0] = max(most[0], len(running))
        slots.append(slot)
        return jobs[index]

    def ended(index, process, seconds, reason):
        running.discard(index)
        ends.append((index, process.code, reason))

    watch(len(jobs), at_once=at_once, start=start, ended=ended, timeout=timeout)
    return most[0], slots, ends


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_no_more_jobs_run_at_once_than_asked_for_and_all_are_run(at_once):
    most, slots, ends = run([Fake(looks=count % 3 + 2) for count in range(7)], at_once=at_once)
    assert most == min(at_once, 7)
    assert sorted(index for index, _, _ in ends) == list(range(7))
    assert set(slots) <= set(range(at_once))


def test_two_jobs_that_run_at_once_never_have_the_same_place():
    _, slots, _ = run([Fake(looks=40), Fake(looks=2), Fake(looks=2), Fake(looks=2)])
    assert slots == [0, 1, 1, 1]


def test_a_job_that_fails_lets_the_others_run():
    _, _, ends = run([Fake(code=1), Fake(code=-9), Fake()], at_once=1)
    assert ends == [(0, 1, None), (1, -9, None), (2, 0, None)]


def test_a_job_over_its_time_is_asked_to_end_once_and_with_a_limit_to_patience():
    slow = Fake(looks=10_000)
    _, _, ends = run([slow, Fake()], timeout=0.02)
    assert slow.asked == [(signal.SIGTERM, watching.GRACE)]
    assert (0, -15, "stopped after launcher.timeout=0.02 seconds") in ends
    assert (1, 0, None) in ends


def test_without_jobs_there_is_nothing_to_wait_for():
    assert run([]) == (0, [], [])


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_to_the_running_jobs_and_no_other_is_started(name):
    jobs = [Fake(looks=10_000), Fake(looks=10_000), Fake()]
    threading.Timer(0.05, os.kill, (os.getpid(), name)).start()
    with pytest.raises(Interrupted) as interrupted:
        run(jobs)
    assert interrupted.value.exit_code == 128 + name
    assert [job.code for job in jobs] == [-name, -name, None]
    assert [job.asked[0][0] for job in jobs[:2]] == [name, name]


def test_a_second_signal_ends_the_jobs_by_force():
    class Deaf(Fake):
        def ask_to_end(self, number, *, patience=None):
            self.asked.append(number)

    deaf = Deaf(looks=10_000)
    for seconds in (0.05, 0.15):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(Interrupted):
        run([deaf])
    assert deaf.code == -9
    assert time.monotonic() - start < 5
