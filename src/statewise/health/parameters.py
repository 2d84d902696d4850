"""Who is who: every parameter of a module, its owner, its optimizer group, and the strangers an optimizer holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from statewise.health.graph.registered import in_parts, note_whole_parameters, registered


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
    # What its layer asks of the optimizer by attributes of the tensor: "weight_decay", "lr". PyTorch reads none of them.
    hints: Mapping[str, float] = field(default_factory=dict)

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
    # Parameters held more than once: the group of each time. A second optimizer is another time.
    repeated: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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
    note_whole_parameters(module)
    groups: list[GroupFact] = []
    owner: dict[int, int] = {}
    holders: dict[int, list[int]] = {}
    held: list[tuple[int, Tensor]] = []
    for number, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            groups.append(_group_fact(number, index, optimizer, group, number in scheduled))
            for tensor in group["params"]:
                owner.setdefault(id(tensor), len(groups) - 1)
                holders.setdefault(id(tensor), []).append(len(groups) - 1)
                held.append((len(groups) - 1, tensor))
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if isinstance(parameter, UninitializedParameter):
            continue
        itself = registered(parameter)
        names.setdefault(id(itself), []).append(name)
        tensors[id(itself)] = itself
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
                hints=_hints(tensor),
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
            own={local: by_key[key] for local, p in part._parameters.items() if (key := id(registered(p))) in by_key},
            contract=_contract(part),
        )
        for path, part in module.named_modules()
    )
    kinds = tuple(type(optimizer).__name__ for optimizer in optimizers)
    repeated = {by_key[key]: tuple(places) for key, places in holders.items() if key in by_key and len(places) > 1}
    return Inventory(tuple(facts), tuple(groups), strangers, modules, kinds, repeated)


class IdentityWatch:
    """Notices in microseconds that a parameter, a module or an optimizer group is no longer the same object."""

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._slots: list[dict[str, Any]] = [slots for part in module.modules() for slots in (part._parameters, part._modules)]
        self._optimizers = optimizers
        self._sharded = in_parts(module)
        self._known = self._now()

    def changed(self) -> bool:
        """Whether anything was replaced, added or removed since construction."""
        return self._now() != self._known

    def _now(self) -> list[int]:
        groups = [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]
        things = chain(chain.from_iterable(map(dict.values, self._slots)), *groups)
        return [*map(id, map(registered, things) if self._sharded else things), *map(len, self._slots)]


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


def _hints(tensor: Tensor) -> dict[str, float]:
    """`_no_weight_decay` as mamba's layers set it, `_optim` as S4's do: {"lr": ..., "weight_decay": ...}."""
    hints = {"weight_decay": 0.0} if getattr(tensor, "_no_weight_decay", False) is True else {}
    asked = getattr(tensor, "_optim", None)
    if isinstance(asked, Mapping):
        hints |= {key: float(asked[key]) for key in ("lr", "weight_decay") if isinstance(asked.get(key), (int, float))}
    return hints


def _contract(module: nn.Module) -> dict[str, tuple[str, ...]] | None:
    declare = getattr(module, "health_contract", None)
    if not callable(declare):
        return None
    return {str(kind): tuple(str(name) for name in names) for kind, names in dict(declare()).items()}
