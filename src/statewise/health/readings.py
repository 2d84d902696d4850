"""Numbers that observers want from a device, collected so that one transfer brings them all."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from statewise.health.signals import Signal

Judge = Callable[[list[float]], Iterable[Signal]]


class Readings:
    """Ask for tensors now, get their numbers when the monitor reads: every step on a CPU, at logged steps elsewhere."""

    def __init__(self) -> None:
        self._asked: list[tuple[Tensor, Judge]] = []

    def ask(self, values: Tensor, judge: Judge) -> None:
        """`judge` is called with the elements of `values` as floats, in the order of asking, and returns signals."""
        self._asked.append((values.detach().reshape(-1), judge))

    def read(self) -> list[Signal]:
        """Transfer all that was asked for in one piece, and judge it."""
        asked, self._asked = self._asked, []
        if not asked:
            return []
        device = asked[0][0].device
        wide = torch.float32 if device.type == "mps" else torch.float64
        numbers = torch.cat([values.to(device=device, dtype=wide) for values, _ in asked]).tolist()
        signals: list[Signal] = []
        start = 0
        for values, judge in asked:
            signals += judge(numbers[start : start + values.numel()])
            start += values.numel()
        return signals

    def clear(self) -> None:
        """Forget what was asked for."""
        self._asked.clear()
