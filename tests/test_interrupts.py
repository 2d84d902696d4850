"""The first signal asks, the second one insists, and afterwards everything is as it was."""

import os
import signal
import threading

import pytest

from statewise.interrupts import Interrupted, ask_before_stopping, finish_first


def test_the_first_signal_asks_and_the_second_ends_at_once():
    asked = []
    with ask_before_stopping(lambda name: asked.append(name) is None):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        with pytest.raises(Interrupted) as end:
            os.kill(os.getpid(), signal.SIGINT)
    assert end.value.exit_code == 130
    assert asked == [signal.SIGTERM]


def test_a_run_that_cannot_stop_by_itself_ends_at_the_first_signal():
    with pytest.raises(Interrupted, match="interrupted by SIGTERM") as end, ask_before_stopping(lambda name: False):
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.exit_code == 143


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ask_before_stopping(lambda name: True):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_signals_keep_their_meaning():
    before = signal.getsignal(signal.SIGINT)
    inside = []

    def work():
        with ask_before_stopping(lambda name: True):
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


def test_nested_contexts_ask_the_inner_one_and_then_the_outer_one_again():
    asked = []
    with ask_before_stopping(lambda name: asked.append("outer") is None):
        with ask_before_stopping(lambda name: asked.append("inner") is None):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked == ["inner", "outer"]


def test_a_signal_waits_until_what_must_be_finished_is():
    done = []

    @finish_first()
    def finish():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("all of it")

    with pytest.raises(Interrupted, match="interrupted by SIGINT after the run had ended") as end:
        finish()
    assert done == ["all of it"]
    assert end.value.exit_code == 130


@pytest.mark.parametrize(("environment", "ours"), [({}, False), ({"SLURM_JOB_ID": "7"}, True)])
def test_the_warning_of_slurm_is_taken_only_where_slurm_is(environment, ours, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    before = signal.getsignal(signal.SIGUSR1)
    with ask_before_stopping(lambda name: True):
        assert (signal.getsignal(signal.SIGUSR1) is not before) is ours
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    with ask_before_stopping(lambda name: True):
        assert signal.getsignal(signal.SIGUSR1) is before
