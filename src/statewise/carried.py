"""Training with carried state: what the model remembers of each stream, handed from one batch to the next.

This is backpropagation through time cut at the borders of chunks (Williams and Peng 1990, Neural Computation 2(4)): the
state crosses the border, its gradient does not. So a model can use a past that is longer than the rows it is given at once.
data/streams.py says which rows follow which; a batch of streams has a field `fresh` that says where none do.

Symbols: b batch, s supervised time steps, m targets.
"""

import inspect
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from statewise.models.state import leaves, map_state, with_leaves
from statewise.parallel.ranks import gathered, together
from statewise.parallel.shards import whole_parameters


class CarriedState:
    """The state of every stream after the latest batch, without its gradient.

    Attributes:
        leaves: its tensors in the order of models/state.py, all that a checkpoint needs; empty before the first batch.
    """

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []

    def before(self, model: nn.Module, batch: Any) -> Any:
        """The state in which each row of a batch begins: that of its stream, or the initial one where it is fresh.

        A batch of b rows goes on with the first b streams. None for a batch that is not of streams.

        Raises:
            ValueError: the model keeps no state, or a row goes on with a stream whose state is not known.
        """
        fresh = getattr(batch, "fresh", None)
        if fresh is None:
            return None
        if not self.leaves:
            require_state(model)
            if not bool(fresh.all()):
                raise ValueError(
                    "this batch of data.sampling=contiguous goes on with streams whose state is not known: begin with the "
                    "first batch of an epoch, or resume from a checkpoint that was written with this data.sampling"
                )
        # Of sharded parameters the model would make a state in parts; within its forward pass they are whole by themselves.
        with whole_parameters(model):
            initial = model.initial_state(len(fresh))  # type: ignore[operator]  # require_state has seen it
        if not self.leaves:
            return initial
        if len(self.leaves[0]) < len(fresh):
            raise ValueError(
                f"this batch has {len(fresh)} streams and the one before had {len(self.leaves[0])}: within an epoch of "
                "data.sampling=contiguous a batch can only become smaller"
            )

        def chosen(start: Tensor, kept: Tensor) -> Tensor:
            rows = fresh.view(-1, *[1] * (start.ndim - 1))  # (b 1 ...)
            return torch.where(rows, start, kept[: len(fresh)].to(start.device))

        return map_state(chosen, initial, with_leaves(initial, self.leaves))

    def keep(self, state: Any) -> None:
        """The state after a batch. Copied: a view would keep all that it was cut from, in memory and in checkpoints."""
        self.leaves = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in leaves(state)]

    @torch.no_grad()
    def pass_over(self, model: nn.Module, batch: Any, before: Any) -> None:
        """A batch that is not trained on is part of its streams all the same."""
        if before is not None:
            self.keep(model(batch.inputs, before, last_only=True)[1])

    def of_all(self) -> list[Tensor]:
        """Its tensors with the streams of all processes, one after another; every process must ask at the same moment."""
        if not together():
            return list(self.leaves)
        return [torch.cat(parts) for parts in zip(*gathered([leaf.cpu() for leaf in self.leaves]), strict=True)]

    def forget(self) -> None:
        """Before the first batch of an epoch."""
        self.leaves = []


def supervised(observed: Bool[Tensor, "b t *rest"], burn_in: int, batch: Any) -> Bool[Tensor, "b s *rest"]:
    """Which targets of the last s time steps carry loss: burn_in is for rows that begin with nothing, so for fresh ones."""
    if not burn_in:
        return observed
    fresh = getattr(batch, "fresh", None)
    if fresh is None:
        return observed[:, burn_in:]
    settled = torch.arange(observed.shape[1], device=observed.device) >= burn_in  # (t)
    rows = settled | ~fresh[:, None]  # (b t)
    return observed.logical_and(rows.view(*rows.shape, *[1] * (observed.ndim - 2)))


def require_state(model: nn.Module) -> None:
    """Refuse a model that has no state to hand on.

    Raises:
        ValueError: it has no `initial_state`, or its forward takes no `state`.
    """
    if not callable(getattr(model, "initial_state", None)) or "state" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"data.sampling=contiguous hands the model's state from batch to batch, and {type(model).__name__} has none "
            "(initial_state(batch) and forward(x, state)): use data.sampling=shuffled, or another model"
        )
