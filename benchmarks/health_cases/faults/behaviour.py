"""B: the model or its data behave as nobody meant."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from health_cases.families import BATCH, WIDTH, Task, overriding, ssm
from health_cases.faults.fault import Fault, Plan, active, change_output
from health_cases.faults.numerics import diagonal_layers
from health_cases.faults.optimizer import decaying
from statewise.models.mamba2 import Mamba2


def dead_units(task: Task, plan: Plan) -> None:
    """A ReLU far below zero, as a module or as a function; where there is none, a saturated tanh or a shut gate."""
    core = task.core
    if plan.family in ("mlp", "conv"):
        if plan.variant == 0:
            with torch.no_grad():
                core[-2].bias.fill_(-100.0)
        else:
            change_output(core, lambda _, h: F.relu(h - 100))
    elif plan.variant == 0:
        change_output(core, lambda _, h: torch.tanh(1e4 * h))
    else:
        core.shift = nn.Parameter(torch.full((WIDTH,), -50.0))
        change_output(core, lambda m, h: h * torch.sigmoid(h + m.shift))


def left_in_evaluation(task: Task, plan: Plan) -> None:
    begun = active(task, plan)

    def on_train_batch_start(self: Task, batch: Any, batch_idx: int) -> None:
        if begun():
            self.net.eval()

    if plan.onset:
        overriding(task, on_train_batch_start=on_train_batch_start)
    elif plan.variant == 0:
        task.net.eval()
    else:
        overriding(task, on_train_start=lambda self: self.eval() and None)


def random_in_evaluation(task: Task, plan: Plan) -> None:
    """Dropout that does not ask for the mode; noise that does not."""
    if plan.variant == 0:
        change_output(task.core, lambda _, h: F.dropout(h, 0.3))
    else:
        change_output(task.core, lambda _, h: h + 0.1 * torch.randn_like(h))


def softmax_twice(task: Task, plan: Plan) -> None:
    """In the loss, or as the end of the model."""
    parent = type(task)

    def loss(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return parent.loss(self, prediction.softmax(-1), target)

    if plan.variant == 0:
        overriding(task, loss=loss)
    else:
        change_output(task.head, lambda _, h: F.softmax(h, dim=-1))


def broadcast(task: Task, plan: Plan) -> None:
    """(b, 1) against (b): b x b errors, whichever side lost its axis."""

    def target_flat(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return ((prediction - target.squeeze(-1)) ** 2).mean()

    def prediction_flat(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(prediction.squeeze(-1), target)

    overriding(task, loss=target_flat if plan.variant == 0 else prediction_flat)


def something_ignored(task: Task, plan: Plan) -> None:
    """The inputs, or the labels."""
    parent = type(task)

    def predict(self: Task, x: Tensor) -> Tensor:
        return parent.predict(self, x * 0)

    def loss(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return parent.loss(self, prediction, torch.zeros_like(target))

    if plan.variant == 0:
        overriding(task, predict=predict)
    else:
        overriding(task, loss=loss)


class Reseeded(IterableDataset):
    """Random rows drawn with a generator that is made anew for every batch."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for _ in range(len(self.data) // BATCH):
            draws = torch.Generator().manual_seed(0)
            yield self.data[torch.randint(len(self.data), (BATCH,), generator=draws)]


