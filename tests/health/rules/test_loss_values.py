"""A constant for a loss, and gradients that are no numbers behind a loss that is one."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.callbacks.numerics_guard import Diverged, NumericsGuard
from statewise.health.observers import loss_values

ALL = ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]


def net(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


@pytest.fixture
def stepping(regression: Any) -> Any:
    """A task whose loss is a function of (task, prediction, target)."""

    def build(loss: Any, **options: Any) -> Any:
        class Task(regression):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                x, y = batch
                return loss(self, self(x), y)

        return Task(net(), **options)

    return build


def one_class(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(prediction, torch.zeros(len(prediction), dtype=torch.long))


def clamped(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target).clamp(min=50.0)


@pytest.mark.parametrize(("loss", "value"), [(one_class, 0.0), (clamped, 50.0)])
def test_a_loss_that_is_a_constant_is_named_at_the_fifth_step(stepping: Any, findings: Any, loss: Any, value: float) -> None:
    found = findings(stepping(loss))[0]
    assert (found["id"], found["severity"], found["step"]) == ("constant-loss", "error", 5)
    assert sorted(found["parameters"]) == sorted(ALL)
    assert found["evidence"]["loss"] == value
    assert "Intended:" in found["message"]


def test_one_that_becomes_a_constant_late_is_named_within_five_steps(stepping: Any, findings: Any) -> None:
    def loss(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(prediction, target) * (task.global_step < 10)

    found = findings(stepping(loss), steps=16)[0]
    assert (found["id"], found["step"]) == ("constant-loss", 15)


def hinge(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
    """Easily solved: the loss falls to exactly 0."""
    return torch.relu(1 - prediction).mean()


def masked_now_and_then(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target) * (task.global_step % 3 != 0)


def test_a_loss_that_falls_to_zero_or_is_masked_at_times_is_no_constant(stepping: Any, findings: Any) -> None:
    solved = findings(stepping(hinge, lr=0.1), steps=40)
    assert "constant-loss" not in {finding["id"] for finding in solved}
    assert findings(stepping(masked_now_and_then), steps=20) == []


def test_a_reward_that_is_rare_makes_no_constant(stepping: Any, findings: Any) -> None:
    rewards = [1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1]

    def loss(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
        return -(prediction * rewards[task.global_step]).mean()

    assert "constant-loss" not in {finding["id"] for finding in findings(stepping(loss), steps=len(rewards))}


def test_the_same_loss_with_gradients_is_no_constant(stepping: Any, findings: Any) -> None:
    def huge(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
        return 1e10 + F.mse_loss(prediction, target)

    assert "constant-loss" not in {finding["id"] for finding in findings(stepping(huge), steps=8)}


# -- gradients -------------------------------------------------------------------------------------------------------


def root_of_zero(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target) + torch.sqrt(0 * prediction).mean()


def test_a_gradient_that_is_no_number_is_named_with_its_operation_before_the_update(stepping: Any, findings: Any) -> None:
    (found,) = findings(stepping(root_of_zero), steps=1)
    assert (found["id"], found["severity"], found["step"]) == ("non-finite-gradient", "warning", 0)
    assert set(found["parameters"]) == set(ALL)
    assert sorted(found["parameters"][:2]) == ["net.2.bias", "net.2.weight"]
    assert found["evidence"]["operation"] == "Sqrt"
    assert "Intended:" in found["message"]


def test_one_that_comes_late_is_seen_by_what_it_leaves_behind(stepping: Any, findings: Any) -> None:
    def loss(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
        return (root_of_zero if task.global_step == 10 else clean)(task, prediction, target)

    def clean(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(prediction, target)

    (found,) = findings(stepping(loss), steps=14)
    assert (found["id"], found["severity"]) == ("non-finite-gradient", "warning")
    assert found["step"] in {10, 11}
    assert math.isfinite(found["evidence"]["loss"])


def test_three_of_twenty_are_an_error_even_where_the_loop_leaves_them_out(regression: Any, findings: Any) -> None:
    class Careful(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return (root_of_zero if self.trainer.fit_loop.total_batch_idx % 3 == 2 else self.clean)(self, self(x), y)

        def clean(self, task: Any, prediction: Tensor, target: Tensor) -> Tensor:
            return F.mse_loss(prediction, target)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if any(not torch.isfinite(parameter.grad).all() for parameter in self.parameters()):
                optimizer.zero_grad()

    found = findings(Careful(net()), steps=14)
    assert ("non-finite-gradient", "error") in {(finding["id"], finding["severity"]) for finding in found}


def test_the_guard_stops_the_run_and_health_has_said_why(stepping: Any, findings: Any, caplog: Any) -> None:
    with pytest.raises(Diverged, match="is not finite at step 1"):
        findings(stepping(root_of_zero), callbacks=(NumericsGuard(),))
    lines = [record.message for record in caplog.records if record.message.startswith("non-finite-gradient")]
    assert len(lines) == 1
    assert "sqrt" in lines[0]


def test_a_run_that_diverges_by_its_loss_is_not_blamed_on_a_gradient(stepping: Any, findings: Any) -> None:
    def infinite(task: Any, prediction: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(prediction, target) * (math.inf if task.global_step == 3 else 1.0)

    assert "non-finite-gradient" not in {finding["id"] for finding in findings(stepping(infinite), steps=6)}


@pytest.mark.parametrize(("loss", "expected"), [(clamped, "constant-loss"), (root_of_zero, "non-finite-gradient")])
def test_an_accelerator_is_asked_through_the_readings(
    stepping: Any, findings: Any, monkeypatch: pytest.MonkeyPatch, loss: Any, expected: str
) -> None:
    monkeypatch.setattr(loss_values, "_on_host", lambda tensor: False)
    found = findings(stepping(loss))
    assert expected in {finding["id"] for finding in found}
