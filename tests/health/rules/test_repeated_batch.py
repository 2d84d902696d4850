"""Data that come again where new ones are meant are named; full batches, dummies and chance are left in peace."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from statewise.health import HealthMonitor
from statewise.health.setting import Setting


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 1))


def named(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Targets that are all alike are another finding's matter."""
    return [finding for finding in found if finding["id"] == "repeated-batch"]


class Stream(IterableDataset):
    """Batches by number: which one comes is what `order` says."""

    def __init__(self, order: Any, width: int = 3) -> None:
        self.order, self.width = order, width

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in self.order():
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(8, 6, self.width, generator=generator)
            yield x, torch.sin(x[..., :3].sum((1, 2)))[:, None]


def stream(order: Any) -> DataLoader:
    return DataLoader(Stream(order), batch_size=None)


def test_one_batch_again_and_again_is_named_at_the_fourth(regression: Any, findings: Any) -> None:
    (found,) = findings(regression(net()), steps=8, loader=stream(lambda: itertools.repeat(0)))
    assert (found["id"], found["severity"], found["step"]) == ("repeated-batch", "warning", 3)
    assert found["evidence"] == {"run": 4}


def test_a_batch_that_gets_stuck_later_is_named_within_five_steps(regression: Any, findings: Any) -> None:
    loader = stream(lambda: (min(number, 10) for number in itertools.count()))
    (found,) = findings(regression(net()), steps=18, loader=loader)
    assert found["id"] == "repeated-batch"
    assert 10 < found["step"] <= 15


def test_a_step_that_keeps_its_first_batch_is_named_though_the_loader_goes_on(regression: Any, findings: Any) -> None:
    class KeepsFirst(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if not hasattr(self, "first"):
                self.first = batch
            x, y = self.first
            return F.mse_loss(self(x), y)

    (found,) = findings(KeepsFirst(net()), steps=6)
    assert (found["id"], found["evidence"]) == ("repeated-batch", {"stale": 4})
    assert found["step"] <= 5


def test_large_batches_are_compared_whole_before_anything_is_said(regression: Any, findings: Any) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(400, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mean(1))

    def order() -> Iterator[int]:
        return itertools.repeat(0)

    (found,) = findings(regression(Wide()), loader=DataLoader(Stream(order, width=400), batch_size=None))
    assert (found["id"], found["step"]) == ("repeated-batch", 3)

    class Sparse(IterableDataset):
        """A margin of zeros in which any sample of elements may lie."""

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for number in itertools.count():
                x = torch.zeros(8, 6, 400)
                x[:, 0, number % 400] = torch.arange(8.0) + number + 1
                yield x, torch.zeros(8, 1)

    assert named(findings(regression(Wide()), loader=DataLoader(Sparse(), batch_size=None), steps=12)) == []


def watched(batches: list[Tensor], setting: Setting) -> list[str]:
    """A plain loop, told what a Trainer would know of its loader."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    monitor = HealthMonitor()
    monitor.start(module, [optimizer], setting, 0)
    for step, x in enumerate(batches):
        monitor.begin_batch(x, step)
        loss = module(x).square().mean()
        monitor.backward(loss)
        loss.backward()
        monitor.after_backward()
        monitor.before_update(optimizer, step)
        optimizer.step()
        monitor.after_update(optimizer, step + 1, read=True)
        optimizer.zero_grad()
        monitor.end_batch(step + 1)
    monitor.close()
    return [f.message for f in monitor.findings if f.id == "repeated-batch"]


def batch(number: int) -> Tensor:
    return torch.randn(8, 6, 3, generator=torch.Generator().manual_seed(number))


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_all_draw_the_same_are_named(workers: int) -> None:
    batches = [batch(number) for number in range(4) for _ in range(workers)]
    (message,) = watched(batches[: 2 * workers], Setting(workers=workers))
    assert f"comes {workers} times, as often as the loader has workers" in message
    assert watched([batch(number) for number in range(4 * workers)], Setting(workers=workers)) == []


def test_a_pair_of_equal_batches_says_nothing_without_workers() -> None:
    assert watched([batch(number) for number in range(6) for _ in range(2)], Setting()) == []


class Points(IterableDataset):
    """Collocation points: the whole data set in one batch, an epoch long."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield batch(0), torch.zeros(8, 1)


def same_rows() -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(64, 6, 3), torch.zeros(64, 1)), batch_size=8)


def full_batch() -> DataLoader:
    return DataLoader(TensorDataset(batch(0), torch.zeros(8, 1)), batch_size=8)


@pytest.mark.parametrize("make", [same_rows, full_batch, lambda: DataLoader(Points(), batch_size=None)])
def test_loops_that_need_no_new_data_are_left_in_peace(make: Any, regression: Any, findings: Any) -> None:
    assert named(findings(regression(net()), loader=make(), steps=9, trainer={"max_epochs": 20})) == []


def test_overfitting_on_purpose_is_left_in_peace(regression: Any, findings: Any) -> None:
    assert findings(regression(net()), steps=9, trainer={"overfit_batches": 2}) == []


def test_lbfgs_may_see_one_batch_again(regression: Any, findings: Any) -> None:
    module = regression(net(), torch.optim.LBFGS, lr=0.1, max_iter=2)
    assert findings(module, loader=stream(lambda: itertools.repeat(0))) == []


def test_fixed_inputs_beside_new_batches_are_left_in_peace(regression: Any, findings: Any) -> None:
    class Graph(regression):
        """Node features that never change; a batch only says which of them count."""

        def __init__(self) -> None:
            super().__init__(net())
            self.register_buffer("nodes", batch(5))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.mse_loss(self(self.nodes) * x.mean((1, 2))[:, None], y)

    assert named(findings(Graph(), steps=9)) == []
