"""Models that mix, draw, keep or sum on purpose are left in peace, and so are batches of any shape."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from .conftest import Findings, Task, data, watched
from .test_behaviour_faults import Recurrent


class Normed(Task):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2))

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x).unflatten(0, x.shape[:2])


class BatchFirst(Recurrent):
    batch_first = True


class Contrastive(Task):
    """The logits are [batch, batch] by design."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, b = F.normalize(self.encode(batch[0]).mean(1)), F.normalize(self.encode(batch[0] + 0.1).mean(1))
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


class Correlation(Task):
    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 1 - F.cosine_similarity(prediction - prediction.mean(), target - target.mean(), dim=0).mean()


class BatchStatistics(Task):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)

    def encode(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x))


class Autoencoder(Task):
    """The labels of the batch are not looked at, and the loss is a sum, as the field has it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        return F.mse_loss(self.head(self.encode(x)), x, reduction="sum")


class Sampling(Task):
    """A variational bottleneck: it draws in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(8, 8)

    def encode(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + torch.randn_like(h) * self.scale(h).exp()


class Mixup(Task):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        share, order = float(np.random.default_rng(0).beta(0.4, 0.4)), torch.randperm(len(x))
        return self.loss(self(share * x + (1 - share) * x[order]), share * y + (1 - share) * y[order])


class Teacher(Task):
    """The step itself moves a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(3, 8).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for mine, taught in zip(self.teacher.parameters(), self.body[0].parameters(), strict=True):
                mine.lerp_(taught, 0.1)
        return super().training_step(batch, batch_idx) + F.mse_loss(self.encode(batch[0]), self.teacher(batch[0]))


class Reset(Task):
    """The state begins anew where a batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(3, 8, batch_first=True)
        self.h: Tensor | None = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.h = None

    def encode(self, x: Tensor) -> Tensor:
        out, h = self.body(x, self.h)
        self.h = h.detach()
        return out


class Metrics(Task):
    """A metric remembers all it has seen, and may hold on to a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.mean(loss)
        return loss


class ZeroHead(Task):
    """At the first steps the loss depends on no input: the head is zero and the learning rate too."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 4, 1.0))
        return [optimizer], [{"scheduler": rise, "interval": "step"}]


class Manual(Task):
    """Two networks and two optimizers; the loss is divided by hand, as a loop of its own has to."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(self(batch[0]), batch[1]) / 4)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.body.parameters()), torch.optim.Adam(self.head.parameters())


@pytest.mark.parametrize(
    "make",
    [Task, Normed, BatchFirst, Contrastive, Correlation, BatchStatistics, Mixup, Teacher, Reset, Metrics, ZeroHead, Manual],
)
def test_what_a_model_does_on_purpose_is_no_finding(findings: Findings, make: type[Task]) -> None:
    assert findings(make(), steps=8) == []


def test_a_summed_loss_of_an_autoencoder_and_a_sampled_bottleneck_are_facts_only(findings: Findings) -> None:
    assert [(f["id"], f["severity"]) for f in findings(Autoencoder(), steps=2)] == [("summed-loss", "info")]
    assert [(f["id"], f["severity"]) for f in findings(Sampling(), steps=2)] == [("random-in-evaluation", "info")]


def test_a_state_of_each_row_is_a_fact_where_batches_come_in_order_and_a_warning_where_they_are_shuffled(
    findings: Findings,
) -> None:
    class Carried(Reset):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.h is not None and self.h.shape[1] != len(batch[0]):
                self.h = None

    (ordered,) = findings(Carried(), data(shuffle=False), steps=2)
    (shuffled,) = findings(Carried(), data(), steps=2)
    assert (ordered["id"], ordered["severity"]) == ("leaking-state", "info")
    assert (shuffled["id"], shuffled["severity"]) == ("leaking-state", "warning")


class Record(NamedTuple):
    inputs: Tensor
    rest: dict[str, Any]


class Records(Dataset):
    """Nested rows with names and numbers that the model does not use."""

    def __init__(self, shape: str) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 44

    def __getitem__(self, row: int) -> Any:
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(row))
        rest = {"y": x.mean().reshape(1), "name": f"row {row}", "number": row, "weight": 1.0}
        return Record(x, rest) if self.shape == "named tuple" else {"inputs": x, "rest": rest}


@pytest.mark.parametrize("shape", ["named tuple", "dict"])
def test_nested_batches_with_names_are_cut_into_rows(findings: Findings, not_run: Any, shape: str) -> None:
    class Nested(Task):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, rest = (batch.inputs, batch.rest) if isinstance(batch, Record) else (batch["inputs"], batch["rest"])
            assert len(rest["name"]) == len(inputs)
            return {"loss": self.loss(self(inputs), rest["y"]), "names": rest["name"]}

    loader = DataLoader(Records(shape), 8, shuffle=True)
    assert findings(Nested(), loader) == []
    assert not {"mixed-rows", "ignored-input", "summed-loss", "fixed-batch-size"} & not_run(Nested(), loader).keys()


def test_time_first_batches_are_cut_along_the_axis_of_the_loaders_rows(findings: Findings, not_run: Any) -> None:
    class TimeFirst(Task):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.GRU(3, 8)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return self.loss(self.head(self.body(x)[0]), y)

    def collate(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x = torch.stack([row[0] for row in rows], 1)
        return x, x.mean(2, keepdim=True)

    x = torch.randn(44, 6, 3)
    loader = DataLoader(TensorDataset(x, x), 8, shuffle=True, collate_fn=collate)
    assert findings(TimeFirst(), loader) == []
    assert "mixed-rows" not in not_run(TimeFirst(), loader)


def test_a_graph_that_is_the_whole_data_set_has_one_size_by_right(findings: Findings) -> None:
    class Graph(Task):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(44) + 0.01)

        def encode(self, x: Tensor) -> Tensor:
            return torch.einsum("ij,jtd->itd", self.adjacency, self.body(x))

    # That the adjacency has as many rows is a fact; what is said of it is that it is a buffer that shapes the loss.
    assert findings(Graph(), data(batch=44), steps=3) == []
    (smaller,) = findings(Graph(), data(batch=44, drop_last=True, rows=88), steps=1)
    assert (smaller["id"], smaller["severity"]) == ("fixed-batch-size", "warning")


def test_a_probe_that_cannot_run_says_why(not_run: Any) -> None:
    class Rows:
        def __init__(self, rows: list[Any]) -> None:
            self.x, self.y = (torch.stack([row[i] for row in rows]) for i in (0, 1))

    class Opaque(Task):
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            return batch

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(self(batch.x), batch.y)

    class Uncopyable(Task):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    assert not_run(Opaque(), data(collate_fn=Rows), steps=2)["mixed-rows"] == "batch is a Rows, which cannot be cut into rows"
    assert not_run(Task(), data(batch=1), steps=2)["fixed-batch-size"] == "the batch has a single row"
    why = not_run(Uncopyable(), steps=2)
    for name in ("mixed-rows", "leaking-state", "random-in-evaluation", "ignored-input", "summed-loss", "fixed-batch-size"):
        assert why[name] == "a trial of training_step on a copy failed: TypeError: no copies"


def test_a_watched_run_ends_with_the_bits_of_an_unwatched_one() -> None:
    class Everything(Normed):
        """Draws, normalises, counts, and keeps a state in the closure of a hook."""

        def __init__(self) -> None:
            super().__init__()
            kept: list[Tensor] = []
            self.kept = kept
            self.body.register_forward_hook(lambda module, inputs, h: kept.append(h.detach().mean()) or h + sum(kept[:-1][-1:]))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) + 0 * torch.rand(()) * len(self.kept)

    def weights(policy: str) -> list[Tensor]:
        torch.manual_seed(3)
        module = Everything()
        watched(module, steps=8, policy=policy)
        return [*(p.detach().clone() for p in module.state_dict().values()), torch.stack(module.kept)]

    for one, other in zip(weights("off"), weights("warn"), strict=True):
        assert torch.equal(one, other)
