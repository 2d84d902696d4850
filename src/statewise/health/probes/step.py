"""Calling the step of a copy, and finding the loss in what it returns, logs or hands to a metric."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from statewise.health.probes.structure import tensors
from statewise.health.probes.take import is_metric

Loss = tuple[str, Tensor]


def step_of(name: str, batch_idx: int) -> Callable[[nn.Module, Any], Any]:
    """The step `name` of a module, called as frameworks do."""

    def run(twin: nn.Module, batch: Any) -> Any:
        function = getattr(twin, name)
        given = [batch, batch_idx, 0]
        names = list(inspect.signature(function).parameters)
        # Positional, as the framework does it: people name these arguments as they like.
        return function(*given[: max(1, min(len(names), 3 if "dataloader_idx" in names else 2))])

    return run


def loss_in(result: Any, logged: Mapping[str, Any], metrics: Mapping[str, Tensor]) -> Loss | None:
    """What a step returns, or logs, or hands to a metric, as its loss."""
    if isinstance(result, Mapping):
        result = result.get("loss")
    if isinstance(result, Tensor) and result.ndim == 0 and result.requires_grad:
        return "the returned loss", result
    for name, value in logged.items():
        if "loss" in name.lower() and isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad:
            return f"`{name}`", value
    return next(((f"the metric `{name}`", value) for name, value in metrics.items()), None)


def listen_to_metrics(twin: nn.Module) -> dict[str, Tensor]:
    """What is handed to torchmetrics objects that are called a loss: some steps log it only when the epoch ends."""
    heard: dict[str, Tensor] = {}

    def listener(name: str, update: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*args: Any, **kwargs: Any) -> Any:
            given = [leaf for leaf in tensors((args, kwargs)) if leaf.requires_grad]
            if given:
                heard[name] = given[0].sum()
            return update(*args, **kwargs)

        return listen

    for name, part in twin.named_modules():
        if is_metric(part) and "loss" in name.lower():
            vars(part)["update"] = listener(name, part.update)
    return heard
