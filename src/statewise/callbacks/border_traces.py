"""What is looked at on both sides of a border of epochs: weights, learning rates, carried states, the optimizer's memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torchmetrics import Metric

from statewise.callbacks.gradient_ledger import short_names, to_host

# Elements of one parameter that are compared, evenly spread over it.
SAMPLE = 256
# A state is a tensor with a batch and a width, or a few of them; lists that grow are somebody's notes.
MOST_LEAVES = 8
MACHINERY = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Weights:
    """Some elements of every parameter of a process, on the CPU, in float64."""

    names: list[str]
    lengths: list[int]
    values: Tensor  # (sum of lengths)

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module) -> "Weights":
        named = list(module.named_parameters())
        parts = [_sample(p) for _, p in named]
        lengths = [len(part) for part in parts]
        if len({part.device for part in parts}) > 1:
            parts = [part.cpu() for part in parts]
        values = torch.cat(parts).to("cpu", torch.float64) if parts else torch.zeros(0, dtype=torch.float64)
        return cls(short_names(named), lengths, values)

    def changes(self, later: "Weights") -> list[tuple[str, float]]:
        """Parameters whose elements differ, and by how much of their own size; the largest first."""
        if self.names != later.names or self.lengths != later.lengths or torch.equal(self.values, later.values):
            return []
        found = []
        before, after = torch.split(self.values, self.lengths), torch.split(later.values, self.lengths)
        for name, old, new in zip(self.names, before, after, strict=True):
            difference, size = float((new - old).norm()), float(torch.maximum(old.norm(), new.norm()))
            if difference > 0:
                found.append((name, difference / size))
        return sorted(found, key=lambda change: -change[1])


def _sample(parameter: Tensor) -> Tensor:
    own = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
    flat = own.reshape(-1)
    return flat[:: max(1, -(-len(flat) // SAMPLE))]


def rates(optimizers: Sequence[Optimizer]) -> list[float]:
    """The learning rate of every parameter group."""
    return [float(group.get("lr", 0.0)) for optimizer in optimizers for group in optimizer.param_groups]


def memories(optimizers: Sequence[Optimizer]) -> dict[str, list[float]]:
    """How much every optimizer remembers: parameters with a state, and the steps that the first of them has taken."""
    found = {}
    for index, optimizer in enumerate(optimizers):
        bare = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        entries = [entry for entry in bare.state.values() if entry]
        steps = float(entries[0].get("step", 0.0)) if entries else 0.0
        found[f"{type(bare).__name__} {index}" if len(optimizers) > 1 else type(bare).__name__] = [float(len(entries)), steps]
    return found


def states(module: nn.Module) -> dict[str, list[float]]:
    """The norms of what a module may carry from batch to batch, by name: tensors with two axes or more that do not train.

    Looked for are buffers, attributes that are tensors or short tuples or lists of them, and objects with `leaves`.
    """
    held: dict[str, list[Tensor]] = {}
    for path, part in module.named_modules():
        if isinstance(part, Metric | nn.modules.batchnorm._NormBase):
            continue
        own = {name: value for name, value in vars(part).items() if name not in MACHINERY}
        for name, value in [*own.items(), *part._buffers.items()]:
            tensors = list(_tensors(value))
            if 0 < len(tensors) <= MOST_LEAVES and all(_may_be_state(tensor) for tensor in tensors):
                held[f"{path}.{name}".strip(".").removeprefix("model.")] = tensors
    flat = [torch.linalg.vector_norm(tensor.detach()) for tensors in held.values() for tensor in tensors]
    norms = iter(value for values in to_host(flat) for value in values)
    return {name: [next(norms) for _ in tensors] for name, tensors in held.items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    value = getattr(value, "leaves", value) if not isinstance(value, Tensor) else value
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list) and len(value) <= MOST_LEAVES:
        for entry in value:
            yield from _tensors(entry)


def _may_be_state(tensor: Tensor) -> bool:
    return tensor.ndim >= 2 and tensor.is_floating_point() and not isinstance(tensor, nn.Parameter)


def carried(earlier: dict[str, list[float]], later: dict[str, list[float]]) -> dict[str, list[float]]:
    """Of what a module holds after a batch, what it also held before it, in another value."""
    return {
        name: norms
        for name, norms in later.items()
        if any(norms) and len(earlier.get(name, ())) == len(norms) and earlier[name] != norms
    }


def forgotten(ended: dict[str, list[float]], begins: dict[str, list[float]]) -> tuple[str, str]:
    """(name, how) of the first state that does not go on: "gone" or "zero"; empty where all of them do."""
    for name in ended:
        if not begins.get(name):
            return name, "gone"
        if not any(begins[name]):
            return name, "zero"
    return "", ""


def forgetful(ended: dict[str, list[float]], begins: dict[str, list[float]]) -> str:
    """The first optimizer that knows fewer parameters, or fewer steps, than it did."""
    for name, (entries, steps) in ended.items():
        now = begins.get(name, [0.0, 0.0])
        if now[0] < entries or now[1] < steps:
            return name
    return ""
