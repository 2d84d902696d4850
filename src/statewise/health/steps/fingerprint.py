"""A small fixed block of every tensor's elements: enough to see that something moved, at a hundredth of the cost of all."""

from collections.abc import Sequence
from operator import add, attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Elements of one parameter. They lie side by side, because gathering scattered ones takes ten times as long.
BLOCK = 32
_GRADIENT = attrgetter("grad")


class Fingerprint:
    """Gathers the same elements of values and of gradients; arrays of one number per parameter come out of `sums`.

    Attributes:
        complete: whether the block is the whole parameter.
        lengths: elements of each parameter's block.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], block: int = BLOCK) -> None:
        self._parameters = parameters
        sizes = [min(parameter.numel(), block) for parameter in parameters]
        self.lengths = np.array(sizes, dtype=np.int64)
        self.complete = np.array([size == p.numel() for size, p in zip(sizes, parameters, strict=True)], dtype=bool)
        self.numels = np.array([parameter.numel() for parameter in parameters], dtype=np.float64)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64) if sizes else self.lengths
        self._block_size = block
        self._owner = np.repeat(np.arange(len(sizes)), self.lengths)
        self._shapes = [(size,) for size in sizes]
        self._unit = [(1,)] * len(sizes)
        self._inside = [(parameter.numel() - size) // 2 for size, parameter in zip(sizes, parameters, strict=True)]
        self._views: list[Tensor] = []
        self._held: list[Tensor] = []
        self._held_views: list[Tensor] = []
        self._pointers: list[int] = []
        self._strides: list[tuple[int, ...]] = []
        self._missing: dict[int, Tensor] = {}
        self.uniform = len({(parameter.dtype, parameter.device) for parameter in parameters}) == 1

    @property
    def size(self) -> int:
        """Elements of all blocks together."""
        return int(self.lengths.sum())

    def values(self) -> Tensor:
        """The values now. Views are kept from one call to the next; a parameter that got other storage has a new pointer."""
        pointers = [parameter.data_ptr() for parameter in self._parameters]
        if pointers != self._pointers:
            self._pointers = pointers
            self._strides = [parameter.stride() for parameter in self._parameters]
            # A storage is kept alive by its view, so that its address cannot come back while we compare with it.
            self._views = [self._block(index, p.detach()) for index, p in enumerate(self._parameters)]
            # Parameters whose memory is not one dense piece are copied, and have to be copied every time.
            if not all(map(_dense_memory, self._parameters)):
                self._pointers = []
        return self._joined(self._views)

    def gradients(self) -> Tensor:
        """The gradients now; NaN where there is none, or where it is sparse."""
        there: list[Any] = list(map(_GRADIENT, self._parameters))
        if self._held and all(map(is_, there, self._held)):
            return self._joined(self._held_views)
        if self._pointers and _strides(there) == self._strides:
            offsets = map(add, map(Tensor.storage_offset, there), self._inside)
            self._held = there
            self._held_views = list(map(Tensor.as_strided, there, self._shapes, self._unit, offsets))
            return self._joined(self._held_views)
        gradients = [g if g is not None and g.layout is torch.strided else None for g in map(_GRADIENT, self._parameters)]
        return self._joined([self._absent(i) if g is None else self._block(i, g) for i, g in enumerate(gradients)])

    def sums(self, elements: np.ndarray) -> np.ndarray:
        """Sum over each parameter's block."""
        return np.add.reduceat(elements, self._starts, dtype=np.float64) if len(self._starts) else np.zeros(0)

    def counts(self, mask: np.ndarray) -> np.ndarray:
        """How many elements of each parameter's block a mask has."""
        if not len(self._starts):
            return np.zeros(0)
        # Bytes are added without a conversion; a block of more elements would overflow them.
        kind = np.int8 if self._block_size < 128 else np.int64
        return np.add.reduceat(mask.view(np.int8), self._starts, dtype=kind).astype(np.float64)

    def some(self, mask: np.ndarray) -> np.ndarray:
        """Whether a mask has any element of each parameter's block."""
        return np.logical_or.reduceat(mask, self._starts) if len(self._starts) else np.zeros(0, dtype=bool)

    def least(self, elements: np.ndarray) -> np.ndarray:
        """Minimum over each parameter's block."""
        return np.minimum.reduceat(elements, self._starts) if len(self._starts) else np.zeros(0)

    def greatest(self, elements: np.ndarray) -> np.ndarray:
        """Maximum over each parameter's block."""
        return np.maximum.reduceat(elements, self._starts) if len(self._starts) else np.zeros(0)

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """One number per parameter, repeated for each element of its block."""
        return numbers[self._owner]

    def release(self) -> None:
        """Let go of the gradients' memory: views are kept from one look to the next within a step."""
        self._held, self._held_views = [], []

    def clear(self) -> None:
        """Let go of the parameters' memory."""
        self._views, self._pointers = [], []
        self.release()

    def _block(self, index: int, tensor: Tensor) -> Tensor:
        parameter = self._parameters[index]
        if tensor.stride() != parameter.stride() or not _dense_memory(parameter):
            # In the parameter's own order of elements, so that a value and its gradient stay side by side.
            tensor = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(tensor)
        return tensor.as_strided(self._shapes[index], (1,), tensor.storage_offset() + self._inside[index])

    def _absent(self, index: int) -> Tensor:
        if index not in self._missing:
            parameter = self._parameters[index]
            nothing = torch.full(self._shapes[index], float("nan"), dtype=parameter.dtype, device=parameter.device)
            self._missing[index] = nothing
        return self._missing[index]

    def _joined(self, blocks: list[Tensor]) -> Tensor:
        if not self.uniform:
            device = blocks[0].device
            wide = torch.float32 if device.type == "mps" else torch.float64
            blocks = [_real(block).to(device=device, dtype=wide) for block in blocks]
        elif blocks[0].is_complex():
            blocks = [_real(block) for block in blocks]
        return torch.cat(blocks)


def _real(block: Tensor) -> Tensor:
    # A complex number changes, vanishes or stays as its two parts do: their sum of unequal weights tells all but chance.
    return block.real + 0.7 * block.imag if block.is_complex() else block


def _strides(tensors: list[Any]) -> list[tuple[int, ...]] | None:
    """None where one of them is missing, or sparse."""
    try:
        return list(map(Tensor.stride, tensors))
    except (TypeError, RuntimeError):
        return None


def _dense_memory(tensor: Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
