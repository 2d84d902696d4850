"""The steps that an optimizer counts itself: one that was called and did not count declined to step."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Optimizers that count their steps from the first one on.
_COUNTING = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


class OwnCount:
    """The count before an update, of one parameter, and whether it went on with it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before: tuple[nn.Parameter, float | None] | None = None

    def take(self, parameters: Iterable[nn.Parameter]) -> None:
        """An update begins: the count of the first parameter that has a gradient."""
        self._before = None
        parameter = next((parameter for parameter in parameters if parameter.grad is not None), None)
        if parameter is None:
            return
        step = self._optimizer.state.get(parameter, {}).get("step")
        if isinstance(step, Tensor):
            step = float(step) if step.device.type == "cpu" and step.numel() == 1 else None
        self._before = parameter, step

    def stood_still(self) -> bool:
        """The update was made: whether the count says otherwise."""
        if self._before is None:
            return False
        parameter, before = self._before
        state = self._optimizer.state.get(parameter)
        if before is None:
            return isinstance(self._optimizer, _COUNTING) and not state
        step = (state or {}).get("step")
        return (not isinstance(step, Tensor) or step.device.type == "cpu") and step is not None and float(step) == before

    def forget(self) -> None:
        """The step is over."""
        self._before = None
