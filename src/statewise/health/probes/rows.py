"""The rows of a batch of any shape: how many there are, some of them alone, one of them in place of all."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)


class NoRows(ValueError):
    """Why a batch cannot be cut into rows."""


def mapped(batch: Any, change: Callable[[Any], Any], entries: int | None = None) -> Any:
    """The batch with `change` applied to its tensors, arrays and whatever else holds nothing; its own structure kept.

    A list or tuple of as many plain values as `entries` says is one value with that many rows.
    """
    if isinstance(batch, PackedSequence):
        return change(batch)
    if isinstance(batch, Mapping):
        new = {key: mapped(value, change, entries) for key, value in batch.items()}
        if type(batch) is dict:
            return new
        twin: Any = copy.copy(batch)
        for key, value in new.items():
            twin[key] = value
        return twin
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change, entries) for value in batch))
    if type(batch) in (list, tuple):
        if entries is not None and len(batch) == entries and all(isinstance(value, _PLAIN) for value in batch):
            return change(batch)
        return type(batch)(mapped(value, change, entries) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        twin = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(twin, field.name, mapped(getattr(batch, field.name), change, entries))
        return twin
    return change(batch)


def leaves(batch: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """What `mapped` would change, in the same order, with the expression that reads it."""
    if isinstance(batch, PackedSequence):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, f"{name}[{key!r}]")
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        for key, value in zip(batch._fields, batch, strict=True):
            yield from leaves(value, f"{name}.{key}")
    elif type(batch) in (list, tuple):
        for index, value in enumerate(batch):
            yield from leaves(value, f"{name}[{index}]")
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from leaves(getattr(batch, field.name), f"{name}.{field.name}")
    else:
        yield name, batch


def fresh(batch: Any) -> Any:
    """A batch of its own, so that what a step writes into it stays there."""
    return mapped(batch, lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else copy.copy(leaf))


def row_count(batch: Any, axis: int = 0) -> int:
    """The rows of a batch: the length of `axis`, which all its tensors must share.

    Raises:
        NoRows: with the reason.
    """
    tensors = [(name, leaf) for name, leaf in leaves(batch) if isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim > 0]
    for name, leaf in leaves(batch):
        if isinstance(leaf, Tensor) and (leaf.is_nested or leaf.layout is not torch.strided):
            raise NoRows(f"{name} is no ordinary tensor")
        if not isinstance(leaf, (Tensor, np.ndarray, *_PLAIN)):
            raise NoRows(f"{name} is a {type(leaf).__name__}, which cannot be cut into rows")
    if not tensors:
        raise NoRows("the batch holds no tensors")
    if any(leaf.ndim <= axis for _, leaf in tensors):
        raise NoRows(f"not every tensor has an axis {axis}")
    lengths = {name: int(leaf.shape[axis]) for name, leaf in tensors}
    first, rows = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != rows:
            raise NoRows(f"{first} has {rows} rows and {name} has {length}")
    if rows < 2:
        raise NoRows("the batch has a single row")
    for name, leaf in leaves(batch):
        if isinstance(leaf, int) and not isinstance(leaf, bool) and leaf == rows:
            raise NoRows(f"{name} may say how many rows there are")
    for name, leaf in tensors:
        if leaf.ndim == 2 and leaf.shape[0] == leaf.shape[1] == rows:
            raise NoRows(f"{name} has the {rows} rows on both axes")
    return rows


def chosen(batch: Any, rows: slice, count: int, axis: int = 0) -> Any:
    """Some rows of it, as a batch. Lists with a plain entry for each of the `count` rows are cut too."""
    index = (slice(None),) * axis + (rows,)

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, (list, tuple)):
            return leaf[rows]
        if isinstance(leaf, Tensor):
            return (leaf[index] if leaf.ndim > 0 else leaf).detach().clone()
        if isinstance(leaf, np.ndarray) and leaf.ndim > 0:
            return leaf[index].copy()
        return copy.copy(leaf)

    return mapped(batch, cut, count)


def repeated(batch: Any, number: int, row: int) -> Any:
    """The batch with one row of its leaf `number` in place of all rows of that leaf."""
    count = iter(range(len(list(leaves(batch)))))

    def change(leaf: Any) -> Any:
        here = next(count) == number
        if isinstance(leaf, Tensor):
            return leaf[row : row + 1].expand_as(leaf).clone() if here else leaf.detach().clone()
        return copy.copy(leaf)

    return mapped(batch, change)


def odd_row(leaf: Tensor) -> int | None:
    """A row that differs from others; None where all are the same."""
    flat = leaf.detach().reshape(len(leaf), -1)
    unlike = (flat != flat[:1]).any(dim=1)
    return 0 if bool(unlike.any()) else None
