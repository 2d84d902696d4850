"""A schedule is what it says at every step of the optimizer, and a resumed run goes on in it."""

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from statewise.optim import adam, parameter_groups
from statewise.schedules import constant, cosine, onecycle, warmup_cosine


def rates(schedule, total, **arguments):
    optimizer = adam(parameter_groups(nn.Linear(1, 1)), lr=2.0)
    scheduler = schedule(optimizer, total, **arguments)
    used = []
    for _ in range(total):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


def test_warm_up_and_cosine_have_the_values_of_their_formula():
    used = rates(warmup_cosine, 14, warmup_steps=4)
    assert used[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert used[9] == pytest.approx(1.0)  # half way down
    assert used[13] == pytest.approx(1.0 + math.cos(math.pi * 9 / 10))
    ending = rates(warmup_cosine, 1000, warmup_steps=0, final_fraction=0.25)
    assert ending[0] == 2.0
    assert ending[-1] == pytest.approx(0.5, rel=1e-4)


def test_the_constant_schedule_is_constant_after_its_warm_up():
    assert rates(constant, 5) == [2.0] * 5
    assert rates(constant, 5, warmup_steps=2) == [1.0, 2.0, 2.0, 2.0, 2.0]


@given(total=st.integers(1, 300), warmup=st.integers(0, 400), end=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_no_step_of_a_run_has_a_learning_rate_of_zero_or_above_the_full_one(total, warmup, end):
    optimizer = adam(parameter_groups(nn.Linear(1, 1)), lr=1.0)
    factor = warmup_cosine(optimizer, total, warmup_steps=warmup, final_fraction=end).lr_lambdas[0]
    assert all(0.0 < factor(step) <= 1.0 for step in range(total))
    assert all(factor(step) == pytest.approx(end, abs=1e-12) for step in (total + warmup, 10 * total + warmup))


def test_a_warm_up_as_long_as_the_run_is_shortened_to_a_tenth_and_said_so(caplog):
    with caplog.at_level(logging.WARNING):
        used = rates(warmup_cosine, 20, warmup_steps=100)
    assert used[:3] == pytest.approx([1.0, 2.0, 2.0])
    assert "warmup_steps=100 is as long as the run of 20 steps: the warm-up is shortened to 2" in caplog.text


@pytest.mark.parametrize(
    ("total", "arguments", "message"),
    [
        (math.inf, {}, "needs a known length: set trainer.max_epochs"),
        (10, {"warmup_steps": -1}, "scheduler.warmup_steps must be at least 0, got -1"),
        (10, {"final_fraction": 1.5}, "scheduler.final_fraction must be from 0 to 1, got 1.5"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(total, arguments, message):
    with pytest.raises(ValueError, match=message):
        warmup_cosine(adam(parameter_groups(nn.Linear(1, 1))), total, **arguments)


def test_a_resumed_run_follows_the_schedule_it_plans_anew():
    optimizer = adam(parameter_groups(nn.Linear(1, 1)), lr=1.0)
    short = warmup_cosine(optimizer, 10, warmup_steps=0)
    optimizer.step()
    short.step()
    longer_optimizer = adam(parameter_groups(nn.Linear(1, 1)), lr=1.0)
    longer = warmup_cosine(longer_optimizer, 20, warmup_steps=0)
    longer.load_state_dict(short.state_dict())
    longer_optimizer.step()
    longer.step()
    assert longer.get_last_lr()[0] == pytest.approx(0.5 * (1 + math.cos(math.pi * 2 / 20)))


def test_the_cosine_is_the_warm_up_and_cosine_without_its_warm_up():
    assert rates(cosine, 9, final_fraction=0.5) == rates(warmup_cosine, 9, warmup_steps=0, final_fraction=0.5)


def test_one_cycle_is_that_of_torch_with_the_full_rate_at_its_top():
    def theirs(optimizer, total):
        return OneCycleLR(optimizer, max_lr=2.0, total_steps=total)

    assert rates(onecycle, 20) == rates(theirs, 20)
    assert max(rates(onecycle, 20)) == pytest.approx(2.0)


def test_one_cycle_moves_the_first_beta_against_the_rate():
    optimizer = adam(parameter_groups(nn.Linear(1, 1)), lr=2.0)
    onecycle(optimizer, 20)
    assert optimizer.param_groups[0]["betas"][0] == 0.95
    still = adam(parameter_groups(nn.Linear(1, 1)), lr=2.0)
    onecycle(still, 20, cycle_momentum=False)
    assert still.param_groups[0]["betas"][0] == 0.9


@pytest.mark.parametrize("stop", [1, 6, 7, 19])
def test_one_cycle_goes_on_where_it_was(stop):
    whole = rates(onecycle, 20)
    optimizer = adam(parameter_groups(nn.Linear(1, 1)), lr=2.0)
    scheduler = onecycle(optimizer, 20)
    for _ in range(stop):
        optimizer.step()
        scheduler.step()
    resumed = adam(parameter_groups(nn.Linear(1, 1)), lr=2.0)
    going_on = onecycle(resumed, 20)
    resumed.load_state_dict(optimizer.state_dict())
    going_on.load_state_dict(scheduler.state_dict())
    used = []
    for _ in range(stop, 20):
        used.append(resumed.param_groups[0]["lr"])
        resumed.step()
        going_on.step()
    assert used == whole[stop:]


def test_one_cycle_planned_anew_over_a_longer_run_does_not_end_at_the_old_length():
    optimizer = adam(parameter_groups(nn.Linear(1, 1)))
    short = onecycle(optimizer, 10)
    for _ in range(10):
        optimizer.step()
        short.step()
    longer = onecycle(adam(parameter_groups(nn.Linear(1, 1))), 20)
    longer.load_state_dict(short.state_dict())
    for _ in range(10):
        longer.optimizer.step()
        longer.step()
    with pytest.raises(ValueError, match="Tried to step 21 times"):
        longer.step()


@pytest.mark.parametrize(
    ("total", "arguments", "message"),
    [
        (math.inf, {}, "scheduler=onecycle needs a known length"),
        (100, {"pct_start": 1.0}, "scheduler.pct_start must be between 0 and 1, both excluded, got 1.0"),
        (100, {"div_factor": 0.5}, "scheduler.div_factor must be a number of at least 1, got 0.5"),
        (10, {"pct_start": 0.1}, "scheduler.pct_start=0.1 of a run of 10 steps leaves no step in which the rate rises"),
    ],
)
def test_a_cycle_that_cannot_be_is_refused(total, arguments, message):
    with pytest.raises(ValueError, match=message):
        onecycle(adam(parameter_groups(nn.Linear(1, 1))), total, **arguments)


@pytest.mark.parametrize("schedule", [constant, cosine, onecycle, warmup_cosine])
def test_a_schedule_saves_plain_values_only(schedule, tmp_path):
    state = schedule(adam(parameter_groups(nn.Linear(1, 1))), 200).state_dict()
    torch.save(state, tmp_path / "state")
    assert torch.load(tmp_path / "state") == state
