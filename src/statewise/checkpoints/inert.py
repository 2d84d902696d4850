"""A file with pickled objects, read without importing or running anything that it names.

torch's own reader for plain values does the reading. Every class and function that it does not know is handed to it as a
stand-in: a class of ours that keeps what the file says of the object (the arguments of its construction, its state) and does
nothing with it. What is kept of well-known objects is then turned into plain values; the rest is left out, and told.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

OMEGACONF = "omegaconf."
# No checkpoint needs them. They would not run here either; but the file was made to harm whoever loads it trustingly.
HARMFUL = ("os.", "posix.", "nt.", "sys.", "subprocess.", "socket.", "shutil.", "runpy.", "builtins.eval", "builtins.exec")
# What the telling names are made of.
PLUMBING = ("builtins.", "collections.", "typing.", "copyreg.", "omegaconf.base.", "omegaconf.nodes.", "numpy.")


class StandIn:
    """In the place of an object of a class that is not loaded."""

    named: ClassVar[str] = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> "StandIn":
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _dictionary(*factory: Any) -> dict[Any, Any]:
    """In the place of defaultdict, which torch refuses to fill."""
    return {}


@dataclass
class Plain:
    """What a file holds, as tensors and plain values.

    Attributes:
        names: the classes and functions that it names and torch does not load.
        left_out: what is no plain value: place in the file -> class.
    """

    value: Any
    names: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)


def names_in(path: Path) -> tuple[str, ...]:
    """The classes and functions a file names beyond those that plain torch.load takes; nothing of it is loaded.

    Raises:
        ValueError: it is no zip file of torch.save: of another program, or older than torch 1.6.
    """
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    return tuple(sorted(names, key=lambda name: (name.startswith(PLUMBING), name)))  # the telling ones first


def load_inert(path: Path, *, in_memory: bool = True) -> Plain:
    """Read a file of torch.save, with stand-ins for all that would run code.

    Raises:
        ValueError: it is no such file, or it was made to run something.
        Exception: of half a dozen types, torch's own, where it is damaged or names what torch takes from no file.
    """
    names = names_in(path)
    if harmful := [name for name in names if name.startswith(HARMFUL)]:
        raise ValueError(f"{path} names {harmful[0]}, which no checkpoint needs: it was made to run something; do not use it")
    stand_ins: list[Any] = [
        (_dictionary if name == "collections.defaultdict" else type("Named", (StandIn,), {"named": name}), name)
        for name in names
    ]
    with torch.serialization.safe_globals(stand_ins), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=not in_memory)
    found = Plain(None, names)
    found.value = _plain(content, "", found.left_out)
    return found


_NOTHING = object()  # in the place of what is left out


def _plain(value: Any, place: str, left_out: dict[str, str]) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return dict(_plain_items(value.items(), place, left_out))
    if isinstance(value, list | tuple | set):
        parts = (item for _, item in _plain_items(enumerate(value), place, left_out))
        return type(value)(parts) if type(value) in (list, set) else tuple(parts)
    if isinstance(value, StandIn):
        return _of_stand_in(value, place, left_out)
    if isinstance(value, type) and issubclass(value, StandIn):
        left_out[place] = f"class {value.named}"
        return _NOTHING
    return value


def _plain_items(items: Any, place: str, left_out: dict[str, str]) -> Iterator[tuple[Any, Any]]:
    for key, value in items:
        known = key if isinstance(key, str | int | float | bool | None) else str(_plain(key, place, {}))
        plain = _plain(value, f"{place}.{known}" if place else str(known), left_out)
        if plain is not _NOTHING:
            yield known, plain


def _of_stand_in(value: StandIn, place: str, left_out: dict[str, str]) -> Any:
    state = value.state if isinstance(value.state, Mapping) else {}
    if value.named.startswith(OMEGACONF) and "_content" in state:
        return _plain(state["_content"], place, left_out)  # a mapping, a list, or the text of an interpolation
    if value.named.startswith(OMEGACONF) and "_val" in state:
        return _plain(state["_val"], place, left_out)
    if value.named.startswith("pathlib."):
        return str(Path(*map(str, value.arguments)))
    if value.named == "argparse.Namespace":
        return _plain(state, place, left_out)
    if value.named.endswith("multiarray.scalar") and (number := _number(value)) is not None:
        return number
    if isinstance(state.get("_modules"), Mapping):
        return dict(_tensors_of_module(state, ""))
    left_out[place] = value.named
    return _NOTHING


def _number(scalar: StandIn) -> Any:
    """Of a numpy scalar: its bytes, read as its type says."""
    kind, *rest = scalar.arguments
    if not isinstance(kind, StandIn) or not rest or not isinstance(rest[0], bytes):
        return None
    dtype = np.dtype(str(kind.arguments[0]))
    return np.frombuffer(rest[0], dtype)[0].item() if dtype.kind in "biuf" else None


def _tensors_of_module(state: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    """What the state_dict of a pickled module would hold, buffers that it does not keep left out."""
    passing = state.get("_non_persistent_buffers_set") or ()
    for group in ("_parameters", "_buffers"):
        for name, tensor in (state.get(group) or {}).items():
            if isinstance(tensor, Tensor) and not (group == "_buffers" and name in passing):
                yield prefix + name, tensor.detach()
    for name, module in state["_modules"].items():
        inner = module.state if isinstance(module, StandIn) else None
        if isinstance(inner, Mapping) and isinstance(inner.get("_modules"), Mapping):
            yield from _tensors_of_module(inner, f"{prefix}{name}.")
