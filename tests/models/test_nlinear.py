"""NLinear: the paper's map on a whole window, a causal filter on everything else."""

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from statewise.models.nlinear import NLinear, nlinear

CHUNKS = {"1": [1] * 40, "5": [5] * 8, "16": [16, 16, 8], "37": [37, 3]}
ACCURACY = {torch.float64: 1e-10, torch.float32: 1e-5}


def model(dtype: torch.dtype = torch.float64, **options: object) -> NLinear:
    """Three targets among four inputs, with weights as if trained."""
    torch.manual_seed(0)
    made = NLinear(**{"target_inputs": (3, 0, 1), "horizon": 2, "look_back": 6, **options}).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def assert_near(value: Tensor, exact: Tensor, bound: float) -> None:
    assert bool((value - exact).abs().max() <= bound * exact.abs().max())


def literal(made: NLinear, window: Tensor) -> Tensor:
    """The prediction of one target at a time from one window [b, look_back, f], as the paper has it: (b horizon m)."""
    outputs = []
    for j, column in enumerate(made.columns.tolist()):
        own = window[:, :, column]  # (b look_back)
        last = own[:, -1:]
        W, c = made.weight[j % len(made.weight)], made.bias[j % len(made.bias)]
        if made.relative:
            outputs.append((own - last)[:, :-1] @ W.T + c + last)
        else:
            outputs.append(own @ W.T + c)
    return torch.stack(outputs, 2)


@pytest.mark.parametrize("relative", [True, False], ids=["relative", "plain"])
@pytest.mark.parametrize("individual", [False, True], ids=["shared", "individual"])
def test_outputs_and_gradients_of_a_window_are_the_papers(individual: bool, relative: bool) -> None:
    made = model(individual=individual, relative=relative)
    x = torch.randn(5, 6, 4, dtype=torch.float64)
    y, wanted = made(x, last_only=True)[0].view(5, 2, 3), literal(made, x)
    gradients = [torch.autograd.grad(output.square().sum(), list(made.parameters())) for output in (y, wanted)]
    for value, exact in zip((y, *gradients[0]), (wanted, *gradients[1]), strict=True):
        assert_near(value, exact, 1e-13)


@pytest.mark.parametrize("relative", [True, False], ids=["relative", "plain"])
def test_within_a_long_window_every_step_sees_the_window_that_ends_there(relative: bool) -> None:
    made = model(relative=relative)
    x = torch.randn(2, 15, 4, dtype=torch.float64)
    y = made(x)[0].view(2, 15, 2, 3)
    for t in (5, 9, 14):
        assert_near(y[:, t], literal(made, x[:, t - 5 : t + 1]), 1e-13)
    assert_near(made(x, last_only=True)[0][:, 0], y[:, -1].flatten(1), 1e-13)


def test_what_lies_before_the_series_counts_as_its_value_now() -> None:
    made = model()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    before = x[:, -1:].expand(2, 3, 4)
    assert_near(made(x, last_only=True)[0].view(2, 2, 3), literal(made, torch.cat([before, x], 1)), 1e-13)


@pytest.mark.parametrize("relative", [True, False], ids=["relative", "plain"])
@pytest.mark.parametrize("cuts", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("dtype", ACCURACY, ids=["f64", "f32"])
def test_full_chunked_and_step_by_step_passes_agree(dtype: torch.dtype, cuts: list[int], relative: bool) -> None:
    made = model(dtype, relative=relative)
    x = torch.randn(3, 40, 4, dtype=dtype)
    y, end = made(x)
    state, parts = made.initial_state(3), []
    for first, last in pairwise([0, *torch.tensor(cuts).cumsum(0).tolist()]):
        part, state = made.step(x[:, first], state) if last - first == 1 else made(x[:, first:last], state)
        parts.append(part.view(3, -1, 6))
    assert_near(torch.cat(parts, 1), y, ACCURACY[dtype])
    assert torch.equal(state.past, end.past)
    assert torch.equal(state.seen, end.seen)


def test_outputs_depend_on_no_later_input_and_on_no_other_column() -> None:
    made = model()
    x = torch.randn(1, 20, 4, dtype=torch.float64)
    later, other = x.clone(), x.clone()
    later[:, 12:] += torch.randn(1, 8, 4, dtype=torch.float64)
    other[:, :, (1, 2)] += 1
    y = made(x)[0].view(20, 2, 3)
    assert torch.equal(made(later)[0].view(20, 2, 3)[:12], y[:12])
    assert not torch.equal(made(later)[0].view(20, 2, 3)[12], y[12])
    changed = made(other)[0].view(20, 2, 3)
    assert torch.equal(changed[..., :2], y[..., :2])
    assert not torch.equal(changed[..., 2], y[..., 2])


def test_a_shift_of_the_level_shifts_the_prediction_by_as_much() -> None:
    made = model()
    x = torch.randn(2, 6, 4, dtype=torch.float64)
    assert_near(made(x + 100, last_only=True)[0], made(x, last_only=True)[0] + 100, 1e-13)


def test_a_new_model_predicts_the_last_value_and_every_weight_of_it_gets_a_gradient() -> None:
    made = NLinear(target_inputs=(1, 0), horizon=3, look_back=4)
    x = torch.randn(5, 4, 2)
    y = made(x, last_only=True)[0]
    assert torch.equal(y.view(5, 3, 2), x[:, -1:, (1, 0)].expand(5, 3, 2))
    y.square().sum().backward()
    for parameter in made.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad != 0).all())


def test_the_state_holds_no_more_than_it_needs_and_belongs_to_its_batch() -> None:
    made = model()
    _, state = made(torch.randn(3, 500, 4, dtype=torch.float64))
    for part, shape in zip(state, ((3, 5, 3), (3, 5)), strict=True):
        assert part.shape == shape
        assert part.untyped_storage().nbytes() == part.numel() * 8
    x_t = torch.randn(2, 4, dtype=torch.float64)
    kept = type(state)(*(part[1:] for part in state))
    assert torch.equal(made.step(x_t, kept)[0], made.step(torch.cat([x_t[:1], x_t]), state)[0][1:])


def test_mixed_precision_does_not_round_levels_before_their_difference_is_taken() -> None:
    made = model(torch.float32)
    x = 100 + torch.randn(2, 6, 4)
    exact = made(x, last_only=True)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made(x, last_only=True)[0], exact)


def build(**changed: object) -> NLinear:
    data = {"n_features": 4, "n_outputs": 6, "target_inputs": (3, 0, 1), "targets_are_levels": True, "horizon": 2}
    return nlinear(**{**data, "look_back": 6, **changed})


def test_the_map_is_relative_to_the_last_value_of_levels_and_of_plain_values_for_changes() -> None:
    assert build().weight.shape == (1, 2, 5)
    assert build(individual=True).weight.shape == (3, 2, 5)
    assert build(targets_are_levels=False).weight.shape == (1, 2, 6)
    assert build(anchor="none").weight.shape == (1, 2, 6)
    assert build(look_back=1, anchor="none").weight.shape == (1, 2, 1)


REFUSED = {
    "a target without a past": ({"target_inputs": None}, "model=nlinear predicts each of data.targets from its own past"),
    "nothing to look back on": ({"look_back": 1}, "model.look_back must be at least 2, got 1"),
    "nothing to look at": ({"look_back": 0, "anchor": "none"}, "model.look_back must be at least 1, got 0"),
    "changes have no level": ({"targets_are_levels": False, "anchor": "last"}, "model.anchor=last is impossible here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused_in_one_line(name: str) -> None:
    changed, said = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        build(**changed)
    assert "\n" not in str(refusal.value)
