"""Batches of windows: gathered from strided views in one call, in an order that can be entered at any batch."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from statewise.choices import at_least, one_of
from statewise.data.segments.observed import unpacked


class Batch(NamedTuple):
    """Some windows. With supervision `last` there are targets for the last time step only (s = 1), with `all` s = t."""

    inputs: Tensor  # (b t f) scaled
    targets: Tensor  # (b s horizon m) scaled
    observed: Tensor  # (b s horizon m) bool: False where the target was missing, or is no target of this part


class ContiguousBatch(NamedTuple):
    """The next chunk of every stream (streams.py): as a `Batch`, and where the state of the stream does not go on."""

    inputs: Tensor  # (b t f)
    targets: Tensor  # (b s horizon m)
    observed: Tensor  # (b s horizon m) bool
    fresh: Tensor  # (b) bool: True where the rows do not follow those of the stream's chunk in the batch before


AnyBatch = Batch | ContiguousBatch


class WindowDataset(Dataset[AnyBatch]):
    """Windows over the rows of a table, as views: only a batch is ever copied.

    Args:
        inputs, targets, observed: one row for each row of the table; any strides. A flag for each target, or eight in a
            byte (`Observed.tensor`).
        target_columns: those of `targets` that count, in this order; None means all.
        starts: first input row of each window.
        fresh: of each window, for chunks in streams: the batches then are `ContiguousBatch`.
        supervision: `last` gives the targets after the last input row, `all` those after every input row.
    """

    def __init__(
        self,
        inputs: Float[Tensor, "r f"],
        targets: Float[Tensor, "r c"],
        observed: Shaped[Tensor, "r bits"],
        starts: Int[Tensor, " n"],
        *,
        window: int,
        horizon: int,
        supervision: str = "last",
        fresh: Bool[Tensor, " n"] | None = None,
        target_columns: Sequence[int] | None = None,
    ) -> None:
        at_least(1, data__window=window, data__horizon=horizon)
        one_of("data.supervision", supervision, ("last", "all"))
        rows = len(inputs)
        if len(starts) and (int(starts.min()) < 0 or int(starts.max()) > rows - window - horizon):
            raise ValueError(f"a window of {window} + {horizon} rows must lie within the {rows} rows of the table")
        self.starts, self.fresh = starts, fresh
        places = max(0, rows - window - horizon + 1)
        steps, skipped = (window, 1) if supervision == "all" else (1, window)
        self._inputs = _strided(inputs, (places, window), 0)  # (places t f)
        self._targets = _strided(targets, (places, steps, horizon), skipped)  # (places s horizon c)
        self._observed = _strided(observed, (places, steps, horizon), skipped)
        self._columns = None if target_columns is None else list(target_columns)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> AnyBatch:
        batch = self.__getitems__([index])
        return type(batch)(*(part[0] for part in batch))

    def __getitems__(self, indices: Sequence[int] | Tensor) -> AnyBatch:
        index = _tensor(indices)
        at = self.starts.index_select(0, index)
        parts = self._inputs.index_select(0, at), *self._targets_at(at)
        return Batch(*parts) if self.fresh is None else ContiguousBatch(*parts, self.fresh.index_select(0, index))

    def targets(self, indices: Sequence[int] | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Targets and observed of the windows (None: of all), without their inputs."""
        at = self.starts if indices is None else self.starts.index_select(0, _tensor(indices))
        return self._targets_at(at)

    def _targets_at(self, at: Tensor) -> tuple[Tensor, Tensor]:
        if self._columns is None:
            targets = self._targets.index_select(0, at)
        else:
            # One column after another: together they would bring all the columns between them along.
            targets = torch.stack([self._targets.select(3, column).index_select(0, at) for column in self._columns], dim=3)
        return targets, unpacked(self._observed.index_select(0, at), targets.shape[3])


