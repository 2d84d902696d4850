"""A schedule that keeps the learning rate at 0 is named before the first step; warm-ups and ends are left in peace."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from statewise.health.setting import Schedule, Setting
from statewise.health.steps.schedule import CannotForesee, forecast

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches.*"),
    pytest.mark.filterwarnings("ignore:.*GPU available.*"),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 1))


def scheduled(regression: Any, make: Callable[[Any], LRScheduler], interval: str = "step") -> Any:
    module = regression(net())

    def configure_optimizers() -> dict[str, Any]:
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), "interval": interval}}

    module.configure_optimizers = configure_optimizers
    return module


@pytest.mark.parametrize(
    ("make", "interval", "severity", "says"),
    [
        (lambda o: LambdaLR(o, lambda step: (step // 1000) / 10), "step", "error", "in all 24 steps"),
        # An epoch has eight batches.
        (lambda o: LambdaLR(o, lambda step: float(step >= 2)), "epoch", "error", "until step 16 of 24"),
        (lambda o: LinearLR(o, 1.0, 0.0, total_iters=4), "step", "error", "reaches lr 0 at step 4 of 24"),
        (lambda o: CosineAnnealingLR(o, T_max=3), "step", "warning", "every 3 of 24 steps"),
    ],
)
def test_a_schedule_that_stops_training_is_named_before_the_first_step(
    make: Any, interval: str, severity: str, says: str, regression: Any, findings: Any
) -> None:
    (finding,) = findings(scheduled(regression, make, interval), steps=24, trainer={"max_epochs": 3})
    assert (finding["id"], finding["severity"], finding["step"]) == ("zero-learning-rate", severity, 0)
    assert says in finding["message"]
    assert len(finding["parameters"]) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda o: LambdaLR(o, lambda step: min(step / 10, 1.0)),
        lambda o: CosineAnnealingLR(o, T_max=24),
        lambda o: LinearLR(o, 1.0, 0.0, total_iters=23),
        lambda o: SequentialLR(o, [LinearLR(o, 1e-3, 1.0, 5), CosineAnnealingLR(o, 19)], milestones=[5]),
    ],
)
def test_warm_ups_and_schedules_that_end_at_zero_are_left_in_peace(make: Any, regression: Any, findings: Any) -> None:
    assert findings(scheduled(regression, make), steps=24, trainer={"max_epochs": 3}) == []


def setting(planned: int | None = 100) -> Setting:
    return Setting(planned_steps=planned, planned_epochs=2, batches_per_epoch=50)


def test_looking_ahead_leaves_the_scheduler_and_its_optimizer_alone() -> None:
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    before = (scheduler.last_epoch, optimizer.param_groups[0]["lr"])
    ahead = forecast(Schedule(scheduler, 0, "step"), setting(), module, 0)
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == before
    assert ahead.rates[:, 0].tolist() == pytest.approx([0.1 / (1 + step) for step in range(100)])


def test_a_long_schedule_is_sampled_where_any_step_can_be_computed() -> None:
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    ahead = forecast(Schedule(CosineAnnealingLR(optimizer, 1_000_000), 0, "step"), setting(1_000_000), module, 0)
    assert len(ahead.starts) <= 300
    assert ahead.rates[0, 0] == 0.1
    assert ahead.rates[-1, 0] < 1e-9


@pytest.mark.parametrize(
    ("make", "planned", "interval", "why"),
    [
        (lambda o: ReduceLROnPlateau(o), 100, "epoch", "follows a metric"),
        (lambda o: LambdaLR(o, lambda step: 1.0), None, "step", "number of steps is not known"),
        (lambda o: LambdaLR(o, lambda step: 1.0), 100, "", "steps the scheduler by itself"),
        (lambda o: LambdaLR(o, lambda step: 1 / (step - 50)), 100, "step", "could not be stepped"),
    ],
)
def test_what_cannot_be_foreseen_says_why(make: Any, planned: int | None, interval: str, why: str) -> None:
    module = net()
    schedule = Schedule(make(torch.optim.Adam(module.parameters())), 0, interval)
    with pytest.raises(CannotForesee, match=why):
        forecast(schedule, setting(planned), module, 0)
