"""Errors are sums over observed values divided by their count, whatever the batches."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.metrics import (
    LOSSES,
    MaskedErrors,
    MaskedMean,
    elementwise_loss,
    errors,
    masked_mean,
    observed_error,
    r2_of_levels,
)


def explicit_mean(error: torch.Tensor, observed: torch.Tensor) -> float:
    """The definition, a target at a time."""
    means = [float(error[..., j][observed[..., j]].double().mean()) for j in range(error.shape[-1]) if observed[..., j].any()]
    return float(np.mean(means)) if means else float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3,), (7, 3), (4, 1, 2, 3)], ids=str)
def test_the_masked_mean_is_the_mean_over_targets_of_each_targets_own_mean(shape, dtype):
    torch.manual_seed(0)
    error, observed = torch.randn(shape, dtype=dtype), torch.rand(shape) > 0.4
    observed[..., 0] = True
    value = masked_mean(error, observed)
    assert value.dtype == dtype
    assert float(value) == pytest.approx(explicit_mean(error, observed), rel=1e-6)


def test_a_target_never_observed_is_left_out_and_nan_only_if_none_is():
    error = torch.tensor([[1.0, 100.0], [3.0, 200.0]])
    seen = torch.tensor([[True, False], [True, False]])
    assert float(masked_mean(error, seen)) == 2.0
    assert torch.isnan(masked_mean(error, torch.zeros_like(seen)))
    metric = MaskedErrors(2)
    metric.update(error, torch.zeros_like(error), seen)
    values = metric.compute()
    assert float(values["mse"]) == 5.0
    assert values["mse_per_target"].tolist()[0] == 5.0
    assert torch.isnan(values["mse_per_target"][1])


def test_an_unobserved_nan_touches_neither_the_loss_nor_its_gradient():
    prediction = torch.tensor([[1.0, 2.0]], requires_grad=True)
    target, observed = torch.tensor([[0.0, float("nan")]]), torch.tensor([[True, False]])
    for loss in LOSSES.values():
        value = masked_mean(loss(observed_error(prediction, target, observed)), observed)
        (gradient,) = torch.autograd.grad(value, prediction)
        assert torch.isfinite(value)
        assert gradient[0, 0] != 0
        assert gradient[0, 1] == 0


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_no_metric_depends_on_how_rows_are_cut_into_batches(data):
    n, horizon, m = (data.draw(st.integers(1, high)) for high in (12, 3, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    prediction, target = torch.randn(2, n, horizon, m, generator=generator, dtype=torch.float64)
    observed = torch.rand(n, horizon, m, generator=generator) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    cuts = sorted({0, n, *data.draw(st.lists(st.integers(0, n)))})
    parts, mean = MaskedErrors(m), MaskedMean(m)
    for start, stop in itertools.pairwise(cuts):
        parts.update(prediction[start:stop], target[start:stop], observed[start:stop])
        mean.update((prediction - target)[start:stop].square(), observed[start:stop])
    whole = errors(prediction, target, observed)
    for key, value in parts.compute().items():
        torch.testing.assert_close(value, whole[key], rtol=1e-13, atol=1e-15, equal_nan=True)
    torch.testing.assert_close(mean.compute(), whole["mse"], rtol=1e-13, atol=1e-15, equal_nan=True)
    assert float(whole["mse"]) == pytest.approx(explicit_mean((prediction - target) ** 2, observed), nan_ok=True)
    assert float(whole["mae"]) == pytest.approx(explicit_mean((prediction - target).abs(), observed), nan_ok=True)


@pytest.mark.parametrize("move", ["float", "half", "to_bfloat16", "deepcopy", "pickle"])
def test_sums_stay_float64_when_the_module_around_them_changes_its_dtype(move):
    module = torch.nn.ModuleDict({"errors": MaskedErrors(1), "mean": MaskedMean(1)})
    match move:
        case "to_bfloat16":
            module.to(torch.bfloat16)
        case "deepcopy":
            module = copy.deepcopy(module)
        case "pickle":
            module = pickle.loads(pickle.dumps(module))
        case _:
            getattr(module, move)()
    seen = torch.ones(1, 1, dtype=torch.bool)
    tiny = torch.tensor([[1.0 + 1e-9]], dtype=torch.float64)
    module["errors"].update(tiny, torch.zeros_like(tiny), seen)
    module["mean"].update(tiny, seen)
    assert float(module["errors"].compute()["mae"]) == 1.0 + 1e-9
    assert float(module["mean"].compute()) == 1.0 + 1e-9
    assert module["errors"].compute()["mae_per_target"].shape == (1,)  # torchmetrics alone would squeeze it
    module["errors"].reset()
    assert module["errors"].squares.dtype == torch.float64


def test_a_float32_model_is_measured_in_float64():
    prediction = torch.full((100_000, 1), 0.1)
    values = errors(prediction, torch.zeros_like(prediction), torch.ones_like(prediction, dtype=torch.bool))
    assert float(values["mae"]) == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_losses_are_the_textbook_ones():
    error = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros_like(error)
    for name, reference in {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}.items():
        ours, theirs = elementwise_loss(name)(error), reference(error, zeros, reduction="none")
        torch.testing.assert_close(ours, theirs)
        gradients = [torch.autograd.grad(values.sum(), error)[0] for values in (ours, theirs)]
        torch.testing.assert_close(*gradients)


def test_a_misspelt_loss_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"task.loss must be one of mse, mae, huber, got 'hubert'; did you mean huber\?"):
        elementwise_loss("hubert")


def test_levels_have_an_r2_beside_the_one_against_the_last_value():
    rng = np.random.default_rng(0)
    price = 1000 + rng.normal(size=(2, 400)).cumsum(1)
    target, last = price.T[1:, None], price.T[:-1, None]
    observed = rng.random(target.shape) < 0.9
    perfect, naive = r2_of_levels(target, target, observed, last)[0], r2_of_levels(last, target, observed, last)[1]

    assert perfect == {"r2": 1.0, "r2_against_last_value": 1.0}
    assert naive["r2"] > 0.9
    assert naive["r2_against_last_value"] == 0.0
    truth = target[..., 0][observed[..., 0]]
    by_hand = 1 - np.mean((last[..., 0][observed[..., 0]] - truth) ** 2) / np.var(truth)
    assert r2_of_levels(last, target, observed, last)[0]["r2"] == pytest.approx(by_hand)


def test_a_level_that_never_moves_or_was_never_seen_has_no_r2():
    constant, seen = np.ones((5, 1, 1)), np.ones((5, 1, 1), dtype=bool)
    assert np.isnan(list(r2_of_levels(constant, constant, seen, constant)[0].values())).all()
    assert np.isnan(list(r2_of_levels(constant, constant, ~seen, constant)[0].values())).all()
