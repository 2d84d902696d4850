"""N: the numbers lose what the training needs."""

import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from health_cases.families import WIDTH, Task, overriding, ssm
from health_cases.faults.fault import Fault, Plan, active, change_output, last_size
from statewise.models.diagonal_ssm import DiagonalSSM


def sixteen_bits(task: Task, plan: Plan) -> Task:
    if plan.variant == 0:
        plan.trainer["precision"] = "bf16-true"
    return task


def swallowed(task: Task, plan: Plan) -> None:
    """Steps far below the resolution of the weights, in bfloat16 or in float32."""
    task.lr = 1e-6 if plan.variant == 0 else 1e-12


def double(task: Task, plan: Plan) -> Task:
    plan.trainer["precision"] = "64-true"
    return task


def loss_through_single(task: Task, plan: Plan) -> None:
    """On its way to backward, or on its way to the log."""
    parent = type(task)

    def loss(self: Task, prediction: Tensor, target: Tensor) -> Tensor:
        return parent.loss(self, prediction, target).float().double()

    def training_step(self: Task, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.loss(self.predict(x), y)
        self.log("train/loss", loss.detach().float())
        return loss

    if plan.variant == 0:
        overriding(task, loss=loss)
    else:
        overriding(task, training_step=training_step)


def double_model(task: Task, plan: Plan) -> Task:
    """Double precision by the Trainer's option, or by hand: model and data."""
    if plan.variant == 0:
        return double(task, plan)
    plan.data = TensorDataset(*(part.double() if part.is_floating_point() else part for part in plan.data.tensors))
    return task.double()


def mixed_precisions(task: Task, plan: Plan) -> None:
    """A block that narrows what passes through; or a parameter that stayed in float32 and is promoted silently."""
    if plan.variant == 0:
        change_output(task.core, lambda _, h: h.float().double())
    else:
        task.core.gain = nn.Parameter(torch.ones(last_size(plan)))
        change_output(task.core, lambda m, h: h * m.gain)


def not_a_number_behind(task: Task, plan: Plan) -> None:
    """A root at zero; or a branch of `where` that is never taken and has no finite gradient."""
    if plan.variant == 0:
        change_output(task.core, lambda _, h: h + torch.sqrt(0 * h), active(task, plan))
    else:
        change_output(task.core, lambda _, h: torch.where(h * h >= 0, h, torch.sqrt(-1 - h * h)), active(task, plan))


def diagonal_layers(task: Task, plan: Plan) -> Task:
    return ssm(plan.seed, lambda: DiagonalSSM(d_model=WIDTH, d_state=4))


@torch.no_grad()
def dead_state(task: Task, plan: Plan) -> None:
    """exp(dt A) rounds to 1, so that the state never changes; or to 0, so that it forgets everything."""
    core = task.core
    if plan.variant == 0:
        core.log_step.fill_(-20.0)
    else:
        core.log_A_real.copy_((math.log(50.0) - core.log_step)[:, None].expand_as(core.log_A_real))


FAULTS = (
    Fault("N1", "the update is swallowed by rounding", swallowed, setting=sixteen_bits),
    Fault("N2", "the loss goes float64 to float32 to float64", loss_through_single, setting=double),
    Fault("N3", "float32 and float64 mixed silently", mixed_precisions, setting=double_model),
    Fault("N4", "a gradient that is not a number behind a finite loss", not_a_number_behind),
    Fault("N5", "the state of a state-space layer is numerically dead", dead_state, setting=diagonal_layers),
)
