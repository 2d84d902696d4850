"""States as trees of tensors: what a layer remembers is its own affair, what is done with it is the same for all.

A state is a tensor, or a tuple or named tuple of states, to any depth; the first axis of every tensor in it is the
batch. Nothing else is a state: no None, no number, no list.

Symbols: b batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

State = TypeVar("State")  # a tensor, or a (named) tuple of states


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, in a fixed order: that of the fields, depth first.

    Raises:
        TypeError: something in it is neither a tensor nor a tuple.
    """
    return list(_leaves(state))


def with_leaves(like: State, tensors: Sequence[Tensor]) -> State:
    """A state of the structure of `like` that holds these tensors, in the order of `leaves`.

    Raises:
        ValueError: there are more or fewer tensors than `like` has.
    """
    wanted = len(leaves(like))
    if len(tensors) != wanted:
        raise ValueError(f"this state has {wanted} tensors, got {len(tensors)}: it belongs to another model")
    return cast(State, _rebuilt(like, iter(tensors)))


def map_state(function: Callable[..., Tensor], first: State, *others: State) -> State:
    """The state whose every tensor is `function` of the tensors that stand at its place in the given states.

    Raises:
        ValueError: the states do not have the same number of tensors.
    """
    columns = [leaves(first), *(leaves(other) for other in others)]
    if any(len(column) != len(columns[0]) for column in columns):
        raise ValueError(f"states of {[len(column) for column in columns]} tensors belong to different models")
    return with_leaves(first, [function(*tensors) for tensors in zip(*columns, strict=True)])


def _leaves(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from _leaves(part)
    else:
        raise TypeError(f"a state holds tensors and tuples of them, got {type(state).__name__}")


def _rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(like, Tensor):
        return next(tensors)
    parts = [_rebuilt(part, tensors) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
