"""Which steps are watched, with times that are given: no clock runs here."""

import pytest

from statewise.health.steps.duty import BURST, FULL_STEPS, FULL_UNPLANNED, LONGEST_PAUSE, Duty, allowance


class Watch:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(step: float, watched: float, idle: float, count: int, *, planned: int | None = 100_000, alarm: int = -1) -> list[bool]:
    """Which of `count` steps were watched, where a step takes so long and watching it costs so much."""
    clock = Watch()
    duty = Duty(clock)
    duty.planned = planned
    seen = []
    for number in range(count):
        seen.append(duty.watching)
        clock.now += step
        duty.enter()
        clock.now += watched if duty.watching else idle
        duty.leave()
        duty.next(suspicion=number == alarm)
    return seen


@pytest.mark.parametrize(("milliseconds", "allowed"), [(1, 0.05), (5, 0.25), (20, 0.25), (50, 0.5), (500, 5.0)])
def test_watching_may_take_one_per_cent_and_five_of_short_steps(milliseconds: float, allowed: float) -> None:
    assert 1000 * allowance(milliseconds / 1000) == pytest.approx(allowed)


def test_a_step_that_pays_for_itself_is_always_watched() -> None:
    assert all(run(0.05, watched=3e-4, idle=3e-5, count=500))


def test_a_short_run_is_watched_throughout_whatever_it_costs() -> None:
    assert all(run(0.001, watched=0.01, idle=1e-5, count=300, planned=300))
    assert not all(run(0.001, watched=0.01, idle=1e-5, count=300, planned=301))


def test_a_run_of_unknown_length_is_watched_longer_before_it_counts_as_a_long_one() -> None:
    seen = run(0.001, watched=0.01, idle=1e-5, count=300, planned=None)
    assert all(seen[:FULL_UNPLANNED])
    assert not all(seen)


def test_steps_that_were_slept_through_add_what_they_allow() -> None:
    single, slept = Duty(Watch()), Duty(Watch())
    for duty, steps in ((single, 1), (slept, 4)):
        duty.planned = 100_000
        clock = duty._clock
        pause = 0
        for _ in range(100):
            clock.now += 0.005
            duty.enter()
            clock.now += 0.01
            duty.leave()
            duty.next(suspicion=False)
        while not duty.watching:
            clock.now += 0.005 * steps
            duty.next(False, steps)
            pause += 1
        duty.pause = pause
    assert slept.pause * 4 == pytest.approx(single.pause, abs=4)


@pytest.mark.parametrize("step", [0.005, 0.05])
def test_over_a_long_run_the_share_stays_within_the_allowance(step: float) -> None:
    seen = run(step, watched=2e-3, idle=3e-5, count=5000)[FULL_STEPS:]
    spent = sum(2e-3 if watched else 3e-5 for watched in seen) / len(seen)
    assert spent <= allowance(step)
    assert sum(seen) > 0


def test_watched_steps_come_in_bursts_that_are_long_enough_for_a_verdict() -> None:
    seen = run(0.005, watched=2e-3, idle=3e-5, count=3000)[FULL_STEPS:]
    text = "".join("x" if watched else "." for watched in seen)
    bursts = [len(burst) for burst in text.strip("x").strip(".").split(".") if burst]
    assert bursts
    assert min(bursts) >= BURST


def test_a_suspicion_is_followed_up_at_once() -> None:
    seen = run(0.005, watched=2e-3, idle=3e-5, count=200, alarm=70)
    assert not seen[70]
    assert all(seen[71 : 71 + BURST])


def test_however_dear_it_is_a_burst_comes_again() -> None:
    seen = run(0.0001, watched=0.01, idle=1e-3, count=3 * LONGEST_PAUSE)[FULL_STEPS:]
    assert any(seen[: LONGEST_PAUSE + BURST])
    assert any(seen[LONGEST_PAUSE + BURST :])
