"""What layers ask of the optimizer, parameters that it holds twice, and what is declared frozen."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from statewise.models.diagonal_ssm import DiagonalSSM
from statewise.models.forecaster import Forecaster
from statewise.optim import parameter_groups

pytestmark = pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 1))


# -- ignored-hint --------------------------------------------------------------------------------------------------------


def test_a_mark_against_weight_decay_that_the_optimizer_does_not_read_is_named(regression: Any, findings: Any) -> None:
    module = regression(net(), AdamW, weight_decay=0.1)
    module.net[1].weight._no_weight_decay = True
    (found,) = findings(module, steps=2)
    assert (found["id"], found["severity"], found["step"]) == ("ignored-hint", "warning", 0)
    assert found["parameters"] == ["net.1.weight"]
    assert "asks for no weight decay, and group 0 of the optimizer has weight_decay 0.1" in found["message"]


def test_a_learning_rate_of_its_own_that_the_optimizer_does_not_read_is_named(regression: Any, findings: Any) -> None:
    module = regression(net())
    module.net[1].bias._optim = {"lr": 1e-4, "weight_decay": 0.0}
    (found,) = findings(module, steps=2)
    assert (found["id"], found["parameters"]) == ("ignored-hint", ["net.1.bias"])
    assert found["evidence"] == {"hint": "lr", "asked": 1e-4, "given": 1e-2}


def test_a_hint_that_is_followed_says_nothing_under_a_schedule_either(regression: Any, findings: Any) -> None:
    class Follows(regression):
        def configure_optimizers(self) -> Any:
            own = self.net[1].bias
            own._optim, own._no_weight_decay = {"lr": 1e-4, "weight_decay": 0.0}, True
            rest = [p for p in self.parameters() if p is not own]
            groups = [{"params": [own], "lr": 1e-4, "weight_decay": 0.0}, {"params": rest}]
            optimizer = AdamW(groups, lr=1e-2, weight_decay=0.1)
            schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    assert findings(Follows(net())) == []


def test_our_own_groups_honour_the_mark(regression: Any, findings: Any) -> None:
    class Grouped(regression):
        def configure_optimizers(self) -> Any:
            return AdamW(parameter_groups(self, 0.1), lr=1e-2)

    module = Grouped(net())
    module.net[1].weight._no_weight_decay = True
    assert findings(module, steps=2) == []


def test_decay_on_what_a_layers_contract_exempts_is_a_fact(regression: Any, findings: Any) -> None:
    torch.manual_seed(0)
    layers = Forecaster([DiagonalSSM(d_model=8, d_state=4)], n_features=3, n_outputs=1)
    module = regression(layers, AdamW, weight_decay=0.1)
    (found,) = findings(module, steps=2, facts=True)
    assert (found["id"], found["severity"]) == ("ignored-hint", "info")
    assert set(found["parameters"]) == {f"net.ssm_0.{name}" for name in ("log_A_real", "A_imag", "log_step", "D")}

    class Grouped(regression):
        def configure_optimizers(self) -> Any:
            return AdamW(parameter_groups(self, 0.1), lr=1e-2)

    assert findings(Grouped(Forecaster([DiagonalSSM(d_model=8, d_state=4)], n_features=3, n_outputs=1)), facts=True) == []


# -- held-twice ----------------------------------------------------------------------------------------------------------


def test_a_parameter_that_stands_twice_in_a_group_is_named(regression: Any, findings: Any) -> None:
    class Twice(regression):
        def configure_optimizers(self) -> Any:
            return SGD([*self.net[1].parameters(), *self.parameters()], lr=1e-2)

    (found,) = findings(Twice(net()), steps=2)
    assert (found["id"], found["severity"], found["step"]) == ("held-twice", "warning", 0)
    assert found["parameters"] == ["net.1.weight", "net.1.bias"]


def two_optimizers(base: Any, own_backward: bool) -> Any:
    class TwoOptimizers(base):
        """Both hold the first layer."""

        def __init__(self) -> None:
            super().__init__(net())
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [Adam(self.parameters(), lr=1e-3), SGD(self.net[1].parameters(), lr=1e-3)]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            one, other = self.optimizers()
            for optimizer in (one, other):
                if optimizer is one or own_backward:
                    self.zero_grad()
                    self.manual_backward(F.mse_loss(self(x), y))
                optimizer.step()

    return TwoOptimizers()


def test_two_optimizers_on_one_gradient_are_named_and_taking_turns_is_not(regression: Any, findings: Any) -> None:
    found = [f for f in findings(two_optimizers(regression, own_backward=False), steps=10) if f["id"] == "held-twice"]
    assert [f["parameters"] for f in found] == [["net.1.weight", "net.1.bias"]]
    assert found[0]["step"] <= 6
    assert findings(two_optimizers(regression, own_backward=True), steps=10) == []


# -- frozen-but-trains ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("onset", [0, 6])
def test_what_is_thawed_once_the_fit_has_begun_is_named(onset: int, regression: Any, findings: Any) -> None:
    class Thaws(regression):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.global_step == onset:
                self.requires_grad_(True)

    module = Thaws(net())
    module.net[1].requires_grad_(False)
    (found,) = findings(module, steps=onset + 5, frozen=["net.1"])
    assert (found["id"], found["severity"]) == ("frozen-but-trains", "error")
    assert set(found["parameters"]) == {"net.1.weight", "net.1.bias"}
    assert onset <= found["step"] <= onset + 5
    assert "trainable though declared frozen" in found["message"]


def test_a_gradient_left_on_a_frozen_parameter_moves_it_and_is_named(regression: Any, findings: Any) -> None:
    class FreezesLate(regression):
        """Frozen again after a backward pass of its own, whose gradients nobody clears: the optimizer takes what it finds."""

        def optimizer_zero_grad(self, *args: Any) -> None:
            pass

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.global_step == 0:
                self.net[1].requires_grad_(True)
                self(batch[0]).sum().backward()
                self.net[1].requires_grad_(False)

    module = FreezesLate(net())
    module.net[1].requires_grad_(False)
    found = [f for f in findings(module, steps=3, frozen=["net.1"]) if f["id"] == "frozen-but-trains"]
    assert [set(f["parameters"]) for f in found] == [{"net.1.weight", "net.1.bias"}]
    assert "it moved at step 1" in found[0]["message"]


def test_a_frozen_block_in_the_optimizer_and_a_teacher_written_by_hand_are_left_in_peace(
    regression: Any, findings: Any
) -> None:
    class Teacher(regression):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                for parameter in self.net[1].parameters():
                    parameter.mul_(0.99)

    module = Teacher(net())
    module.net[1].requires_grad_(False)
    assert findings(module, frozen=["net.1"], facts=True) == []
