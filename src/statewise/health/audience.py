"""The observers of one run, and which of them hears of which event."""

from collections.abc import Iterable, Mapping
from typing import Any

from statewise.health.observer import Observer
from statewise.health.signals import Signal

_EVENTS = (
    "start",
    "begin_batch",
    "backward",
    "after_backward",
    "before_update",
    "after_update",
    "end_batch",
    "end_epoch",
)


class Audience:
    """Of a dozen observers two or three hear of any one event of a step.

    Attributes:
        hearing: of each event, what is to be called.
        always: the same in a quiet batch.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = list(observers)
        self.hearing = {
            event: [getattr(o, event) for o in self.observers if getattr(type(o), event) is not getattr(Observer, event)]
            for event in _EVENTS
        }
        self.always = {event: [getattr(o, event) for o in self.observers if event in o.always] for event in _EVENTS}

    @property
    def unable(self) -> dict[type[Signal], str]:
        """What they cannot see, and why."""
        return {kind: why for observer in self.observers for kind, why in observer.unable.items()}

    def memories(self) -> dict[str, dict[str, Any]]:
        """What must survive a restart, of those that have any of it."""
        states = {type(observer).__name__: observer.state_dict() for observer in self.observers}
        return {name: state for name, state in states.items() if state}

    def remember(self, memories: Mapping[str, dict[str, Any]]) -> None:
        """The inverse."""
        for observer in self.observers:
            if memory := memories.get(type(observer).__name__):
                observer.load_state_dict(memory)

    def close(self) -> None:
        """Let go of hooks, graphs and copies."""
        for observer in self.observers:
            observer.close()
