"""How closely batches are followed, decided without any run: updates and questions are told."""

from itertools import pairwise

import pytest

from statewise.health.steps.attention import Attention, timed
from statewise.health.steps.duty import BURST, FULL_STEPS


def unwatched(monkeypatch: pytest.MonkeyPatch) -> Attention:
    """At the end of the beginning of a long run that can pay for nothing."""
    monkeypatch.setattr("statewise.health.steps.duty.allowance", lambda step: 0.0)
    attention = Attention(planned=100_000)
    for _ in range(FULL_STEPS + 2 * BURST):
        attention.duty.enter()
        attention.duty.leave()
        attention.updated(False, 1)
    assert not attention.duty.watching
    return attention


def test_at_the_beginning_every_batch_is_watched_and_nobody_sleeps() -> None:
    attention = Attention(planned=100_000)
    assert not attention.stays_quiet(question=False)
    attention.rest(1)
    assert not attention.asleep
    assert not attention.sleeps_on()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_quiet_update_is_followed_by_a_nap_of_four_updates(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = unwatched(monkeypatch)
    assert attention.stays_quiet(question=False)
    attention.rest(accumulate)
    assert attention.asleep
    slept = [attention.sleeps_on() for _ in range(4 * accumulate + 1)]
    assert slept == [True] * 4 * accumulate + [False]
    assert not attention.asleep


def test_a_question_keeps_a_batch_from_being_quiet_and_from_the_nap_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = unwatched(monkeypatch)
    assert not attention.stays_quiet(question=True)
    attention.rest(1)
    assert not attention.asleep


def test_steps_that_were_slept_through_count_as_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = unwatched(monkeypatch)
    told: list[int] = []
    monkeypatch.setattr(attention.duty, "next", lambda suspicion, steps: told.append(steps) or False)
    attention.stays_quiet(question=False)
    attention.rest(2)
    while attention.sleeps_on():
        pass
    attention.updated(False, 2)
    attention.updated(False, 2)
    # Eight batches of an accumulation over two were four steps; and the one that ended now.
    assert told == [5, 1]


def test_the_graph_is_looked_at_early_and_then_at_a_growing_distance() -> None:
    attention = Attention()
    seen = [batch for batch in range(1, 10_001) if attention.looks(batch)]
    assert seen[:10] == [1, 2, 4, 8, 12, 16, 20, 24, 28, 32]
    distances = [later - earlier for earlier, later in pairwise(seen[10:])]
    assert distances == sorted(distances)
    assert (distances[0], distances[-1]) == (50, 1000)


def test_replaced_objects_are_looked_for_seldom_where_they_are_replaced_all_the_time() -> None:
    attention = Attention(planned=100)
    assert [attention.compares(batch, recreated=0) for batch in range(3)] == [True] * 3
    assert sum(attention.compares(batch, recreated=5) for batch in range(3, 103)) == 2


def test_replaced_objects_are_looked_for_now_and_then_in_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = unwatched(monkeypatch)
    assert [batch for batch in range(20) if attention.compares(batch, recreated=0)] == [0, 8, 16]


def test_what_an_event_costs_is_put_on_the_account_even_where_it_fails() -> None:
    class Watcher:
        attention = Attention()

        @timed
        def event(self, number: int) -> float:
            """Says what it says."""
            return 1 / number

    entered: list[str] = []
    Watcher.attention.duty.enter = lambda: entered.append("in")
    Watcher.attention.duty.leave = lambda: entered.append("out")
    watcher = Watcher()
    assert watcher.event(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        watcher.event(0)
    assert entered == ["in", "out"] * 2
