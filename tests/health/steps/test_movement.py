"""How far a module has come, block by block, as plain values that survive a restart."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from statewise.health import HealthMonitor
from statewise.health.setting import Setting
from statewise.health.steps.movement import block_of


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(40, 40), nn.Linear(40, 1)


def trained(monitor: HealthMonitor, module: nn.Module, steps: int, first: int = 0) -> None:
    """Plain descent on the second layer only: the first one's gradient is zero."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    monitor.start(module, [optimizer], Setting(), first)
    for step in range(first, first + steps):
        monitor.begin_batch(None, step)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.shape[0] == 1 else torch.zeros_like(parameter)
        monitor.before_update(optimizer, step)
        optimizer.step()
        monitor.after_update(optimizer, step + 1, read=True)
        monitor.end_batch(step + 1)


def test_a_block_is_the_first_two_parts_of_a_path() -> None:
    assert [block_of(n) for n in ("model.ssm_0.A", "net.0.weight", "a.b.c.d", "w")] == ["model.ssm_0", "net.0", "a.b", "w"]


def test_what_moved_and_how_far_is_known_at_any_moment() -> None:
    module, monitor = Two(), HealthMonitor()
    began = [parameter.detach().clone() for parameter in module.second.parameters()]
    trained(monitor, module, 10)
    movement = monitor.movement()
    assert movement.step == 10
    assert movement.since_start["first"] == 0.0
    ended = [parameter.detach() for parameter in module.second.parameters()]
    distance = sum(((p - q) ** 2).sum() for p, q in zip(ended, began, strict=True))
    size = sum((q**2).sum() for q in began)
    assert movement.since_start["second"] == pytest.approx(float((distance / size) ** 0.5), rel=1e-5)
    assert movement.update_ratio["first"] == 0.0
    assert movement.gradient_norm["second"] == pytest.approx(41**0.5)
    assert movement.share_moving == 0.5


def test_the_record_is_short_plain_and_goes_on_after_a_restart(tmp_path: Any) -> None:
    module, monitor = Two(), HealthMonitor()
    trained(monitor, module, 60)
    monitor.close()
    points = json.loads(json.dumps(monitor.report()["movement"]))
    steps = [point["step"] for point in points]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 60)
    assert len(steps) < 40
    torch.save(monitor.state_dict(), tmp_path / "state.pt")
    again = HealthMonitor()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    trained(again, module, 5, first=60)
    assert again.report()["movement"][: len(points)] == points
    assert again.movement().since_start["second"] > points[-1]["since_start"]["second"]
