"""Faults to inject on purpose: each breaks the training of a run as people break it by accident, `fault=detach_input`.

A fault takes the finished task and spoils it. The first sentence of its docstring is what the run folder says of it, with the
fault's number in the catalogue (docs/health.md). They are written as the mistake would be: what must act in a method is a
subclass with that method, given to the task or layer as its class, so that a copy of the module is just as broken.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from statewise.choices import one_of
from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster, Layer
from statewise.task import Forecasting

Fault = Callable[[Forecasting], None]


class Injected(NamedTuple):
    """A fault that is in a run: its name (the option of the group `fault`) and a sentence."""

    name: str
    what: str


def inject(fault: Fault, task: Forecasting) -> Injected:
    """Break the task, and say how.

    Raises:
        ValueError: this fault has no place in that model, or in its precision.
    """
    fault(task)
    function = inspect.unwrap(getattr(fault, "func", fault))
    return Injected(function.__name__, " ".join(inspect.getdoc(function).split("\n\n")[0].split()))  # type: ignore[union-attr]


def detach_input(task: Forecasting, module: str = "input_proj") -> None:
    """G1: the output of the input projection is detached, so that no gradient reaches anything before it."""
    _module(task, module).register_forward_hook(_detached)


def _detached(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
    return output.detach()


def delta_as_number(task: Forecasting) -> None:
    """G1: mean(delta) is taken out of the graph as a Python number and put back as a new tensor."""
    for layer in _dense_layers(task, "delta_as_number"):
        layer.__class__ = _NumberForDelta


class _NumberForDelta(DenseSSM):
    def _step_size(self) -> Tensor:
        return self.delta.new_tensor(self.delta.mean().item())


def detached_loss(task: Forecasting) -> None:
    """G3: the loss is cut from its graph and made a new leaf, so that backward runs without an error and trains nothing."""
    task.__class__ = _DetachedLoss


class _DetachedLoss(Forecasting):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        return None if loss is None else loss.detach().requires_grad_()


def layers_in_a_list(task: Forecasting) -> None:
    """R1: the sequence layers stand in a Python list, where no optimizer, checkpoint or `.to()` sees them."""
    model = task.model
    if not isinstance(model, Forecaster):
        raise ValueError(f"fault=layers_in_a_list needs a model of layers, and {type(model).__name__} has none")
    hidden = list(model.layers)
    for i in range(len(hidden)):
        delattr(model, f"ssm_{i}")
    model.__class__ = _ListedLayers
    cast(_ListedLayers, model).hidden_layers = hidden


class _ListedLayers(Forecaster):
    hidden_layers: list[Layer]

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(self.hidden_layers)


def plain_A(task: Forecasting, parameter: str = "ssm_0.A") -> None:
    """R2: a matrix of the model is a plain tensor instead of an nn.Parameter: it shapes the loss and cannot train."""
    owner, local, tensor = _parameter(task, parameter)
    if callable(tell := getattr(owner, "no_weight_decay", None)):
        # Such a layer would not call it a parameter here either.
        exempt = {id(told) for told in tell()}
        names = [name for name, held in owner.named_parameters() if id(held) in exempt and held is not tensor]
        told = {"no_weight_decay": lambda self: [self.get_parameter(name) for name in names]}
        owner.__class__ = type(type(owner).__name__, (type(owner),), told)
    delattr(owner, local)
    setattr(owner, local, tensor.detach().clone())


def frozen_A(task: Forecasting, parameter: str = "ssm_0.A") -> None:
    """R5: one parameter of a layer that trains has requires_grad switched off."""
    _parameter(task, parameter)[2].requires_grad_(False)


def wrong_key(task: Forecasting, parameter: str = "ssm_0.A") -> None:
    """O1: parameters are looked up by names made by hand, one name is wrong, and that parameter is in no optimizer."""
    owner, local, _ = _parameter(task, parameter)
    make = task.make_optimizer

    def without_one(groups: list[dict[str, Any]]) -> Optimizer:
        forgotten = getattr(owner, local)  # by now: hardware=fsdp puts its parts in the place of parameters
        for group in groups:
            kept = [index for index, held in enumerate(group["params"]) if held is not forgotten]
            for key in ("params", "param_names", "param_reasons"):
                group[key] = [group[key][index] for index in kept]
        return make([group for group in groups if group["params"]])

    task.make_optimizer = without_one


def stuck_schedule(task: Forecasting) -> None:
    """O5: the schedule counts in other units than the loop, and the learning rate stays 0 for the whole run."""
    task.make_scheduler = _counts_runs


def _counts_runs(optimizer: Optimizer, total_steps: int | float) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: (step // total_steps) / 10)


def gradients_dropped(task: Forecasting) -> None:
    """O8: gradients are computed and never handed to the optimizer, which steps on nothing."""
    task.__class__ = _DropsGradients


class _DropsGradients(Forecasting):
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)


def written_back_A(task: Forecasting, parameter: str = "ssm_0.A") -> None:
    """O13: after each step of the optimizer the old value of one parameter is written back."""
    owner, local, _ = _parameter(task, parameter)
    make = task.make_optimizer

    def with_copies(groups: list[dict[str, Any]]) -> Optimizer:
        optimizer, kept = make(groups), getattr(owner, local)
        old: list[Tensor] = []

        def keep(*_: Any) -> None:
            old.append(kept.detach().clone())

        def write_back(*_: Any) -> None:
            kept.data.copy_(old.pop())

        optimizer.register_step_pre_hook(keep)
        optimizer.register_step_post_hook(write_back)
        return optimizer

    task.make_optimizer = with_copies


def swallowed_updates(task: Forecasting) -> None:
    """N1: the learning rate is so small that rounding swallows the updates: parameter + update is the parameter again."""
    make = task.make_optimizer

    def too_small(groups: list[dict[str, Any]]) -> Optimizer:
        optimizer = make(groups)
        for group in optimizer.param_groups:
            group["lr"] *= torch.finfo(group["params"][0].dtype).eps
        return optimizer

    task.make_optimizer = too_small


def rounded_loss(task: Forecasting) -> None:
    """N2: the loss goes from float64 to float32 and back before it is differentiated and logged."""
    dtype = next(task.parameters()).dtype
    if dtype != torch.float64:
        raise ValueError(f"fault=rounded_loss needs hardware.precision=64-true: the loss of a {dtype} model is no float64")
    task.__class__ = _RoundedLoss


class _RoundedLoss(Forecasting):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        return None if loss is None else loss.float().double()


def _module(task: Forecasting, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = {path: module for path, module in task.model.named_modules() if path}
    return modules[one_of("fault.module", name, modules)]


def _parameter(task: Forecasting, name: str) -> tuple[nn.Module, str, nn.Parameter]:
    """The module that owns a parameter, its name there, and the parameter."""
    parameters = dict(task.model.named_parameters())
    found = parameters[one_of("fault.parameter", name, parameters)]
    path, _, local = name.rpartition(".")
    return task.model.get_submodule(path), local, found


def _dense_layers(task: Forecasting, fault: str) -> list[DenseSSM]:
    layers = [module for module in task.model.modules() if isinstance(module, DenseSSM)]
    if not layers:
        raise ValueError(f"fault={fault} needs model=dense_ssm: {type(task.model).__name__} has no delta that is averaged")
    return layers
