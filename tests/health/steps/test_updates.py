"""What an optimizer's steps do to its parameters, step by step and read late."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from statewise.health.steps.tracks import expected_update, tracks
from statewise.health.steps.updates import UpdateMonitor


def watched(optimizer: Optimizer) -> UpdateMonitor:
    names = {id(p): f"p{i}" for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    return UpdateMonitor(optimizer, names)


def steps(
    monitor: UpdateMonitor, count: int, gradient: Callable[[int, nn.Parameter], torch.Tensor | None], *, read: bool = True
) -> None:
    for step in range(count):
        for parameter in monitor.parameters:
            parameter.grad = gradient(step, parameter)
        monitor.before()
        monitor.optimizer.step()
        monitor.after()
        if read:
            monitor.flush()
    monitor.flush()


def test_reading_late_counts_the_same() -> None:
    late, prompt = (watched(SGD([nn.Parameter(torch.ones(3)) for _ in range(2)], lr=0.1)) for _ in range(2))

    def gradient(step: int, parameter: nn.Parameter) -> torch.Tensor | None:
        return None if step == 2 else torch.full((3,), float(step % 2))

    steps(prompt, 6, gradient)
    steps(late, 6, gradient, read=False)
    assert late.state_dict() == prompt.state_dict()
    assert late.ledger.zero_total.tolist() == [2, 2]
    assert late.ledger.none_total.tolist() == [1, 1]


def test_a_gradient_whose_squares_underflow_is_not_zero() -> None:
    monitor = watched(SGD([nn.Parameter(torch.ones(3))], lr=0.1))
    steps(monitor, 6, lambda *_: torch.full((3,), 1e-30))
    # The first step may take it for zero; from then on it is measured exactly.
    assert monitor.ledger.zero_total[0] <= 1
    assert monitor.ledger.zero_run[0] == 0


def test_steps_at_which_nothing_can_move_say_nothing() -> None:
    monitor = watched(SGD([nn.Parameter(torch.ones(3))], lr=0.0))
    steps(monitor, 7, lambda *_: torch.zeros(3))
    assert monitor.ledger.steps == 0
    assert monitor.lr_zero_run == [7]


def test_weight_decay_is_told_from_learning() -> None:
    monitor = watched(AdamW([nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))], lr=0.1, weight_decay=0.1))
    steps(monitor, 5, lambda _, p: torch.zeros(4) if p is monitor.parameters[0] else torch.ones(4))
    (track,) = tracks(monitor, ())
    assert (track.name, track.zero_run, track.moved_without_gradient) == ("p0", 5, True)
    assert bool(monitor.runs.decayed[0])
    assert not monitor.runs.decayed[1]


def test_momentum_after_the_last_gradient_is_not_weight_decay() -> None:
    monitor = watched(AdamW([nn.Parameter(torch.randn(4))], lr=0.1, weight_decay=0.1))
    steps(monitor, 10, lambda step, p: torch.ones(4) if step < 3 else torch.zeros(4))
    assert bool(monitor.runs.moved[0])
    assert not monitor.runs.decayed[0]


@pytest.mark.parametrize(
    ("dtype", "lr", "swallowed"),
    [(torch.bfloat16, 1e-4, True), (torch.bfloat16, 1e-1, False), (torch.float32, 1e-12, True), (torch.float32, 1e-3, False)],
)
def test_an_update_below_the_resolution_is_swallowed(dtype: torch.dtype, lr: float, swallowed: bool) -> None:
    monitor = watched(SGD([nn.Parameter(torch.ones(8, dtype=dtype))], lr=lr))
    steps(monitor, 3, lambda *_: torch.full((8,), 0.5, dtype=dtype))
    assert bool(monitor.runs.swallowed[0] >= 3) is swallowed
    expected, resolution, magnitude = expected_update(monitor, 0)
    assert expected == pytest.approx(lr * 0.5, rel=1e-2)
    assert resolution == pytest.approx(torch.finfo(dtype).eps / (1 if magnitude >= 1 else 2))


def test_adams_expected_update_is_its_lr() -> None:
    monitor = watched(Adam([nn.Parameter(torch.ones(8))], lr=0.03))
    steps(monitor, 1, lambda *_: torch.full((8,), 1e-3))
    assert expected_update(monitor, 0)[0] == pytest.approx(0.03, rel=1e-3)


def test_a_value_written_back_after_the_full_comparison_ended_is_seen_within_five_steps() -> None:
    monitor = watched(SGD([nn.Parameter(torch.randn(100)) for _ in range(30)], lr=0.1))
    steps(monitor, 40, lambda *_: torch.ones(100))
    kept = monitor.parameters[7].detach().clone()
    steps(monitor, 1, lambda *_: torch.ones(100))
    monitor.parameters[7].data.copy_(kept)
    for _ in range(5):
        steps(monitor, 1, lambda *_: torch.ones(100))
        monitor.parameters[7].data.copy_(kept)
    assert np.flatnonzero(monitor.runs.written_back >= 3).tolist() == [7]


def test_frozen_tensors_in_the_optimizer_are_not_watched() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    assert watched(SGD([nn.Parameter(torch.ones(2)), frozen], lr=0.1)).names == ("p0",)
