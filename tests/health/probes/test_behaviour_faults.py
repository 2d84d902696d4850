"""Models that behave as nobody meant: each is named before the first update, or as soon as weights have moved."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from .conftest import Findings, Task, data


class OverTheBatch(Task):
    def encode(self, x: Tensor) -> Tensor:
        return self.body(x) * F.softmax(self.body(x), dim=0)


class Recurrent(Task):
    """nn.GRU takes the first axis for time unless it is told."""

    batch_first = False

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(3, 8, batch_first=self.batch_first)

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x)[0]


class Mean(Task):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.mse_loss(self(x).mean(0, keepdim=True).expand_as(y), y)


class MeanInside(Task):
    def encode(self, x: Tensor) -> Tensor:
        return self.body(x).mean(0, keepdim=True).expand(len(x), -1, -1)


class ConfiguredState(Task):
    def __init__(self) -> None:
        super().__init__()
        self.h0 = torch.zeros(8, 1, 8)

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x) + self.h0


class KeptMean(Task):
    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def encode(self, x: Tensor) -> Tensor:
        h = self.body(x) + (0 if self.kept is None else self.kept)
        self.kept = h.detach().mean(0, keepdim=True)
        return h


class KeptInAClosure(Task):
    def __init__(self) -> None:
        super().__init__()
        kept: dict[str, Tensor] = {}

        def carry(module: nn.Module, inputs: Any, h: Tensor) -> Tensor:
            before = kept.get("h")
            kept["h"] = h.detach().mean(0, keepdim=True)
            return h if before is None else h + before

        self.body.register_forward_hook(carry)


class AlwaysDropout(Task):
    def encode(self, x: Tensor) -> Tensor:
        return F.dropout(self.body(x), 0.3)


class OwnMask(Task):
    def encode(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h * (torch.rand_like(h) > 0.3) / 0.7


class AlwaysNoise(Task):
    def encode(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + 0.1 * torch.randn_like(h)


class Summed(Task):
    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(prediction, target, reduction="sum")


class DividedTwice(Task):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) / 4


class Erased(Task):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.loss(self(x * 0), y)


class ZeroTarget(Task):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.loss(self(x), torch.zeros_like(y))


AT_THE_START = [
    (OverTheBatch, "mixed-rows", "warning", ""),
    (Recurrent, "mixed-rows", "warning", "body"),
    (Mean, "collapsed-batch", "warning", ""),
    (MeanInside, "collapsed-batch", "warning", ""),
    (ConfiguredState, "fixed-batch-size", "error", ""),
    (KeptMean, "leaking-state", "warning", ""),
    (KeptInAClosure, "leaking-state", "warning", "body"),
    (AlwaysDropout, "random-in-evaluation", "warning", ""),
    (OwnMask, "random-in-evaluation", "warning", ""),
    (AlwaysNoise, "random-in-evaluation", "warning", ""),
    (Summed, "summed-loss", "warning", None),
]


@pytest.mark.parametrize(
    ("make", "kind", "severity", "module"), AT_THE_START, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_model_that_misbehaves_is_named_before_the_first_update(
    findings: Findings, make: type[Task], kind: str, severity: str, module: str | None
) -> None:
    # The state sized by the configuration stops the fit at the smaller last batch: five batches come before it.
    (finding,) = findings(make(), steps=2)
    assert (finding["id"], finding["severity"], finding["step"]) == (kind, severity, 0)
    assert "Intended: " in finding["message"]
    assert finding["evidence"].get("module") == module
    if module:
        assert {name.partition(".")[0] for name in finding["parameters"]} == {module}


@pytest.mark.parametrize(
    ("make", "kind", "leaf"), [(Erased, "ignored-input", "batch[0]"), (ZeroTarget, "ignored-target", "batch[1]")]
)
def test_what_the_loss_ignores_is_named_within_five_updates(findings: Findings, make: type[Task], kind: str, leaf: str) -> None:
    (finding,) = findings(make())
    assert (finding["id"], finding["severity"]) == (kind, "warning")
    assert 1 <= finding["step"] <= 5
    assert leaf in finding["message"]


def test_a_loss_that_is_divided_by_the_accumulated_batches_twice_is_named(findings: Findings) -> None:
    (finding,) = findings(DividedTwice(), accumulate_grad_batches=4, steps=2)
    assert finding["id"] == "summed-loss"
    assert finding["evidence"]["divided"] == 4


def test_the_state_that_has_the_size_of_the_batch_is_named_with_the_error_and_the_last_batch(findings: Findings) -> None:
    (finding,) = findings(ConfiguredState(), steps=2)
    assert finding["parameters"][0] == "h0"
    assert "(RuntimeError: The size of tensor" in finding["message"]
    assert finding["evidence"]["last"] == 4
    (milder,) = findings(ConfiguredState(), data(drop_last=True), steps=2)
    assert milder["severity"] == "warning"


def test_targets_that_are_all_alike_are_a_warning_only_after_several_batches(findings: Findings) -> None:
    x = torch.randn(80, 6, 3)
    constant = DataLoader(TensorDataset(x, torch.full((80, 1), 0.5)), 8, shuffle=True)
    (finding,) = findings(Task(), constant, steps=8)
    assert (finding["id"], finding["severity"]) == ("ignored-target", "warning")
    assert finding["evidence"]["batches"] == 5
    assert findings(Task(), constant, steps=3) == []


def test_a_state_that_keeps_its_graph_is_named(findings: Findings) -> None:
    class Attached(KeptMean):
        def encode(self, x: Tensor) -> Tensor:
            h = self.body(x) + (0 if self.kept is None else self.kept)
            self.kept = h.mean(0, keepdim=True)
            return h

    (finding,) = findings(Attached(), steps=1)
    assert finding["id"] == "leaking-state"
    assert finding["evidence"]["graph_kept"]
    assert finding["parameters"][0] == "kept"
