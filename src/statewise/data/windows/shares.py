"""Index arithmetic only: which rows of every batch a process trains or evaluates on.

A batch is that of all processes together, so that the number of batches, their order and every position in a run do not
depend on how many there are. Each takes rows that stand together, the first processes one more where they do not come out
even. Streams stay where they are: their borders come from the full batch, also in a last batch that is smaller.

              5 rows         2 rows of 5      2 of 5, streams
    process 0  0 1 2          0                0 1
    process 1  3 4            1                padding

A process without a row gets one that counts nowhere, padding: it has to call its model as often as the others do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from statewise.data.windows.batches import AnyBatch, ContiguousBatch, SequentialBatches, TrainingBatches, WindowDataset


@dataclass(frozen=True)
class Share:
    """The part of one process.

    Args:
        rank, processes: which of how many.
        streams: how many are side by side in a batch of data.sampling=contiguous; None where the rows of a batch are free.
    """

    rank: int = 0
    processes: int = 1
    streams: int | None = None

    def rows(self, size: int) -> slice:
        """Its rows of a batch of so many; they may be none."""
        borders = size if self.streams is None else self.streams
        length, longer = divmod(borders, self.processes)
        first = self.rank * length + min(self.rank, longer)
        last = first + length + (self.rank < longer)
        return slice(min(first, size), min(last, size))

    def of(self, indices: Tensor) -> Tensor:
        """Its part of the windows of a batch, or one that says it is padding: below zero."""
        own = indices[self.rows(len(indices))]
        return own if len(own) else -1 - indices[:1]


class SharedBatches(Sampler[Tensor]):
    """The batches of a sampler, of each the share of this process."""

    def __init__(self, batches: TrainingBatches | SequentialBatches, share: Share) -> None:
        self.batches, self.share = batches, share
        self.batch_size = batches.batch_size

    @property
    def sampler(self) -> TrainingBatches | SequentialBatches:
        """What Lightning tells the epoch."""
        return self.batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return (self.share.of(indices) for indices in self.batches)


class PaddedWindows(Dataset[AnyBatch]):
    """Windows, and padding where an index is below zero: a real window whose targets are not observed, in no stream."""

    def __init__(self, windows: WindowDataset) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: Tensor) -> AnyBatch:
        if int(indices[0]) >= 0:
            return self.windows.__getitems__(indices)
        batch = self.windows.__getitems__(-1 - indices)
        unobserved = torch.zeros_like(batch.observed)
        if isinstance(batch, ContiguousBatch):
            return batch._replace(observed=unobserved, fresh=torch.ones_like(batch.fresh))
        return batch._replace(observed=unobserved)
