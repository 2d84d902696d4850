"""Operations near the loss that do not fit, in a real fit; their look-alikes are in test_softmaxes and test_broadcasts."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")


class Net(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.head = nn.Linear(3, 8), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inp(x)))


def test_a_softmax_before_cross_entropy_is_named_with_the_layer_that_gives_the_logits(regression: Any, findings: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(torch.softmax(self(x), -1), (y[:, 0] > 0).long())

    (found,) = findings(Task(Net(3)))
    assert (found["id"], found["severity"], found["step"]) == ("double-softmax", "warning", 0)
    assert sorted(found["parameters"]) == ["net.head.bias", "net.head.weight"]
    assert "Intended:" in found["message"]


def test_attention_and_cross_entropy_over_logits_are_left_alone(regression: Any, findings: Any) -> None:
    class Attention(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.inp(x))  # (b t d)
            return self.head(torch.softmax(h @ h.mT, -1) @ h)

    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self(x), (y[:, 0] > 0).long(), weight=torch.tensor([1.0, 2.0, 1.0]))

    assert findings(Task(Attention(3)), steps=12) == []


def test_a_target_of_another_shape_is_named_with_both_counts(regression: Any, findings: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.mse_loss(self(x), y.squeeze(-1))

    (found,) = findings(Task(Net(1)))
    assert (found["id"], found["severity"], found["step"]) == ("broadcast-loss", "warning", 0)
    assert "averages 8x8 values for 8 predictions" in found["message"]
    assert sorted(found["parameters"]) == ["net.head.bias", "net.head.weight"]


def test_a_pattern_that_begins_late_is_found_at_the_next_look(regression: Any, findings: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.mse_loss(self(x), y if self.global_step < 10 else y.squeeze(-1))

    (found,) = findings(Task(Net(1)), steps=16)
    assert found["id"] == "broadcast-loss"
    assert 10 <= found["step"] <= 15


def test_a_module_may_declare_it_intended(regression: Any, findings: Any) -> None:
    class Task(regression):
        def health_contract(self) -> dict[str, tuple[str, ...]]:
            return {"intended": ("broadcast-loss",)}

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return F.mse_loss(self(x), y.squeeze(-1))

    assert findings(Task(Net(1))) == []


def test_a_compiled_forward_pass_is_not_called_checked(regression: Any, findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from statewise.health.graph.walk import LossGraph

    monkeypatch.setattr(LossGraph, "compiled", property(lambda graph: True))
    from statewise.callbacks.training_health import TrainingHealth

    reports = []
    monkeypatch.setattr(TrainingHealth, "on_fit_end", lambda self, *_: reports.append(self.report()))
    findings(regression(Net(1)))
    checks = {check["name"]: check for check in reports[0]["checks"]}
    for name in ("double-softmax", "broadcast-loss", "dead-activation", "mixed-dtypes"):
        assert not checks[name]["ran"]
        assert "compiled" in checks[name]["why"]


def test_a_torch_that_shows_no_shapes_is_told_in_the_report(
    regression: Any, findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statewise.callbacks.training_health import TrainingHealth
    from statewise.health.graph import saved

    def blind(node: Any) -> Any:
        raise saved.CannotRead("torch 9.9 does not show the shapes and types")

    monkeypatch.setattr(saved, "_metadata", blind)
    reports = []
    monkeypatch.setattr(TrainingHealth, "on_fit_end", lambda self, *_: reports.append(self.report()))
    findings(regression(Net(1)))
    checks = {check["name"]: check for check in reports[0]["checks"]}
    assert checks["mixed-dtypes"] == {
        "name": "mixed-dtypes",
        "ran": False,
        "why": "torch 9.9 does not show the shapes and types",
    }
    assert checks["graph-cut"]["ran"]
