"""What a step that is not watched shows all the same: gradients that are missing, and a few that are nothing but zeros."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

# Parameters whose gradients are looked at, how large they may be, and in how many steps once.
_SENTINELS, _SENTINEL_SIZE, _PEEK = 4, 4096, 4
# In how many parts it is asked whether all gradients are there, one part a step.
_PARTS = 8


class Glimpses:
    """Cheap looks at an optimizer's gradients: what is missing calls the watch back."""

    def __init__(self, parameters: Sequence[nn.Parameter], on_cpu: bool) -> None:
        self._parameters, self._on_cpu = parameters, on_cpu
        self._held: list[nn.Parameter] = []
        self._sentinels: list[nn.Parameter] = []

    def expect(self, always: np.ndarray) -> None:
        """Which parameters have had a gradient in every watched step."""
        self._held = [parameter for parameter, there in zip(self._parameters, always.tolist(), strict=True) if there]

    def choose(self, size: np.ndarray, numels: np.ndarray) -> None:
        """The last few of those that had a gradient above zero, and are small."""
        alive = np.flatnonzero((size > 0) & (numels <= _SENTINEL_SIZE))
        self._sentinels = [self._parameters[index] for index in alive[-_SENTINELS:].tolist()]

    def alarm(self, step: int) -> bool:
        """Whether the next step should be watched: one of another eighth has no gradient now, or those few have only zeros."""
        missing = any(parameter.grad is None for parameter in self._held[step % _PARTS :: _PARTS])
        return missing or (self._on_cpu and step % _PEEK == 0 and self._silent())

    def _silent(self) -> bool:
        gradients = [parameter.grad for parameter in self._sentinels if parameter.grad is not None]
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        return bool(dense) and not any(bool(torch.linalg.vector_norm(gradient)) for gradient in dense)
