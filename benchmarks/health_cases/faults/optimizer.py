"""O: the optimizer and the loop around it."""

import copy
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from health_cases.families import FAMILIES, Task, overriding
from health_cases.faults.fault import (
    Fault,
    Plan,
    active,
    change_input,
    change_output,
    first_parameter,
    manual,
    replace,
    write_out,
)


def dropped_by_filter(task: Task, plan: Plan) -> None:
    """Groups built by name: a filter leaves the core out, or whatever is not called a weight."""

    def configure_optimizers(self: Task) -> Optimizer:
        core = {id(parameter) for parameter in self.core.parameters()}
        chosen = [
            parameter
            for name, parameter in self.named_parameters()
            if (id(parameter) not in core if plan.variant == 0 else name.endswith("weight"))
        ]
        return torch.optim.Adam(chosen, lr=self.lr)

    overriding(task, configure_optimizers=configure_optimizers)


def replaced_after_optimizer(task: Task, plan: Plan) -> None:
    parent = type(task)

    def new_head(self: Task) -> None:
        replace(self, "head", nn.Linear(self.head.in_features, self.head.out_features))

    def configure_optimizers(self: Task) -> Any:
        optimizer = parent.configure_optimizers(self)
        new_head(self)
        return optimizer

    if plan.variant == 0:
        overriding(task, configure_optimizers=configure_optimizers)
    else:
        overriding(task, on_fit_start=new_head)


def optimizer_of_a_copy(task: Task, plan: Plan) -> None:
    """Over a deep copy, or over a second model that the script built as well."""
    other = copy.deepcopy(task.net) if plan.variant == 0 else FAMILIES[plan.family].build(plan.seed).net
    overriding(task, configure_optimizers=lambda self: torch.optim.Adam(other.parameters(), lr=self.lr))


def two_groups(task: Task, plan: Plan) -> Task:
    """The core, or for the second variant the head, in a group of its own."""

    def configure_optimizers(self: Task) -> Optimizer:
        block = list((self.core if plan.variant == 0 else self.head).parameters())
        own = {id(parameter) for parameter in block}
        rest = [parameter for parameter in self.parameters() if id(parameter) not in own]
        return torch.optim.Adam([{"params": rest}, {"params": block}], lr=self.lr)

    overriding(task, configure_optimizers=configure_optimizers)
    return task


