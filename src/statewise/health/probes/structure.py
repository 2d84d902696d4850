"""The tensors in whatever people hand around or keep."""

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


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
    if isinstance(values, Tensor):
        return [values]
    if values is None or isinstance(values, (bool, int, float, str)):
        return []
    if type(values) in (tuple, list):
        return [tensor for value in values for tensor in tensors(value)]
    if type(values) is dict:
        return [tensor for value in values.values() for tensor in tensors(value)]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
