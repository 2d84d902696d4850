"""Further look-alikes in what a row is: nodes of one graph, time before batch, chunks that go on from batch to batch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from health_cases.families import BATCH
from health_cases.look_alikes.own import Own, classes, own, sequences
from health_cases.set_up import Run


class GraphNet(Own):
    """Rows are the nodes of one graph: they mix by design, their number is fixed, and every batch is the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 5)
        near = (torch.rand(250, 250) < 0.02).float()
        near = ((near + near.T) > 0).float() + torch.eye(250)
        self.register_buffer("adjacency", near / near.sum(-1, keepdim=True))
        self.register_buffer("train_mask", torch.arange(250) % 5 > 0)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        answer = self.adjacency @ self.second(torch.relu(self.adjacency @ self.first(x)))
        chosen = self.train_mask if self.training else ~self.train_mask
        return F.cross_entropy(answer[chosen], y[chosen])


def whole_graph(run: Run) -> None:
    run.batches = DataLoader(run.batches.dataset, batch_size=250)
    run.validation = DataLoader(run.batches.dataset, batch_size=250)


class TimeMajor(Own):
    """torch's recurrent layers take time first unless told otherwise, and so do these batches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(3, 12), nn.Linear(12, 1)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch  # (t b 3) (b 1)
        return F.mse_loss(self.head(self.body(x)[0][-1]), y)


def time_first(run: Run) -> None:
    def collate(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([x for x, _ in rows], 1), torch.stack([y for _, y in rows])

    data = run.batches.dataset
    run.batches = DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=collate)
    run.validation = DataLoader(data, batch_size=BATCH, collate_fn=collate)


class Stateful(Own):
    """Truncated backpropagation through time: the state goes on from batch to batch, without its gradient.

    Row i of a batch goes on where row i of the batch before ended; the order is never shuffled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(3, 12, batch_first=True), nn.Linear(12, 1)
        self.state: Tensor | None = None

    def on_train_epoch_start(self) -> None:
        self.state = None

    def on_validation_epoch_start(self) -> None:
        self.state = None

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        state = None if self.state is None or self.state.shape[1] != len(x) else self.state
        h, state = self.body(x, state)
        self.state = state.detach()
        return F.mse_loss(self.head(h[:, -1]), y)


def streams() -> tuple[Tensor, ...]:
    """Sixteen long sequences, cut into chunks of ten steps that follow one another batch by batch."""
    x = torch.randn(BATCH, 150, 3)
    y = torch.stack([x[:, max(0, t - 11) : t + 1, :1].mean(1) for t in range(9, 150, 10)], 1)  # (stream chunk 1)
    return x.unflatten(1, (15, 10)).transpose(0, 1).flatten(0, 1), y.transpose(0, 1).flatten(0, 1)


def in_order(run: Run) -> None:
    run.batches = DataLoader(run.batches.dataset, batch_size=BATCH)


SET_UPS = (
    own("X14", "a graph network on one graph", GraphNet, classes, whole_graph),
    own("X15", "a recurrent network, time first", TimeMajor, sequences, time_first),
    own("X20", "a state that goes on from batch to batch", Stateful, streams, in_order),
)
