"""Dropout and batch norms that sleep through training are named; what is held still on purpose is a fact."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:.*in eval mode.*", "ignore:.*eval mode at the start.*")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.core = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(self.backbone(x)))


class DropPath(nn.Module):
    """Somebody's own stochastic depth: no subclass of torch's dropout."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.rand(len(x), 1) > self.drop_prob
        return x * keep if self.training else x


def test_a_model_that_stays_in_evaluation_mode_is_named_before_the_first_update(regression: Any, findings: Any) -> None:
    module = regression(Net())
    module.net.eval()
    (found,) = findings(module)
    assert (found["id"], found["severity"], found["step"]) == ("evaluation-mode", "warning", 0)
    assert found["parameters"] == [name for name, _ in module.named_parameters()]
    assert found["evidence"]["module"] == "net"
    assert found["evidence"]["dropout"] == ["net.backbone.4"]
    assert found["evidence"]["norms"] == ["net.backbone.2", "net.core.1"]
    assert "Intended:" in found["message"]


def test_one_block_alone_is_named_with_its_parameters(regression: Any, findings: Any) -> None:
    module = regression(Net())
    module.net.core.eval()
    (found,) = findings(module)
    assert found["parameters"] == ["net.core.0.weight", "net.core.0.bias", "net.core.1.weight", "net.core.1.bias"]


def test_a_dropout_of_somebodys_own_counts_and_is_named_by_its_path(regression: Any, findings: Any) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), DropPath(0.1), nn.Linear(8, 1))
    net[2].eval()
    (found,) = findings(regression(net))
    assert (found["id"], found["parameters"]) == ("evaluation-mode", ["net.2"])


@pytest.mark.parametrize("onset", [3, 10])
def test_a_mode_that_is_left_off_later_is_seen_within_five_steps(onset: int, regression: Any, findings: Any) -> None:
    class Late(regression):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.global_step == onset:
                self.net.eval()

    (found,) = findings(Late(Net()), steps=onset + 6)
    assert found["id"] == "evaluation-mode"
    assert onset <= found["step"] <= onset + 5


def frozen_backbone(module: Any) -> None:
    module.net.backbone.requires_grad_(False).eval()


def frozen_norms(module: Any) -> None:
    for part in module.net.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()


def no_such_layer(module: Any) -> None:
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(0.0), nn.Linear(8, 1))
    module.net.eval()


@pytest.mark.parametrize(
    ("change", "fact"),
    [(frozen_backbone, "frozen-by-mistake"), (frozen_norms, "evaluation-mode"), (no_such_layer, "evaluation-mode")],
)
def test_what_changes_nothing_or_is_held_still_on_purpose_is_a_fact(
    change: Any, fact: str, regression: Any, findings: Any
) -> None:
    module = regression(Net())
    change(module)
    assert findings(module) == []
    module = regression(Net())
    change(module)
    found = findings(module, facts=True)
    # That a whole block is frozen is the deeper fact.
    assert [(f["id"], f["severity"]) for f in found] == [(fact, "info")]


def test_a_step_that_sets_its_own_mode_is_left_in_peace(regression: Any, findings: Any) -> None:
    class SetsModes(regression):
        """Predicts in evaluation mode after each step, and goes back when the next one begins."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.net.train()
            loss = super().training_step(batch, batch_idx)
            self.net.eval()
            return loss

    assert "evaluation-mode" not in [found["id"] for found in findings(SetsModes(Net()))]


def test_a_part_that_only_validation_calls_may_sleep(regression: Any, findings: Any) -> None:
    module = regression(Net())
    module.judge = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5))
    module.judge.requires_grad_(True).eval()
    assert [found["id"] for found in findings(module) if found["id"] == "evaluation-mode"] == []