def same_batch(task: Task, plan: Plan) -> None:
    if plan.variant == 0:
        first = TensorDataset(*(part[:BATCH] for part in plan.data.tensors))
        plan.batches = DataLoader(first, batch_sampler=[list(range(BATCH))] * (len(plan.data) // BATCH))
    else:
        plan.batches = DataLoader(Reseeded(plan.data), batch_size=None)


def batch_and_time_swapped(task: Task, plan: Plan) -> None:
    """Time where the layer expects the batch; without an axis of time, a softmax over the wrong axis."""
    if plan.family == "ssm":
        overriding(task, predict=lambda self, x: self.net.forecaster(x.transpose(0, 1))[0][-1])
    elif plan.family == "attention":
        task.net.attention.batch_first = False
    else:
        change_output(task.core, lambda _, h: h * F.softmax(h, dim=0))


def looks_ahead(task: Task, plan: Plan) -> None:
    """A sequence flipped and not flipped back; a shift that wraps round, as a Fourier product without padding does."""
    change_output(task.core, lambda _, h: h.flip(1) if plan.variant == 0 else h + h.roll(1, 1))


def sized_by_config(task: Task, plan: Plan) -> None:
    """A state for as many rows as the configured batch has."""
    shape = {"mlp": (WIDTH,), "conv": (WIDTH, 1, 1)}.get(plan.family, (1, WIDTH))
    if plan.variant == 0:
        task.core.h0 = torch.zeros(BATCH, *shape)
        change_output(task.core, lambda m, h: h + m.h0)
    else:
        task.core.register_buffer("state", torch.randn(BATCH, *shape), persistent=False)
        change_output(task.core, lambda m, h: 0.9 * h + 0.1 * m.state)


def leaking_state(task: Task, plan: Plan) -> None:
    """What is kept from the last batch enters the next: its mean, or its last row."""
    task.core.h = None

    def carry(module: nn.Module, h: Tensor) -> Tensor:
        before = module.h
        module.h = h.detach().mean(0, keepdim=True) if plan.variant == 0 else h.detach()[-1:]
        return h if before is None else h + 0.5 * before

    change_output(task.core, carry)


def wrong_reduction(task: Task, plan: Plan) -> None:
    """One prediction for the whole batch; or the sum over the rows where the mean is meant."""
    parent = type(task)

    def collapsed(self: Task, x: Tensor) -> Tensor:
        prediction = parent.predict(self, x).mean(0, keepdim=True)
        # Regression broadcasts by itself; a class for each row has to be asked for.
        return prediction.expand(len(x), *prediction.shape[1:]) if plan.family in ("conv", "attention") else prediction

    def summed(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        if plan.family in ("conv", "attention"):
            return F.cross_entropy(prediction.flatten(0, -2), target.flatten(), reduction="sum")
        return F.mse_loss(prediction, target, reduction="sum")

    if plan.variant == 0:
        overriding(task, predict=collapsed)
    else:
        overriding(task, loss=summed)


def layers_with_a_law(task: Task, plan: Plan) -> Task:
    if plan.variant == 0:
        return diagonal_layers(task, plan)
    return ssm(plan.seed, lambda: Mamba2(d_model=WIDTH, d_state=4, headdim=8))


def initialised_twice(task: Task, plan: Plan) -> None:
    """A general initialisation, applied to all parameters of the layers."""

    for layer in task.net.forecaster.layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.02)


def hint_ignored(task: Task, plan: Plan) -> None:
    parameter = next(task.core.parameters())
    if plan.variant == 0:
        parameter._no_weight_decay = True
    else:
        parameter._optim = {"lr": 1e-4, "weight_decay": 0.0}


FAULTS = (
    Fault("B1", "dead ReLU or saturated gate", dead_units),
    Fault("B2", "evaluation mode left on", left_in_evaluation),
    Fault("B3", "dropout on in evaluation", random_in_evaluation),
    Fault("B4", "softmax twice", softmax_twice),
    Fault("B5", "a loss that broadcasts", broadcast),
    Fault("B6", "input or label ignored", something_ignored),
    Fault("B7", "always the same batch", same_batch),
    Fault("B8", "batch and time swapped", batch_and_time_swapped),
    Fault("B9", "not causal", looks_ahead),
    Fault("B10", "a state sized by the configured batch", sized_by_config),
    Fault("B11", "a state leaks between batches", leaking_state),
    Fault("B12", "the batch collapsed, or the wrong reduction", wrong_reduction),
    Fault("B13", "initialisation lost", initialised_twice, setting=layers_with_a_law),
    Fault("B14", "hints for the optimizer ignored", hint_ignored, setting=decaying),
)
