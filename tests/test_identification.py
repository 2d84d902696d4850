import math

import numpy as np
import pytest
import torch

from statewise.data.datamodule import WindowsDataModule
from statewise.data.datasets import LTI, AirQuality
from statewise.data.generators.synthetic import kalman_gain, kalman_predictions, linear_system, simulate
from statewise.identification import LinearPredictor, Scaling, identification_figures, identify, linear_predictor
from statewise.models.dense_ssm import dense_ssm

INPUTS, OUTPUTS = [0, 1], [2, 3, 4, 5]
LINEAR = {
    "d_model": 12, "expand": 1, "d_state": 8, "n_layers": 1, "norm": "none", "residual": False,
    "activation": "none", "glu": False, "anchor": "none",
}  # fmt: skip


def exact_predictor(system, features: Scaling, targets: Scaling, seed: int, width: int = 12) -> LinearPredictor:
    """The Kalman predictor as the weights of a linear forecaster, in a random basis, on scaled inputs and targets."""
    rng = np.random.default_rng(seed)
    gain, _ = kalman_gain(system)
    T = rng.standard_normal((8, 8))
    back = np.linalg.inv(T)
    W_in, W_out = rng.standard_normal((width, 6)), rng.standard_normal((4, width))
    # x^_(t+1) = (A - K C) x^_t + [B, K] (u_t, y_t), and (u, y) = scale * z + mean.
    into = np.hstack([system.B, gain])
    return LinearPredictor(
        A_bar=T @ (system.A - gain @ system.C) @ back,
        B_bar=T @ into @ np.diag(features.scale) @ np.linalg.pinv(W_in),
        C=np.linalg.pinv(W_out) @ np.diag(1 / targets.scale) @ system.C @ back,
        W_in=W_in,
        b_in=W_in @ (features.mean / features.scale),
        W_out=W_out,
        b_out=-targets.mean / targets.scale,
    )


@pytest.fixture(scope="module")
def system():
    return linear_system(seed=0)


@pytest.fixture
def scaled():
    rng = np.random.default_rng(0)
    features = Scaling(rng.standard_normal(6), rng.uniform(0.3, 3, 6))
    return features, Scaling(rng.standard_normal(4), rng.uniform(0.3, 3, 4))


def figures(predictor, system, scaled, steps: int = 500) -> dict[str, float]:
    features, targets = scaled
    u, _ = simulate(system, steps, seed=2)
    return identify(predictor, system, input_columns=INPUTS, output_columns=OUTPUTS, features=features, targets=targets, u=u)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_exact_predictor_in_any_basis_has_no_error(system, scaled, seed):
    found = figures(exact_predictor(system, *scaled, seed), system, scaled)
    assert set(found) == {"eigenvalue_error", "markov_error", "simulation_nrmse"}
    assert all(type(value) is float and value < 1e-9 for value in found.values())


def test_the_features_may_stand_in_any_order(system, scaled):
    features, targets = scaled
    order = np.array([3, 0, 5, 1, 2, 4])
    exact = exact_predictor(system, features, targets, seed=0)
    moved = LinearPredictor(**{**vars(exact), "W_in": exact.W_in[:, order]})
    place = np.argsort(order)
    found = identify(
        moved,
        system,
        input_columns=place[INPUTS].tolist(),
        output_columns=place[OUTPUTS].tolist(),
        features=Scaling(features.mean[order], features.scale[order]),
        targets=targets,
        u=simulate(system, 500, seed=2)[0],
    )
    assert max(found.values()) < 1e-9


def test_the_raw_transition_is_far_from_that_of_the_system(system, scaled):
    # What a comparison without closing the loop would show, even for the perfect predictor.
    raw = np.linalg.eigvals(exact_predictor(system, *scaled, seed=0).A_bar)
    true = np.linalg.eigvals(system.A)
    assert max(np.abs(raw - value).min() for value in true) > 0.1


@pytest.mark.parametrize("part", ["A_bar", "B_bar", "C"])
def test_an_error_of_one_percent_shows_in_the_figures(system, scaled, part):
    exact = exact_predictor(system, *scaled, seed=0)
    off = LinearPredictor(**{**vars(exact), part: getattr(exact, part) * 1.01})
    found = figures(off, system, scaled)
    assert 1e-3 < found["eigenvalue_error"] < 0.1
    assert 1e-3 < found["markov_error"] < 0.2
    assert 1e-3 < found["simulation_nrmse"] < 0.3


def test_a_wrong_bias_shows_in_the_simulation_only(system, scaled):
    exact = exact_predictor(system, *scaled, seed=0)
    found = figures(LinearPredictor(**{**vars(exact), "b_out": exact.b_out + 0.1}), system, scaled)
    assert found["eigenvalue_error"] < 1e-9
    assert found["markov_error"] < 1e-9
    assert found["simulation_nrmse"] > 1e-2


