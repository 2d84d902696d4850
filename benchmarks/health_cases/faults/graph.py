"""G: the autograd graph is cut, unused or switched off."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from health_cases.families import Task, overriding
from health_cases.faults.fault import Fault, Plan, active, around, change_input, change_output, manual, write_out


def detach_before(task: Task, plan: Plan) -> None:
    """Before the core block, or right after the first block: everything before stays as it is."""
    if plan.variant == 0:
        change_input(task.core, lambda _, h: h.detach(), active(task, plan))
    else:
        change_output(task.inp, lambda _, h: h.detach(), active(task, plan))


def autograd_off_in_block(task: Task, plan: Plan) -> None:
    def no_grad(block: Any, *inputs: Any, **options: Any) -> Any:
        with torch.no_grad():
            return block(*inputs, **options)

    def data(block: Any, *inputs: Any, **options: Any) -> Any:
        output = block(*inputs, **options)
        return (output[0].data, *output[1:]) if isinstance(output, tuple) else output.data

    around(task.core, no_grad if plan.variant == 0 else data)


def loss_rebuilt(task: Task, plan: Plan) -> None:
    parent = type(task)

    def detached(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return parent.loss(self, prediction, target).detach().requires_grad_()

    def from_number(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.tensor(parent.loss(self, prediction, target).item(), requires_grad=True)

    overriding(task, loss=detached if plan.variant == 0 else from_number)


def not_differentiable(task: Task, plan: Plan) -> None:
    """A hard choice, or a comparison."""
    if plan.variant == 0:
        change_output(task.core, lambda _, h: F.one_hot(h.argmax(-1), h.shape[-1]).to(h.dtype))
    else:
        change_output(task.core, lambda _, h: (h > h.mean()).to(h.dtype))


def unused_block(task: Task, plan: Plan) -> None:
    if plan.variant == 0:
        task.net.aux = nn.Linear(4, 4)
    else:
        task.aux = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))


def autograd_off(task: Task, plan: Plan) -> None:
    """Autograd is off in the whole step. Lightning's own loop raises at backward; a loop written out may not."""
    parent = type(task)

    def predict(self: Task, x: Tensor) -> Tensor:
        with torch.no_grad():
            return parent.predict(self, x)

    def loss(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad() if self.trainer.training else nullcontext():
            return parent.loss(self, prediction, target)

    overriding(task, predict=predict, loss=loss)
    if plan.variant == 1:
        write_out(task, backward=lambda self, loss, _: self.manual_backward(loss) if loss.requires_grad else None)


def constant_loss(task: Task, plan: Plan) -> None:
    """Clamped away; all masked; the softmax over a single class, which is always 1."""
    parent = type(task)

    def clamped(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return parent.loss(self, prediction, target).clamp(min=50.0)

    def masked(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        mask = torch.zeros_like(target)
        return ((prediction - target) ** 2 * mask).sum() / mask.sum().clamp(min=1)

    def one_class(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(prediction[..., :1].flatten(0, -2), torch.zeros_like(target).flatten())

    if plan.variant == 0:
        overriding(task, loss=clamped)
    else:
        overriding(task, loss=one_class if plan.family in ("conv", "attention") else masked)


FAULTS = (
    Fault("G1", "detach before a block", detach_before),
    Fault("G2", "a block under no_grad, or its output through .data", autograd_off_in_block),
    Fault("G3", "the loss detached and re-armed", loss_rebuilt),
    Fault("G4", "an operation without a gradient in the path", not_differentiable),
    Fault("G5", "a block that is never used", unused_block),
    Fault("G6", "autograd off for the whole step", autograd_off, setting=manual),
    Fault("G7", "the loss is a constant of the parameters", constant_loss),
)
