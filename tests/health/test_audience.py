"""Who hears of which event, and what observers carry over a restart."""

from collections.abc import Iterable
from typing import Any

from statewise.health.audience import Audience
from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal, Wiring


class Counter(Observer):
    always = frozenset({"end_batch"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def end_batch(self, run: Run) -> Iterable[Signal]:
        """One more."""
        self.count += 1
        return ()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count} if self.count else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Idle(Observer):
    def begin_batch(self, run: Run, batch: Any) -> Iterable[Signal]:
        """Sees that it cannot see."""
        self.unable[Wiring] = "it is dark"
        return ()


def test_only_those_who_listen_are_told_and_in_quiet_batches_only_those_who_always_do() -> None:
    counter, idle = Counter(), Idle()
    audience = Audience([counter, idle])
    assert audience.hearing["end_batch"] == [counter.end_batch] == audience.always["end_batch"]
    assert audience.hearing["begin_batch"] == [idle.begin_batch]
    assert audience.always["begin_batch"] == audience.hearing["backward"] == []


def test_what_an_observer_remembers_survives_and_what_it_cannot_see_is_known() -> None:
    counter, idle = Counter(), Idle()
    audience = Audience([counter, idle])
    assert audience.memories() == {}
    counter.count = 3
    assert audience.memories() == {"Counter": {"count": 3}}
    again = Audience([Counter(), Idle()])
    again.remember(audience.memories())
    assert again.memories() == {"Counter": {"count": 3}}
    idle.begin_batch(None, None)
    assert audience.unable == {Wiring: "it is dark"}