def test_the_markov_error_is_relative(system, scaled):
    features, targets = scaled
    exact = exact_predictor(system, features, targets, seed=0)
    # Twice the gain from u, the loop through y untouched: every Markov parameter is twice as large.
    doubled = Scaling(features.mean, features.scale * np.array([0.5, 0.5, 1, 1, 1, 1]))
    found = identify(
        exact,
        system,
        input_columns=INPUTS,
        output_columns=OUTPUTS,
        features=doubled,
        targets=targets,
        u=simulate(system, 100, seed=2)[0],
    )
    assert found["markov_error"] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("factor", [30.0, 1e6, math.nan, math.inf])
def test_a_hopeless_model_has_infinite_or_large_errors_and_no_exception(system, scaled, factor):
    exact = exact_predictor(system, *scaled, seed=0)
    found = figures(LinearPredictor(**{**vars(exact), "A_bar": exact.A_bar * factor}), system, scaled)
    assert all(value > 1 for value in found.values())


def linear_data(**keys) -> LTI:
    data = LTI(window=16, steps=2_000, batch_size=64, **keys)
    data.setup()
    return data


def forecaster(data: WindowsDataModule, **changes):
    torch.manual_seed(0)
    model = dense_ssm(
        n_features=data.n_features,
        n_outputs=data.n_targets * data.horizon,
        target_inputs=data.target_inputs,
        targets_are_levels=data.targets_are_levels,
        horizon=data.horizon,
        **{**LINEAR, **changes},
    )
    return model.double()


def test_a_forecaster_that_is_the_kalman_predictor_is_recognised():
    data = linear_data()
    statistics = Scaling(data.scaler.mean[0], data.scaler.scale[0])
    targets = Scaling(statistics.mean[2:], statistics.scale[2:])
    exact = exact_predictor(data.system, statistics, targets, seed=3)
    model = forecaster(data)
    with torch.no_grad():
        layer = model.layers[0]
        layer.delta.fill_(0.5)  # scales B only
        layer.A.copy_(torch.tensor(exact.A_bar))
        layer.B.copy_(torch.tensor(exact.B_bar) / 0.5)
        layer.C.copy_(torch.tensor(exact.C))
        model.input_proj.weight.copy_(torch.tensor(exact.W_in))
        model.input_proj.bias.copy_(torch.tensor(exact.b_in))
        model.output_proj.weight.copy_(torch.tensor(exact.W_out))
        model.output_proj.bias.copy_(torch.tensor(exact.b_out))
    found = identification_figures(model, data)
    assert found is not None
    assert max(found.values()) < 1e-8
    # And its predictions are those of the filter, so the weights mean what the figures say they mean.
    rows = data.source().table.frame.to_numpy()
    with torch.no_grad():
        predicted = model(torch.tensor((rows - statistics.mean) / statistics.scale)[None])[0][0].numpy()
    best = kalman_predictions(data.system, rows[:, :2], rows[:, 2:])
    np.testing.assert_allclose((predicted * targets.scale + targets.mean)[:-1], best[1:], atol=1e-9)


@pytest.mark.parametrize("discretization", ["direct", "zoh"])
def test_the_matrices_read_from_a_forecaster_reproduce_it(discretization):
    data = linear_data()
    model = forecaster(data, discretization=discretization)
    read = linear_predictor(model)
    assert read is not None
    z = torch.randn(1, 20, data.n_features, dtype=torch.float64)
    h, predicted = np.zeros(8), []
    for z_t in z[0].numpy():
        h = read.A_bar @ h + read.B_bar @ (read.W_in @ z_t + read.b_in)
        predicted.append(read.W_out @ read.C @ h + read.b_out)
    with torch.no_grad():
        np.testing.assert_allclose(model(z)[0][0].numpy(), predicted, atol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 2}, {"norm": "layer"}, {"activation": "gelu"}, {"glu": True}, {"residual": True}, {"skip": True},
        {"linear_skip": 2}, {"anchor": "last"}, {"dropout": 0.1}, {"d_state": 7},
    ],
    ids=str,
)  # fmt: skip
def test_any_other_model_has_no_figures(changes):
    data = linear_data()
    assert identification_figures(forecaster(data), data) is not None
    assert identification_figures(forecaster(data, **changes), data) is None


def test_other_data_and_longer_horizons_have_no_figures():
    longer = linear_data(horizon=2)
    assert identification_figures(forecaster(longer), longer) is None
    measured = AirQuality()
    measured.setup()
    assert identification_figures(forecaster(measured), measured) is None
    data = linear_data()
    assert identification_figures(torch.nn.Linear(6, 4), data) is None