def zero_rate(task: Task, plan: Plan) -> None:
    parent = type(task)

    def configure_optimizers(self: Task) -> Optimizer:
        optimizer = parent.configure_optimizers(self)
        optimizer.param_groups[1]["lr"] = 0.0
        return optimizer

    def training_step(self: Task, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step >= plan.onset:
            self.optimizers().param_groups[1]["lr"] = 0.0
        return parent.training_step(self, batch, batch_idx)

    if plan.onset == 0:
        overriding(task, configure_optimizers=configure_optimizers)
    else:
        overriding(task, training_step=training_step)


def schedule(factor: Callable[[int], float], interval: str) -> Callable[[Task], dict[str, Any]]:
    def configure_optimizers(self: Task) -> dict[str, Any]:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": interval}}

    return configure_optimizers


def warm_up(task: Task, plan: Plan) -> Task:
    overriding(task, configure_optimizers=schedule(lambda step: min(1.0, step / 10), "step"))
    return task


def stuck_schedule(task: Task, plan: Plan) -> None:
    """A whole-number division that stays 0, or a warm-up that counts steps and is called once an epoch."""
    if plan.variant == 0:
        overriding(task, configure_optimizers=schedule(lambda step: (step // 1000) / 10, "step"))
    else:
        overriding(task, configure_optimizers=schedule(lambda step: min(1.0, step / 500), "epoch"))


def decaying(task: Task, plan: Plan) -> Task:
    overriding(task, configure_optimizers=lambda self: torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.1))
    return task


def only_decay_moves(task: Task, plan: Plan) -> None:
    """The gradient is multiplied by zero on its way: behind the core (a gradient scale of 0), or at one parameter."""

    def shut(module: nn.Module, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(torch.zeros_like)
        return h

    if plan.variant == 0:
        change_output(task.core, shut)
    else:
        owner, name = first_parameter(task.core)
        getattr(owner, name).register_hook(torch.zeros_like)


def never_cleared(task: Task, plan: Plan) -> None:
    parent, begun = type(task), active(task, plan)

    def optimizer_zero_grad(self: Task, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        if not begun():
            parent.optimizer_zero_grad(self, epoch, batch_idx, optimizer)

    if task.automatic_optimization:
        overriding(task, optimizer_zero_grad=optimizer_zero_grad)
    else:
        write_out(task, clear=False)


def no_backward(task: Task, plan: Plan) -> None:
    """training_step forgets to return the loss; or gradients are computed and dropped."""
    parent = type(task)

    def training_step(self: Task, batch: Any, batch_idx: int) -> None:
        parent.training_step(self, batch, batch_idx)

    def computed_and_dropped(self: Task, loss: Tensor, optimizer: Optimizer) -> None:
        torch.autograd.grad(loss, list(self.parameters()))

    if plan.variant == 0:
        overriding(task, training_step=training_step)
    else:
        write_out(task, backward=computed_and_dropped)


def never_stepped(task: Task, plan: Plan) -> None:
    """A loop without a step; or a count of batches that begins anew with each batch, so that it is never full."""

    def never_full(self: Task, optimizer: Optimizer) -> None:
        collected = 1
        if collected == 4:
            optimizer.step()

    write_out(task, step=(lambda self, optimizer: None) if plan.variant == 0 else never_full, clear=plan.variant == 0)


def written_out(task: Task, plan: Plan) -> Task:
    write_out(task)
    return task


def cleared_before_step(task: Task, plan: Plan) -> None:
    def clear(self: Task, loss: Tensor, optimizer: Optimizer) -> None:
        self.manual_backward(loss)
        optimizer.zero_grad()

    if plan.variant == 0:
        overriding(task, on_after_backward=lambda self: self.zero_grad())
    else:
        write_out(task, backward=clear)


def plain_descent(task: Task, plan: Plan) -> Task:
    """SGD, clipped at a usual norm; the second variant clips in a loop of its own."""
    overriding(task, configure_optimizers=lambda self: torch.optim.SGD(self.parameters(), lr=0.1))
    if plan.variant == 0:
        plan.trainer["gradient_clip_val"] = 1.0
    else:
        write_out(task, backward=clipping(1.0))
    return task


def clipping(norm: float) -> Callable[[Task, Tensor, Optimizer], None]:
    def backward(self: Task, loss: Tensor, optimizer: Optimizer) -> None:
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), norm)

    return backward


def clipped_to_nothing(task: Task, plan: Plan) -> None:
    if plan.variant == 0:
        plan.trainer["gradient_clip_val"] = 1e-7
    else:
        write_out(task, backward=clipping(0.0))


def scaled(scale: float) -> MixedPrecision:
    return MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))


def mixed_precision(task: Task, plan: Plan) -> Task:
    if plan.variant == 0 and plan.onset == 0:
        plan.trainer["plugins"] = [scaled(16.0)]
    return task


def always_skipped(task: Task, plan: Plan) -> None:
    """A loss scale that overflows in every step; or an optimizer_step that leaves early, as a loss filter would."""
    parent, begun = type(task), active(task, plan)

    def optimizer_step(self: Task, epoch: int, batch_idx: int, optimizer: Any, closure: Callable[[], Any]) -> None:
        if begun():
            closure()
            return
        parent.optimizer_step(self, epoch, batch_idx, optimizer, closure)

    if plan.variant == 0 and plan.onset == 0:
        plan.trainer["plugins"] = [scaled(2.0**127)]
    else:
        overriding(task, optimizer_step=optimizer_step)


class KeepOld(L.Callback):
    """A user's callback that puts the first parameter of the core back to what it was when the fault began."""

    def __init__(self, begun: Callable[[], bool]) -> None:
        self.begun, self.old = begun, None

    def on_train_batch_start(self, trainer: L.Trainer, task: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self.old is None and self.begun():
            owner, name = first_parameter(task.core)
            self.old = getattr(owner, name).detach().clone()

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, *rest: Any) -> None:
        if self.old is not None:
            owner, name = first_parameter(task.core)
            with torch.no_grad():
                getattr(owner, name).copy_(self.old)


def written_back(task: Task, plan: Plan) -> None:
    """A callback writes the old value back; or a projection whose bound holds every entry."""

    def on_train_batch_end(self: Task, *rest: Any) -> None:
        owner, name = first_parameter(self.core)
        with torch.no_grad():
            getattr(owner, name).clamp_(-1e-6, 1e-6)

    if plan.variant == 0:
        plan.callbacks.append(KeepOld(active(task, plan)))
    else:
        overriding(task, on_train_batch_end=on_train_batch_end)


def rewritten_in_forward(task: Task, plan: Plan) -> None:
    """`self.A.data = constant` at the head of forward, or `self.A.data.copy_(constant)`."""
    block = task.core if plan.variant == 0 else task.head
    start = getattr(*first_parameter(block)).detach().clone()

    def rewrite(module: nn.Module, h: Tensor) -> Tensor:
        parameter = getattr(*first_parameter(module))
        if plan.variant == 0:
            parameter.data = start.clone()
        else:
            parameter.data.copy_(start)
        return h

    change_input(block, rewrite)


def made_anew_in_forward(task: Task, plan: Plan) -> None:
    def renew(module: nn.Module, h: Tensor) -> Tensor:
        owner, name = first_parameter(module)
        setattr(owner, name, nn.Parameter(getattr(owner, name).detach()))
        return h

    change_input(task.core if plan.variant == 0 else task.head, renew)


FAULTS = (
    Fault("O1", "a block missing from the optimizer", dropped_by_filter),
    Fault("O2", "a layer replaced after the optimizer was made", replaced_after_optimizer),
    Fault("O3", "the optimizer of another copy", optimizer_of_a_copy),
    Fault("O4", "learning rate 0 in a group", zero_rate, setting=two_groups),
    Fault("O5", "a schedule stuck at 0", stuck_schedule, setting=warm_up),
    Fault("O6", "only weight decay moves it", only_decay_moves, setting=decaying),
    Fault("O7", "gradients are never cleared", never_cleared, setting=manual),
    Fault("O8", "no backward, or its gradients dropped", no_backward, setting=manual),
    Fault("O9", "the optimizer never steps", never_stepped, setting=written_out),
    Fault("O10", "gradients cleared between backward and step", cleared_before_step, setting=manual),
    Fault("O11", "clipped to nothing", clipped_to_nothing, setting=plain_descent),
    Fault("O12", "every step is skipped", always_skipped, setting=mixed_precision),
    Fault("O13", "the old value is written back after the step", written_back),
    Fault("O14", "re-initialised through .data in forward", rewritten_in_forward),
    Fault("O15", "a parameter made anew in forward", made_anew_in_forward),
)
