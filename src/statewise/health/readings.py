"""Numbers that observers want from a device, collected so that one transfer brings them all."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from statewise.health.signals import Signal

Judge = Callable[[list[float]], Iterable[Signal]]
JudgeTogether = Callable[[list[np.ndarray]], Iterable[Signal]]


class Readings:
    """Ask for tensors now, get their numbers when the monitor reads: every step on a CPU, at logged steps elsewhere."""

    def __init__(self) -> None:
        self._ahead: list[tuple[list[Tensor], JudgeTogether]] = []
        self._asked: list[tuple[list[Tensor], JudgeTogether]] = []

    def ask(self, values: Tensor, judge: Judge) -> None:
        """`judge` is called with the elements of `values` as floats, in the order of asking, and returns signals."""
        self.ask_together([values], lambda columns: judge(columns[0].tolist()))

    def ask_together(self, values: Sequence[Tensor], judge: JudgeTogether, ahead: bool = False) -> None:
        """The same for several tensors at once, each of which comes back as a float64 array. ahead: judged before others."""
        (self._ahead if ahead else self._asked).append(([tensor.detach().reshape(-1) for tensor in values], judge))

    def read(self) -> list[Signal]:
        """Transfer all that was asked for in one piece, and judge it."""
        asked = [*self._ahead, *self._asked]
        self.clear()
        tensors = [tensor for group, _ in asked for tensor in group]
        numbers = _transfer(tensors) if tensors else np.zeros(0)
        signals: list[Signal] = []
        start = 0
        for group, judge in asked:
            columns = []
            for tensor in group:
                columns.append(numbers[start : start + tensor.numel()])
                start += tensor.numel()
            signals += judge(columns)
        return signals

    @property
    def waiting(self) -> bool:
        """Whether anything was asked for."""
        return bool(self._ahead or self._asked)

    def clear(self) -> None:
        """Forget what was asked for."""
        self._ahead.clear()
        self._asked.clear()


def _transfer(tensors: Sequence[Tensor]) -> np.ndarray:
    device = tensors[0].device
    wide = torch.float32 if device.type == "mps" else torch.float64
    joined = torch.cat([tensor.to(device=device, dtype=wide) for tensor in tensors])
    return np.asarray(joined.cpu().numpy(), dtype=np.float64)
