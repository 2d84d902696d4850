"""The random states that a trial step may draw from, put back when it is over."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

# Other people's code draws from numpy's global state.
_numpy_state, _set_numpy_state, _seed_numpy = np.random.get_state, np.random.set_state, np.random.seed


class RandomState:
    """All generators that code draws from without being given one, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self.devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy: Any = _numpy_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self.devices]

    def set(self) -> None:
        """Go back to them."""
        random.setstate(self._python)
        _set_numpy_state(self._numpy)
        torch.set_rng_state(self._torch)
        for device, state in zip(self.devices, self._cuda, strict=True):
            torch.cuda.set_rng_state(state, device)

    def moved(self) -> bool:
        """Whether something was drawn since."""
        numpy: Any = _numpy_state()
        return (
            random.getstate() != self._python
            or numpy[2:] != self._numpy[2:]
            or not np.array_equal(numpy[1], self._numpy[1])
            or not torch.equal(torch.get_rng_state(), self._torch)
            or any(
                not torch.equal(torch.cuda.get_rng_state(device), state)
                for device, state in zip(self.devices, self._cuda, strict=True)
            )
        )


def reseed(seed: int) -> None:
    """Other draws than those of any state before."""
    random.seed(seed)
    _seed_numpy(seed)
    torch.manual_seed(seed)


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[RandomState]:
    """Whatever is drawn inside, the run afterwards draws what it would have drawn."""
    state = RandomState(module)
    try:
        yield state
    finally:
        state.set()
