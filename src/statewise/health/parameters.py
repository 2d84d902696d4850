"""Who is who: every parameter of a module, its owner, its optimizer group, and the strangers an optimizer holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer


@dataclass(frozen=True)
class ParameterFact:
    """One registered parameter. `key` is its identity: names may be shared or change, tensors may not."""

    name: str
    aliases: tuple[str, ...]
    key: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    module: str
    local: str
    # Index into Inventory.groups, None where no optimizer holds it.
    group: int | None

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def trainable(self) -> bool:
        """Whether gradients are asked for."""
        return self.requires_grad


@dataclass(frozen=True)
class GroupFact:
    """One parameter group of one optimizer."""

    optimizer: int
    index: int
    name: str
    kind: str
    lr: float
    # The lr a scheduler starts from; None without a scheduler.
    initial_lr: float | None
    weight_decay: float
    tensors: int

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"group {self.index} ({self.name})" if self.name else f"group {self.index}"


@dataclass(frozen=True)
class Stranger:
    """A tensor that an optimizer holds although no parameter of the module is that tensor."""

    key: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    group: int


@dataclass(frozen=True)
class ModuleFact:
    """One module: its class, its own parameters (local name to full name) and what it declares about itself."""

    path: str
    kind: str
    own: dict[str, str]
    contract: dict[str, tuple[str, ...]] | None


@dataclass(frozen=True)
class Inventory:
    """The parameters, optimizer groups and modules of a run at one moment."""

    parameters: tuple[ParameterFact, ...]
    groups: tuple[GroupFact, ...]
    strangers: tuple[Stranger, ...]
    modules: tuple[ModuleFact, ...]
    optimizers: tuple[str, ...]

    def find(self, name: str) -> ParameterFact | None:
        """The parameter of that name, whichever of its aliases it is."""
        for fact in self.parameters:
            if name == fact.name or name in fact.aliases:
                return fact
        return None

    @property
    def trainable(self) -> tuple[ParameterFact, ...]:
        """Those that ask for gradients."""
        return tuple(fact for fact in self.parameters if fact.trainable)

    def of_optimizer(self, optimizer: int) -> tuple[ParameterFact, ...]:
        """Those that this optimizer holds."""
        return tuple(f for f in self.parameters if f.group is not None and self.groups[f.group].optimizer == optimizer)


def take_inventory(module: nn.Module, optimizers: Sequence[Optimizer], scheduled: frozenset[int]) -> Inventory:
    """Read the module and its optimizers. `scheduled` holds the indices of optimizers that have a scheduler."""
    groups: list[GroupFact] = []
    owner: dict[int, int] = {}
    held: list[tuple[int, Tensor]] = []
    for number, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            groups.append(_group_fact(number, index, optimizer, group, number in scheduled))
            for tensor in group["params"]:
                owner.setdefault(id(tensor), len(groups) - 1)
                held.append((len(groups) - 1, tensor))
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if isinstance(parameter, UninitializedParameter):
            continue
        names.setdefault(id(parameter), []).append(name)
        tensors[id(parameter)] = parameter
    facts = []
    for key, tensor in tensors.items():
        path, _, local = names[key][0].rpartition(".")
        facts.append(
            ParameterFact(
                name=names[key][0],
                aliases=tuple(names[key][1:]),
                key=key,
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                requires_grad=tensor.requires_grad,
                module=path,
                local=local,
                group=owner.get(key),
            )
        )
    by_key = {fact.key: fact.name for fact in facts}
    strangers = tuple(
        Stranger(key=id(tensor), shape=tuple(tensor.shape), dtype=tensor.dtype, group=group)
        for group, tensor in held
        if id(tensor) not in by_key and not isinstance(tensor, UninitializedParameter)
    )
    modules = tuple(
        ModuleFact(
            path=path,
            kind=type(part).__name__,
            own={local: by_key[id(p)] for local, p in part._parameters.items() if p is not None and id(p) in by_key},
            contract=_contract(part),
        )
        for path, part in module.named_modules()
    )
    kinds = tuple(type(optimizer).__name__ for optimizer in optimizers)
    return Inventory(tuple(facts), tuple(groups), strangers, modules, kinds)


class IdentityWatch:
    """Notices in microseconds that a parameter, a module or an optimizer group is no longer the same object."""

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._slots: list[tuple[dict[str, Any], str, int]] = []
        for part in module.modules():
            self._slots += [(part._parameters, name, id(value)) for name, value in part._parameters.items()]
            self._slots += [(part._modules, name, id(value)) for name, value in part._modules.items()]
        self._sizes = [(part._parameters, part._modules) for part in module.modules()]
        self._counts = [len(parameters) + len(modules) for parameters, modules in self._sizes]
        self._groups = optimizers
        self._held = self._hold()

    def _hold(self) -> list[int]:
        return [id(tensor) for optimizer in self._groups for g in optimizer.param_groups for tensor in g["params"]]

    def changed(self) -> bool:
        """Whether anything was replaced, added or removed since construction."""
        if any(id(slots.get(name)) != key for slots, name, key in self._slots):
            return True
        if any(len(p) + len(m) != n for (p, m), n in zip(self._sizes, self._counts, strict=True)):
            return True
        return self._hold() != self._held


def _group_fact(optimizer: int, index: int, owner: Optimizer, group: dict[str, Any], scheduled: bool) -> GroupFact:
    initial = group.get("initial_lr")
    return GroupFact(
        optimizer=optimizer,
        index=index,
        name=str(group.get("name", "")),
        kind=type(owner).__name__,
        lr=float(group.get("lr", float("nan"))),
        initial_lr=float(initial) if scheduled and initial is not None else None,
        weight_decay=float(group.get("weight_decay", 0.0) or 0.0),
        tensors=len(group["params"]),
    )


def _contract(module: nn.Module) -> dict[str, tuple[str, ...]] | None:
    declare = getattr(module, "health_contract", None)
    if not callable(declare):
        return None
    return {str(kind): tuple(str(name) for name in names) for kind, names in dict(declare()).items()}
