"""A record of a run of unknown length that stays short and evenly spread."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Keeps every item at first; when it is full it drops every second one and from then on takes half as many.

    Args:
        limit: the most items that are ever kept, at least 2.
    """

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"limit must be at least 2, got {limit}")
        self.limit = limit
        self._stride = 1
        self._offered = 0
        self._kept: list[T] = []
        self._last: T | None = None

    def wants_next(self) -> bool:
        """Whether the next item will be kept: lets the caller skip the work of making one that is not."""
        return self._offered % self._stride == 0

    def skip(self) -> None:
        """Count an item that was not made because it was not wanted."""
        self._offered += 1

    def append(self, item: T) -> None:
        """Offer an item; the latest one offered is always among `items`."""
        keep = self.wants_next()
        self._offered += 1
        self._last = None if keep else item
        if not keep:
            return
        self._kept.append(item)
        if len(self._kept) >= self.limit:
            self._last = None if len(self._kept) % 2 else item  # the newest falls out where their number is even
            self._kept = self._kept[::2]
            self._stride *= 2

    @property
    def items(self) -> list[T]:
        """What was kept, oldest first, and the latest item."""
        return [*self._kept, *([] if self._last is None else [self._last])]

    def state_dict(self, pack: Callable[[list[T]], Any] = list) -> dict[str, Any]:
        """The record and its pace. pack: makes what a checkpoint can hold of a list of items."""
        latest = [] if self._last is None else [self._last]
        return {"stride": self._stride, "offered": self._offered, "kept": pack(self._kept), "latest": pack(latest)}

    def load_state_dict(self, state: dict[str, Any], unpack: Callable[[Any], Sequence[T]] = list) -> None:
        """The inverse."""
        self._stride, self._offered = int(state["stride"]), int(state["offered"])
        self._kept = list(unpack(state["kept"]))
        self._last = next(iter(unpack(state["latest"])), None)
