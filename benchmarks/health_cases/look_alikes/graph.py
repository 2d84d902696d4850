"""Look-alikes in the graph and around the model: hidden leaves, stopped gradients, things kept as attributes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric

from health_cases.families import WIDTH, Task, overriding
from health_cases.look_alikes.architecture import inserted
from health_cases.set_up import SetUp, changed


def checkpointed(use_reentrant: bool) -> Callable[[Task], None]:
    """The inner block is computed again in the backward pass."""

    def change(task: Task) -> None:
        kind = type(task.core)

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return kind.forward(self, *args, **kwargs)
            return checkpoint(partial(kind.forward, self, **kwargs), *args, use_reentrant=use_reentrant)

        task.core.__class__ = type(kind.__name__, (kind,), {"forward": forward})

    return change


class StraightThrough(nn.Module):
    """Rounded in the forward pass, the identity in the backward pass."""

    def forward(self, h: Tensor) -> Tensor:
        return h + ((4 * h).round() / 4 - h).detach()


class HalfGradient(torch.autograd.Function):
    """The identity, whose gradient is halved."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 0.5 * grads[0]


class OwnFunction(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return HalfGradient.apply(h)


def siamese(task: Task) -> None:
    """SimSiam beside the task's own loss: one of two views is a target without a gradient."""
    task.predictor = nn.Linear(WIDTH, WIDTH)

    def training_step(self: Task, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        features: list[Tensor] = []
        handle = self.head.register_forward_pre_hook(lambda module, args: features.append(args[0]))
        loss = self.loss(self.predict(x), y)
        self.predict(x + 0.1 * torch.randn_like(x) if x.is_floating_point() else x)
        handle.remove()
        agreement = F.cosine_similarity(self.predictor(features[0]), features[1].detach(), dim=-1).mean()
        self.log("train/loss", loss)
        return loss - 0.1 * agreement

    overriding(task, training_step=training_step)


def compiled(task: Task) -> None:
    task.core.compile(backend="aot_eager")


def registered_twice(task: Task) -> None:
    task.encoder = task.core
    task.blocks = nn.ModuleList([task.inp, task.core, task.head])


def bookkeeping(task: Task) -> None:
    """Attributes that hold tensors and shape nothing: a metric, settings, a history, the last batch."""
    task.mean_loss = MeanMetric()
    task.settings = {"scale": torch.ones(3), "names": ["a", "b"], "nested": {"weights": [torch.zeros(2)]}}
    task.history = []
    task.last_batch = None
    task.best = torch.tensor(float("inf"))

    def training_step(self: Task, batch: Any, batch_idx: int) -> Tensor:
        loss = Task.training_step(self, batch, batch_idx)
        self.mean_loss.update(loss.detach())
        self.history.append(loss.detach())
        self.last_batch = batch
        self.best = torch.minimum(self.best, loss.detach())
        return loss

    overriding(task, training_step=training_step)


def reference_in_a_list(task: Task) -> None:
    """A frozen teacher, kept in a list so that it is no part of the module and of its checkpoints."""
    task._ref = [copy.deepcopy(task.net).requires_grad_(False).eval()]

    def training_step(self: Task, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        prediction = self.predict(x)
        with torch.no_grad():
            reference = self._ref[0](x)
        task_loss = self.loss(prediction, y)
        self.log("train/loss", task_loss)
        return task_loss + 0.1 * F.mse_loss(prediction, reference)

    overriding(task, training_step=training_step)


SET_UPS = (
    SetUp("T11a", "re-entrant activation checkpointing", changed(checkpointed(use_reentrant=True))),
    SetUp("T11b", "activation checkpointing, not re-entrant", changed(checkpointed(use_reentrant=False))),
    SetUp("T12a", "SimSiam: no gradient through one of two branches", changed(siamese)),
    SetUp("T12b", "a straight-through estimator", inserted(StraightThrough)),
    SetUp("T12c", "an autograd function of one's own", inserted(OwnFunction)),
    SetUp("T12d", "torch.compile", changed(compiled)),
    SetUp("T13c", "modules registered under two names", changed(registered_twice)),
    SetUp("T19", "a frozen reference in a list", changed(reference_in_a_list)),
    SetUp("T22", "metrics, settings and history as attributes", changed(bookkeeping)),
)