class TrainingBatches(Sampler[Tensor]):
    """A batch sampler that can start inside an epoch; a subclass says in which order the windows come: `order()`.

    The last batch may be smaller; none is dropped. `len` is always the number of batches of a whole epoch: Lightning
    counts on from the batch at which a resumed epoch starts.

    Args:
        n: number of windows.
        epoch, batch: where to start; the next epoch starts at its first batch.
    """

    def __init__(self, n: int, batch_size: int, *, epoch: int = 0, batch: int = 0) -> None:
        at_least(1, data__batch_size=batch_size)
        if n < 1:
            raise ValueError("there is no window to train on, so no batch: choose another data.window or data.split")
        self.n, self.batch_size = n, batch_size
        self.epoch, self.batch = epoch, 0
        self.load_state_dict({"epoch": epoch, "batch": batch})

    @property
    def sampler(self) -> "TrainingBatches":
        """Itself: Lightning calls `set_epoch` on the `sampler` of a batch sampler, and on nothing else."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; stays where it is if that is the epoch already."""
        if epoch != self.epoch:
            self.epoch, self.batch = epoch, 0

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        # A generator: with workers off the epoch is read at the first batch, after Lightning has called set_epoch.
        first, self.batch = self.batch, 0
        order = self.order()
        for batch in range(first, len(self)):
            yield order[batch * self.batch_size : (batch + 1) * self.batch_size]

    def order(self) -> Tensor:
        """The places of all windows in this epoch."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Starts at a position; the end of an epoch is the start of the next."""
        epoch, batch = state["epoch"], state["batch"]
        if not 0 <= batch <= len(self) or epoch < 0:
            raise ValueError(
                f"there is no batch {batch} in an epoch of {len(self)} batches: resume with the data and the "
                "data.batch_size of the run that is continued"
            )
        self.epoch, self.batch = (epoch + 1, 0) if batch == len(self) else (epoch, batch)


class ShuffledBatches(TrainingBatches):
    """An order that comes from (seed, epoch) only."""

    def __init__(self, n: int, batch_size: int, *, seed: int, epoch: int = 0, batch: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"data.seed must be at least 0, got {seed}")
        self.seed = seed
        super().__init__(n, batch_size, epoch=epoch, batch=batch)

    def order(self) -> Tensor:
        """The permutation of the windows in this epoch."""
        word = int(np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)[0])
        return torch.randperm(self.n, generator=torch.Generator().manual_seed(word >> 1))


class ContiguousBatches(TrainingBatches):
    """The chunks as streams.py has put them, in every epoch: its order is already batch after batch."""

    def order(self) -> Tensor:
        return torch.arange(self.n)


class SequentialBatches(Sampler[Tensor]):
    """All windows in order; the last batch may be smaller."""

    def __init__(self, n: int, batch_size: int) -> None:
        at_least(1, data__batch_size=batch_size)
        self.n, self.batch_size = n, batch_size

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        for first in range(0, self.n, self.batch_size):
            yield torch.arange(first, min(first + self.batch_size, self.n))


class BatchLoader(DataLoader[AnyBatch]):
    """An ordinary DataLoader over ready-made batches.

    Its state is empty: the position is in the data module's state_dict. That it has one tells Lightning that an epoch
    can be resumed in its middle. Its random numbers (seeds of workers) are its own, so that making an iterator does not
    move the global generator.
    """

    def __init__(
        self,
        dataset: Dataset[AnyBatch],
        batches: Sampler[Tensor],
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=batches,  # type: ignore[arg-type]  # typed for lists; a tensor of indices works as well
            collate_fn=as_it_is,  # type: ignore[arg-type]  # typed for lists of items
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            generator=torch.Generator().manual_seed(0),
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


def as_it_is(batch: AnyBatch) -> AnyBatch:
    """Collate function: `__getitems__` has made the batch."""
    return batch


def _tensor(indices: Sequence[int] | Tensor) -> Tensor:
    return indices if isinstance(indices, Tensor) else torch.as_tensor(indices, dtype=torch.int64)


def _strided(rows: Tensor, size: tuple[int, ...], skipped: int) -> Tensor:
    """View [*size, columns] of [rows, columns]: each axis of size moves on by one row, the first row is `skipped`."""
    row, column = rows.stride()
    first = rows.storage_offset() + skipped * row
    return rows.as_strided((*size, rows.shape[1]), (row,) * len(size) + (column,), first)
