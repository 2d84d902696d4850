"""Parameters whose block of elements looks wrong, compared element by element for a few steps: only that is proof.

Sharded ones are gathered for it, by all processes at once: they come to the same suspects.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from statewise.health.steps.runs import MANY, Closer
from statewise.parallel.shards import whole

# How long a suspect is compared: a verdict needs three steps running.
KEPT = 5
# Largest number of elements copied at once.
_ELEMENTS = 50_000_000


class Suspects:
    """`before` copies their values, `compare` looks at what the update made of them, `end` keeps that for the next step."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._until: dict[int, int] = {}
        # Values before this update; of those that were compared in the step before as well, what came back since.
        self._copied: dict[int, Tensor] = {}
        self._back: dict[int, Tensor] = {}
        # Values before the last update, and what it added to them.
        self._last: dict[int, tuple[Tensor, Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def name(self, indices: Iterable[int], steps: int) -> None:
        """Those that are suspect after so many steps; others are dropped when their time is over."""
        self._until = {index: until for index, until in self._until.items() if until > steps}
        for index in indices:
            self._until[index] = steps + KEPT

    def before(self) -> None:
        """An update begins."""
        self._copied = {index: whole(self._parameters[index].detach()).clone() for index in self._chosen()}
        self._back = {i: _came_back(v, *self._last[i]) for i, v in self._copied.items() if i in self._last}

    def compare(self, absent: np.ndarray) -> tuple[dict[int, Tensor], frozenset[int]]:
        """The update is made: the numbers of a `Closer` for each, and for which of them it is known what came back."""
        watched = [i for i in self._copied if not absent[i] and not gradient(self._parameters[i]).is_sparse]
        closer = {index: self._compare(index) for index in watched}
        return closer, frozenset(index for index in watched if index in self._back)

    def end(self) -> None:
        """Remember what the update added."""
        self._last = {i: (copied, whole(self._parameters[i].detach()) - copied) for i, copied in self._copied.items()}

    def forget(self) -> None:
        """The step is over."""
        self._copied, self._back = {}, {}

    def lose_track(self) -> None:
        """The next step does not follow one that was compared."""
        self._last = {}

    def _chosen(self) -> list[int]:
        kept: list[int] = []
        elements = 0
        for index in sorted(self._until):
            elements += self._parameters[index].numel()
            if elements <= _ELEMENTS:
                kept.append(index)
        return kept

    def _compare(self, index: int) -> Tensor:
        """Elements with a gradient, those that changed, all that changed; the gradient's size; what came back."""
        parameter, before = whole(self._parameters[index].detach()), self._copied[index]
        used = whole(gradient(self._parameters[index]))
        asked = used != 0
        changed = parameter != before
        size = torch.linalg.vector_norm(used.abs().float()) / used.numel() ** 0.5
        nothing = torch.zeros(3, device=before.device)
        numbers = torch.stack([n.float() for n in (asked.sum(), (changed & asked).sum(), changed.sum(), size)])
        return torch.cat([numbers, self._back.get(index, nothing).to(numbers)])


def read_closer(numbers: np.ndarray, back_is_known: bool) -> Closer:
    """The numbers of `compare`, transferred."""
    asked, followed, changed, size, back, outward, ends = numbers.tolist()
    return Closer(asked, followed, changed, size, back if back_is_known else None, outward, ends)


def gradient(parameter: nn.Parameter) -> Tensor:
    """Of a parameter that has one."""
    if parameter.grad is None:
        raise RuntimeError("asked for a gradient that is not there")
    return parameter.grad


def _came_back(pre: Tensor, last: Tensor, push: Tensor) -> Tensor:
    """Of the elements that were pushed, the share that is where it began, and that lies at an end and was pushed out; of
    all, the share at an end."""
    moved = (push != 0).sum().clamp_min(1)
    same = (pre == last) & (push != 0)
    if pre.is_complex():
        nothing = torch.zeros_like(moved, dtype=torch.float32)
        return torch.stack([same.sum() / moved, nothing, nothing])
    top, bottom = pre.max(), pre.min()
    above, below = (same & (pre == top) & (push > 0)).sum(), (same & (pre == bottom) & (push < 0)).sum()
    outward = torch.where(top == bottom, torch.maximum(above, below), above + below)
    at_ends = ((pre == top) | (pre == bottom)) & (top != bottom)
    ends = at_ends.sum() / pre.numel() if pre.numel() >= MANY else torch.zeros_like(moved)
    return torch.stack([same.sum() / moved, outward / moved, ends.to(torch.float32)])
