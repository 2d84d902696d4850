"""The same fixed block of every tensor's elements, where the tensors lie in parts over several processes.

Each process takes those elements of the block that lie with it; an exchange puts the blocks together again before anything is
counted. So every process counts the very numbers that one process alone would count, and comes to the same verdicts: a part
that is empty, or zero, or still, says nothing of its parameter.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from statewise.health.steps.fingerprint import BLOCK, Fingerprint
from statewise.parallel import ranks
from statewise.parallel.shards import elements, here, sharded, vectors


def fingerprint(parameters: Sequence[nn.Parameter], block: int = BLOCK) -> Fingerprint:
    """Of whole parameters, or of those that are sharded."""
    return (ShardedFingerprint if any(map(sharded, parameters)) else Fingerprint)(parameters, block)


class ShardedFingerprint(Fingerprint):
    """Its `values` and `gradients` are of this process; `collect` makes whole blocks of them, to be used with the sums.

    All processes must collect at the same moment.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], block: int = BLOCK) -> None:
        super().__init__(parameters, block)
        spans = [elements(parameter) for parameter in parameters]
        self._places: list[np.ndarray] = []
        for process in range(max(map(len, spans), default=1)):
            pieces = [self._piece(index, span[process]) for index, span in enumerate(spans)]
            inside = zip(self._starts, self._inside, pieces, strict=True)
            places = [np.arange(start + first - skipped, start + last - skipped) for start, skipped, (first, last) in inside]
            self._places.append(np.concatenate([*places, np.zeros(0)]).astype(np.int64))
            if process == ranks.rank():
                own = [(first - span[process][0], last - first) for span, (first, last) in zip(spans, pieces, strict=True)]
        self._own: list[tuple[int, int]] = own

    def _piece(self, index: int, span: tuple[int, int]) -> tuple[int, int]:
        """From where to where in the flattened whole a process holds elements of the block; equal where it has none."""
        start, end = self._inside[index], self._inside[index] + int(self.lengths[index])
        first = min(max(span[0], start), end)
        return first, max(first, min(span[1], end))

    def values(self) -> Tensor:
        """The values now, of the elements that lie here."""
        return self._joined([self._own_block(index, p.detach()) for index, p in enumerate(self._parameters)])

    def gradients(self) -> Tensor:
        """The gradients now; NaN where there is none."""
        gradients = [parameter.grad for parameter in self._parameters]
        return self._joined([self._nothing(i) if g is None else self._own_block(i, g) for i, g in enumerate(gradients)])

    def collect(
        self, blocks: Mapping[str, np.ndarray], largest: Mapping[int, float]
    ) -> tuple[dict[str, np.ndarray], dict[int, float]]:
        """Whole blocks of those of this process, and the largest over all processes of some numbers, by one exchange."""
        mine = np.concatenate([*blocks.values(), np.array(list(largest.values()), dtype=np.float64)])
        lengths = [len(blocks) * len(places) + len(largest) for places in self._places]
        everyone = [part.numpy() for part in vectors(torch.from_numpy(mine), lengths)]
        found = {name: np.empty(self.size) for name in blocks}
        for places, part in zip(self._places, everyone, strict=True):
            for number, name in enumerate(blocks):
                found[name][places] = part[number * len(places) : (number + 1) * len(places)]
        tops = np.max([part[len(part) - len(largest) :] for part in everyone], axis=0)
        return found, dict(zip(largest, tops.tolist(), strict=True))

    def _own_block(self, index: int, tensor: Tensor) -> Tensor:
        start, length = self._own[index]
        return here(tensor).reshape(-1)[start : start + length]

    def _nothing(self, index: int) -> Tensor:
        parameter = here(self._parameters[index])
        return torch.full((self._own[index][1],), float("nan"), dtype=parameter.dtype, device=parameter.device)
