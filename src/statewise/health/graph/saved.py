"""What an autograd node says about its operation: shapes, types, and what it saved. Private to torch, hence in one place."""

from typing import Any

import torch
from torch import Tensor

# What changes where numbers stand or how they are stored, not what they are.
RESHAPING = frozenset(
    [
        "View",
        "UnsafeView",
        "Reshape",
        "ReshapeAlias",
        "Alias",
        "Permute",
        "Transpose",
        "T",
        "NumpyT",
        "MT",
        "Unsqueeze",
        "Squeeze",
        "Slice",
        "Select",
        "Narrow",
        "Expand",
        "Clone",
        "ToCopy",
        "Index",
        "Split",
        "SplitWithSizes",
        "Unbind",
        "Contiguous",
        "Cat",
        "Stack",
    ]
)


class CannotRead(RuntimeError):
    """This torch does not show it; the text says what is missing."""


def operation(node: Any) -> str:
    """The name of the operation without torch's suffix: "Relu" for ReluBackward0."""
    return str(node.name()).partition("Backward")[0]


def shape(node: Any, output: int = 0) -> tuple[int, ...] | None:
    """The shape of what the operation gave out; None where that is no single shape (nested tensors, unused outputs)."""
    metadata = _metadata(node)
    try:
        return tuple(int(length) for length in metadata[output].shape)
    except (IndexError, RuntimeError, TypeError):
        return None


def dtype(node: Any, output: int = 0) -> torch.dtype | None:
    """The type of what the operation gave out."""
    metadata = _metadata(node)
    try:
        found = metadata[output].dtype
    except (IndexError, RuntimeError):
        return None
    return found if isinstance(found, torch.dtype) else None


def saved(node: Any, name: str) -> Tensor | None:
    """A tensor that was saved for the backward pass; None where hooks (checkpointing, offloading) keep it elsewhere.

    Asking for it through such hooks would run a checkpointed forward pass again: this looks only at what lies there.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None:
        raise CannotRead(f"torch {torch.__version__} does not show what {node.name()} saved as {name}")
    try:
        hooked, value = raw.unpack_hook is not None, raw.data
    except AttributeError:
        raise CannotRead(f"torch {torch.__version__} does not say whether hooks keep what {node.name()} saved") from None
    except RuntimeError:  # freed
        return None
    return value if not hooked and isinstance(value, Tensor) else None


def number(node: Any, name: str) -> Any:
    """A saved number, None where there is no such."""
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None


def _metadata(node: Any) -> Any:
    metadata = getattr(node, "_input_metadata", None)
    if metadata is None:
        raise CannotRead(f"torch {torch.__version__} does not show the shapes and types of {node.name()}")
    return metadata
