"""Which time steps of a prediction the loss of a step looks at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.health.graph.walk import edge
from statewise.health.probes.take import Take
from statewise.health.signals import Supervision

# Outputs that are asked for a gradient before all others are.
_LAST = 4


@dataclass(frozen=True)
class Seen:
    """`supervision` is None where no prediction or no loss was found, `why` says so; with `ask_again` a batch may show it."""

    supervision: Supervision | None
    why: str = ""
    ask_again: bool = False


def look(take: Take, step: str, asked: Sequence[Tensor], batch: Any) -> tuple[Sequence[Tensor | None], Seen]:
    """The loss's gradients for the tensors asked, and what it looks at."""
    if take.loss is None or take.graph is None:
        return (), Seen(None, f"{step} neither returns nor logs a loss that has a gradient")
    loss, value = take.loss
    inputs = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    floats = [leaf for leaf in inputs if leaf.is_floating_point()]
    first = (floats or inputs or [torch.zeros(1)])[0]
    edges = take.graph.edges
    # The prediction: the first output of the last call that the loss looks at (a state may come out beside it).
    outputs = [(call.name, o) for call in reversed(take.calls) for o in call.outputs if o.grad_fn is not None and o.ndim > 0]
    named = [(name, o) for name, o in outputs if o.shape[0] == first.shape[0] and edge(o) in edges]
    seen = [output for _, output in named]
    # Nearly always it is one of the last, and no backward pass has to go farther down.
    last, others = seen[:_LAST], seen[_LAST:]
    wanted = [*asked, *last]
    gradients = torch.autograd.grad(value, wanted, allow_unused=True, retain_graph=bool(others)) if wanted else ()
    own = gradients[: len(asked)]
    prediction, gradient = _first_used(last, gradients[len(asked) :])
    if prediction is None and others:
        prediction, gradient = _first_used(others, torch.autograd.grad(value, others, allow_unused=True))
    if prediction is None or gradient is None:
        return own, Seen(None, f"no module of {step} gives the prediction that its loss looks at")
    if left_out := _left_out_by_masks(batch, prediction):
        return own, Seen(None, f"a mask in the batch leaves out {left_out} of the prediction in every sample", ask_again=True)
    used = gradient.detach() != 0
    times = length = None
    if prediction.ndim >= 3:
        length = int(prediction.shape[1])
        times = int(used.transpose(0, 1).reshape(length, -1).any(dim=1).sum())
    supervision = Supervision(
        step=step,
        loss=loss,
        prediction=tuple(prediction.shape[1:]),
        positions=int(used.any(dim=0).sum()),
        times=times,
        length=length,
        inputs=(tuple(first.shape[1:]),),
        module=next(name for name, output in named if output is prediction),
    )
    return own, Seen(supervision)


def _first_used(outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> tuple[Tensor, Tensor] | tuple[None, None]:
    for output, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None and bool((gradient != 0).any()):
            return output, gradient
    return None, None


def _left_out_by_masks(batch: Any, prediction: Tensor) -> str:
    """What boolean tensors of the batch exclude for all samples, if their shape fits the prediction: no choice of the step."""
    for leaf in tree_leaves(batch):
        if not isinstance(leaf, Tensor) or leaf.dtype != torch.bool or leaf.ndim < 2 or leaf.shape[0] != prediction.shape[0]:
            continue
        anywhere = leaf.any(dim=0)
        if anywhere.numel() == prediction[0].numel():
            missing, what = int((~anywhere).sum()), "values"
        elif prediction.ndim >= 3 and leaf.shape[1] == prediction.shape[1]:
            missing, what = int((~anywhere.reshape(leaf.shape[1], -1).any(dim=1)).sum()), "time steps"
        else:
            continue
        if missing:
            return f"{missing} {what}"
    return ""
