"""What a fault is, what a run is made of, and the changes to a block that most faults are made with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from health_cases.families import Places, Task


@dataclass
class Plan:
    """What a user's script holds beside the task. A fault may change any of it before the fit begins."""

    family: str
    seed: int
    data: TensorDataset
    # Which of the two ways to make the mistake.
    variant: int = 0
    # The optimizer step at which the fault begins.
    onset: int = 0
    batches: DataLoader | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: list[L.Callback] = field(default_factory=list)
    # What the user declares to training health, where contracts are given.
    health: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """One fault of the catalogue.

    `setting` is what the healthy twin shares with the faulty run: precision, a manual loop, another layer. It returns the
    task to go on with. `inject` then does the harm. Both look at the plan's variant: the second one is a second way to
    make the same mistake, in manual optimisation where the mistake is one of the loop.
    """

    id: str
    title: str
    inject: Callable[[Task, Plan], None]
    setting: Callable[[Task, Plan], Task] | None = None


def active(task: Task, plan: Plan) -> Callable[[], bool]:
    """Has the fault begun?"""
    return lambda: task.global_step >= plan.onset


def always() -> bool:
    return True


def change_input(block: nn.Module, change: Callable[[nn.Module, Tensor], Tensor], when: Callable[[], bool] = always) -> None:
    """What stands before the block in a user's forward: `h = change(h)`."""

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return (change(module, inputs[0]), *inputs[1:]) if when() else None

    block.register_forward_pre_hook(before)


def change_output(block: nn.Module, change: Callable[[nn.Module, Tensor], Tensor], when: Callable[[], bool] = always) -> None:
    """What stands at the end of the block: `return change(h)`, beside its state where it has one."""

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not when():
            return None
        return (change(module, output[0]), *output[1:]) if isinstance(output, tuple) else change(module, output)

    block.register_forward_hook(after)


def around(block: nn.Module, call: Callable[..., Any]) -> None:
    """What stands around the call of the block: `call(block_as_it_was, *inputs)` replaces `block(*inputs)`."""
    parent = type(block)

    def whole(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        return call(lambda *i, **o: parent.__call__(self, *i, **o), *inputs, **options)

    block.__class__ = type(parent.__name__, (parent,), {"__call__": whole})


def last_size(plan: Plan) -> int:
    """The size of the last axis of what the core block puts out: 6 columns of a picture, the width else."""
    return 6 if plan.family == "conv" else 12


def first_parameter(block: nn.Module) -> tuple[nn.Module, str]:
    """The block's first parameter: the module that owns it and its name there."""
    name = next(name for name, _ in block.named_parameters())
    path, _, local = name.rpartition(".")
    return block.get_submodule(path), local


def replace(task: Task, place: str, block: nn.Module) -> None:
    """Put another block at this place of the model (`head` of `Places`)."""
    path, _, local = getattr(task.places, place).rpartition(".")
    setattr(task.net.get_submodule(path), local, block)


def with_net(net: nn.Module, task: Task, places: Places) -> Task:
    """The same task with another model."""
    return Task(net, task.criterion, places, task.lr)


def manual(task: Task, plan: Plan) -> Task:
    """The same loop written out, for the second variant only."""
    if plan.variant == 1:
        write_out(task)
    return task


def write_out(
    task: Task,
    backward: Callable[[Task, Tensor, torch.optim.Optimizer], None] | None = None,
    step: Callable[[Task, torch.optim.Optimizer], None] | None = None,
    clear: bool = True,
) -> None:
    """Manual optimisation: clear, backward, step; a fault gives its own backward or step."""

    def training_step(self: Task, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        x, y = batch
        loss = self.loss(self.predict(x), y)
        self.log("train/loss", loss)
        if clear:
            optimizer.zero_grad()
        if backward is None:
            self.manual_backward(loss)
        else:
            backward(self, loss, optimizer)
        if step is None:
            optimizer.step()
        else:
            step(self, optimizer)

    task.__class__ = type(type(task).__name__, (type(task),), {"training_step": training_step})
    task.automatic_optimization = False
