"""The tensors in whatever people hand around or keep."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# What every module carries.
MACHINERY = frozenset(vars(nn.Module()))


def attribute_leaves(value: Any) -> list[Any]:
    """What an attribute holds: objects of the user's own (a cache class) are looked into, one level deep."""
    if value is None or isinstance(value, (bool, int, float, str, nn.Module)):
        return []
    return [
        leaf for thing in tree_leaves(value) for leaf in (tree_leaves(list(vars(thing).values())) if _own(thing) else [thing])
    ]


def _own(thing: Any) -> bool:
    return not isinstance(thing, (Tensor, nn.Module, type)) and type(getattr(thing, "__dict__", None)) is dict


def tensors(values: Any) -> list[Tensor]:
    """All tensors of a structure; the frequent ones without the detour over pytree."""
    found: list[Tensor] = []
    _collect(values, found)
    return found


# Types of values that hold no tensors.
PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size})


def _collect(value: Any, found: list[Tensor]) -> None:
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        found.append(value)
    elif kind is tuple or kind is list:
        for inner in value:
            _collect(inner, found)
    elif kind is dict:
        for inner in value.values():
            _collect(inner, found)
    elif kind not in PLAIN:
        found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
