"""A backbone that is frozen on purpose, and the two ways to get it wrong (D15); unused layers by their reason (D10)."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from statewise.callbacks.gradient_norms import GradientNorms


class FineTuned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
        self.backbone.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


@pytest.mark.parametrize("pattern", ["net.backbone.*", "backbone.*", "backbone"])
def test_a_backbone_frozen_as_declared_raises_no_alarm_and_its_missing_gradients_no_error(
    pattern: str, regression: Any, findings: Any
) -> None:
    norms = GradientNorms(every_n_steps=1)
    assert findings(regression(FineTuned()), frozen=[pattern], facts=True, callbacks=(norms,)) == []
    backbone = {"net.backbone.1.weight", "net.backbone.1.bias", "net.backbone.3.weight", "net.backbone.3.bias"}
    assert set(norms.none) in ({*backbone}, set())


def test_a_backbone_bias_left_trainable_by_mistake_is_named(regression: Any, findings: Any) -> None:
    module = regression(FineTuned())
    module.net.backbone[1].bias.requires_grad_(True)
    (found,) = findings(module, frozen=["backbone.*"], callbacks=(GradientNorms(every_n_steps=1),))
    assert (found["id"], found["severity"], found["step"]) == ("frozen-but-trains", "error", 0)
    assert found["parameters"] == ["net.backbone.1.bias"]
    assert "trainable though declared frozen" in found["message"]


def test_a_head_weight_frozen_by_mistake_is_named(regression: Any, findings: Any) -> None:
    module = regression(FineTuned())
    module.net.head[1].weight.requires_grad_(False)
    (found,) = findings(module, frozen=["backbone.*"], callbacks=(GradientNorms(every_n_steps=1),))
    assert (found["id"], found["severity"], found["step"]) == ("frozen-by-mistake", "warning", 0)
    assert found["parameters"] == ["net.head.1.weight"]


@pytest.mark.parametrize(
    ("key", "pattern", "nearest"),
    [("frozen", "bakbone.*", "backbone"), ("constants", "net.tabel", "net.table"), ("conditional", "*.haed", "head")],
)
def test_a_misspelt_pattern_is_an_error_with_the_nearest_name(
    key: str, pattern: str, nearest: str, regression: Any, findings: Any
) -> None:
    module = regression(FineTuned())
    module.net.register_buffer("table", torch.ones(2))
    (found,) = findings(module, steps=1, **{key: [pattern]})
    assert (found["id"], found["severity"], found["step"]) == ("pattern-matches-nothing", "error", 0)
    assert found["evidence"] == {"key": f"health.{key}", "pattern": pattern, "nearest": nearest}


class Idle(nn.Module):
    """One layer that forward never calls, and one whose output it drops."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.never, self.dropped = nn.Linear(8, 8), nn.Linear(8, 8)
        self.body, self.head = nn.Linear(18, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1)))
        self.dropped(h)
        return self.head(h)


def test_an_unused_layer_is_named_with_the_reason_for_which_it_is_unused(regression: Any, findings: Any) -> None:
    found = {f["id"]: f for f in findings(regression(Idle()), steps=21)}
    assert set(found) == {"unused", "graph-cut"}
    assert set(found["unused"]["parameters"]) == {"net.never.weight", "net.never.bias"}
    assert "not called" in found["unused"]["message"]
    assert set(found["graph-cut"]["parameters"]) == {"net.dropped.weight", "net.dropped.bias"}
    assert "not called" not in found["graph-cut"]["message"]
    assert found["graph-cut"]["step"] <= 5
    assert found["unused"]["step"] <= 20
