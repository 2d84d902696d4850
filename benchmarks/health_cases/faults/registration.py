"""R: registration and requires_grad."""

import torch
from torch import nn

from health_cases.families import Task, overriding
from health_cases.faults.fault import Fault, Plan, change_output, first_parameter, last_size

NORMS = (nn.LayerNorm, nn.BatchNorm2d)


def layers_in_a_list(task: Task, plan: Plan) -> None:
    size = last_size(plan)
    if plan.variant == 0:
        task.core.layers = [nn.Linear(size, size)]
        change_output(task.core, lambda m, h: h + m.layers[0](h))
    else:
        task.core.extra = {"mix": nn.Linear(size, size)}
        change_output(task.core, lambda m, h: h + m.extra["mix"](h))


def as_plain_tensor(task: Task, plan: Plan) -> None:
    """The layer's own A or delta where it is a state-space layer; else a decay or a step of the user's own."""
    core, size = task.core, last_size(plan)
    if plan.family == "ssm":
        name = "A" if plan.variant == 0 else "delta"
        value = getattr(core, name).detach().clone()
        delattr(core, name)
        setattr(core, name, value)
    elif plan.variant == 0:
        core.A_log = 0.1 * torch.randn(size)
        change_output(core, lambda m, h: h * torch.exp(-0.1 * torch.exp(m.A_log)))
    else:
        core.delta = torch.ones(size)
        change_output(core, lambda m, h: h * m.delta)


def double_by_option(task: Task, plan: Plan) -> Task:
    if plan.variant == 1:
        plan.trainer["precision"] = "64-true"
    return task


def leaf_without_parameter(task: Task, plan: Plan) -> None:
    """A bare tensor; or what `to` made of a parameter, which is none any more."""
    size = last_size(plan)
    if plan.variant == 0:
        task.core.s = torch.ones(size, requires_grad=True)
    else:
        task.core.s = nn.Parameter(torch.full((size,), 0.9)).to(torch.float64)
    change_output(task.core, lambda m, h: h * m.s)


def as_buffer(task: Task, plan: Plan) -> None:
    core, size = task.core, last_size(plan)
    if plan.family == "ssm":
        name = "delta" if plan.variant == 0 else "C"
        value = getattr(core, name).detach().clone()
        delattr(core, name)
        core.register_buffer(name, value)
    elif plan.variant == 0:
        core.register_buffer("dt", torch.full((size,), 0.5))
        change_output(core, lambda m, h: h * (1 + m.dt))
    else:
        core.register_buffer("B", torch.eye(size) + 0.1)
        change_output(core, lambda m, h: h @ m.B)


def one_frozen(task: Task, plan: Plan) -> None:
    def freeze(self: Task) -> None:
        owner, name = first_parameter(self.core if plan.variant == 0 else self.head)
        getattr(owner, name).requires_grad_(False)

    if plan.onset == 0:
        freeze(task)
        return

    def on_train_batch_start(self: Task, batch: object, batch_idx: int) -> None:
        if self.global_step >= plan.onset:
            freeze(self)

    overriding(task, on_train_batch_start=on_train_batch_start)


def only_norms_train(task: Task, plan: Plan) -> None:
    """Frozen by kind or by name, and an optimizer over the head alone."""
    for path, module in task.net.named_modules():
        spared = isinstance(module, NORMS) if plan.variant == 0 else "norm" in path
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(spared)
    overriding(task, configure_optimizers=lambda self: torch.optim.Adam(self.head.parameters(), lr=self.lr))


def declared_frozen(task: Task, plan: Plan) -> Task:
    plan.health["frozen"] = [f"net.{task.places.inp}"]
    task.inp.requires_grad_(False)
    return task


def trains_although_frozen(task: Task, plan: Plan) -> None:
    """The freezing was never called, or something else undid it once the fit had begun."""
    if plan.variant == 0:
        task.inp.requires_grad_(True)
    else:
        overriding(task, on_train_start=lambda self: self.requires_grad_(True) and None)


FAULTS = (
    Fault("R1", "layers in a list or a dict", layers_in_a_list),
    Fault("R2", "A or delta as a plain tensor", as_plain_tensor),
    Fault("R3", "a tensor with requires_grad that is no parameter", leaf_without_parameter, setting=double_by_option),
    Fault("R4", "a buffer instead of a parameter", as_buffer),
    Fault("R5", "one parameter frozen by mistake", one_frozen),
    Fault("R6", "all frozen but norms, the optimizer over the frozen head", only_norms_train),
    Fault("R7", "meant to be frozen but trains", trains_although_frozen, setting=declared_frozen),
)
