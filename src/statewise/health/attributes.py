"""Tensors and modules that a module holds outside its parameter tree: in lists, dicts, plain objects, closures."""

import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# What every module carries: machinery, never somebody's weights.
_MACHINERY = frozenset(vars(nn.Module()))
_DEPTH = 4
_BUDGET = 20_000


@dataclass(frozen=True)
class HiddenTensor:
    """A float tensor that no `named_parameters()` lists. `name` is the path by which the module holds it."""

    name: str
    key: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    # "module": a parameter of an unregistered module; "parameter": an nn.Parameter outside the tree;
    # "tensor": a plain tensor; "buffer": registered, saved and moved, but never trained.
    kind: str
    # The module in the tree that holds it, and the hidden module in between (path and class) where there is one.
    holder: str
    attribute: str
    via: str | None = None
    via_kind: str | None = None


def scan_attributes(
    module: nn.Module, skip: frozenset[str] = frozenset(), opaque: tuple[type, ...] = ()
) -> dict[int, tuple[HiddenTensor, Tensor]]:
    """Find hidden float tensors by identity.

    `skip` names attributes of the framework's own base class and `opaque` types that are never looked into (a trainer
    knows the module and much else). Only `vars()` is read: properties of other people's objects are not run.
    """
    registered = {id(part) for part in module.modules()}
    parameters = {id(parameter) for parameter in module.parameters()}
    found: dict[int, tuple[HiddenTensor, Tensor]] = {}
    seen: set[int] = set()
    for path, part in module.named_modules():
        # A torchmetrics state is a history of the loss, never an input to it, and it is rewritten at every update.
        if any(kind.__module__.startswith("torchmetrics") for kind in type(part).__mro__):
            continue
        walker = _Walker(path, registered, parameters, found, seen, opaque)
        for attribute, value in vars(part).items():
            if attribute not in _MACHINERY and attribute not in skip:
                walker.visit(value, _join(path, attribute), attribute, _DEPTH, None, None)
        rewritten = isinstance(part, nn.modules.batchnorm._NormBase)
        for attribute, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point() and not rewritten:
                walker.keep(buffer, _join(path, attribute), attribute, "buffer", None, None)
    return found


class _Walker:
    def __init__(
        self,
        holder: str,
        registered: set[int],
        parameters: set[int],
        found: dict[int, tuple[HiddenTensor, Tensor]],
        seen: set[int],
        opaque: tuple[type, ...],
    ) -> None:
        self.holder, self.registered, self.parameters = holder, registered, parameters
        self.found, self.seen, self.opaque = found, seen, opaque

    def keep(self, tensor: Tensor, name: str, attribute: str, kind: str, via: str | None, via_kind: str | None) -> None:
        if id(tensor) in self.parameters or id(tensor) in self.found or not tensor.is_floating_point():
            return
        fact = HiddenTensor(
            name=name,
            key=id(tensor),
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            requires_grad=tensor.requires_grad,
            kind=kind,
            holder=self.holder,
            attribute=attribute,
            via=via,
            via_kind=via_kind,
        )
        self.found[id(tensor)] = (fact, tensor)

    def visit(self, value: Any, name: str, attribute: str, depth: int, via: str | None, via_kind: str | None) -> None:
        if isinstance(value, Tensor):
            kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
            self.keep(value, name, attribute, kind, via, via_kind)
            return
        if isinstance(value, (str, bytes, int, float, bool, type, torch.dtype, torch.device)) or value is None:
            return
        if id(value) in self.registered or id(value) in self.seen or isinstance(value, self.opaque):
            return
        if len(self.seen) > _BUDGET:
            return
        self.seen.add(id(value))
        if isinstance(value, nn.Module):
            for local, parameter in value.named_parameters():
                self.keep(parameter, f"{name}.{local}", attribute, "module", name, type(value).__name__)
            # A hidden module may hide more, e.g. lists of its own.
            for path, part in value.named_modules():
                for key, inner in vars(part).items():
                    if key not in _MACHINERY and depth > 0:
                        self.visit(inner, f"{name}.{_join(path, key)}", attribute, depth - 1, name, type(value).__name__)
            return
        if depth > 0:
            for label, inner in _contents(value):
                self.visit(inner, name + label, attribute, depth - 1, via, via_kind)


def _contents(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((f".args[{index}]", inner) for index, inner in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", inner) for key, inner in value.keywords.items())
        yield ".func", value.func
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for label, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f".<{label}>", cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue
    elif not isinstance(value, (types.ModuleType, torch.optim.Optimizer)):
        # vars() of a class instance; objects without a __dict__ (arrays, slots, C objects) hold nothing we can name.
        yield from ((f".{key}", inner) for key, inner in getattr(value, "__dict__", {}).items())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
