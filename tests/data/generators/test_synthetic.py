import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.generators.synthetic import kalman_gain, kalman_predictions, linear_system, recurrence, simulate

STEPS, TRAIN, TEST = 20_000, 14_000, 16_000


@pytest.fixture(scope="module")
def record():
    system = linear_system(seed=0)
    u, y = simulate(system, STEPS, seed=1)
    return system, u, y, kalman_predictions(system, u, y)


def ridge_arx_error(u: np.ndarray, y: np.ndarray, order: int, strength: float) -> float:
    """The test error of the closed-form linear prediction of y_t from the last `order` rows of u and y."""
    z = np.hstack([u, y])
    past = np.hstack([z[order - lag : len(z) - lag] for lag in range(1, order + 1)])
    future = y[order:]
    X, Y = past[: TRAIN - order], future[: TRAIN - order]
    weights = np.linalg.solve(X.T @ X + strength * np.eye(X.shape[1]), X.T @ Y)
    return float(np.mean((future - past @ weights)[TEST - order :] ** 2))


def test_the_optimal_predictor_beats_every_linear_fit_of_the_past(record):
    _, u, y, predictions = record
    optimal = np.mean((y - predictions)[TEST:] ** 2)
    fits = {(k, s): ridge_arx_error(u, y, k, s) for k, s in ((4, 1.0), (12, 1e-6), (12, 1.0), (12, 100.0), (20, 1.0))}
    assert optimal < min(fits.values())
    # Close to the best of them: it is the floor and not something below it.
    assert min(fits.values()) < 1.03 * optimal


def test_the_errors_of_the_optimal_predictor_have_the_covariance_that_theory_says(record):
    system, _, y, predictions = record
    _, innovations = kalman_gain(system)
    errors = (y - predictions)[100:]
    found = errors.T @ errors / len(errors)
    assert np.abs(found - innovations).max() < 0.04 * np.diag(innovations).max()


def test_the_errors_of_the_optimal_predictor_are_white(record):
    _, _, y, predictions = record
    errors = (y - predictions)[100:] / (y - predictions)[100:].std(axis=0)
    for lag in (1, 2, 5):
        correlation = errors[lag:].T @ errors[:-lag] / len(errors)
        assert np.abs(correlation).max() < 4.5 / np.sqrt(len(errors))


def test_the_setting_is_that_of_the_reference_figures(record):
    _, _, y, predictions = record
    persistence = np.mean((y[TEST:] - y[TEST - 1 : -1]) ** 2)
    assert 0.015 < np.mean((y - predictions)[TEST:] ** 2) < 0.019
    assert 2 < persistence < 6


def test_a_prediction_uses_nothing_from_its_own_row_or_later(record):
    system, u, y, predictions = record
    other_u, other_y = u[:200].copy(), y[:200].copy()
    other_u[100:], other_y[100:] = 1e3, -1e3
    changed = kalman_predictions(system, other_u, other_y)
    np.testing.assert_array_equal(changed[:101], predictions[:101])
    assert np.abs(changed[101] - predictions[101]).max() > 1


def test_without_noise_on_the_states_the_simulation_is_predicted_up_to_the_measurement_noise():
    system = linear_system(seed=3, process_noise=0.0, measurement_noise=1e-6)
    u, y = simulate(system, 300, seed=0)
    assert np.abs(y - kalman_predictions(system, u, y)).max() < 1e-5


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_every_system_is_stable_scaled_and_drawn_from_its_seed(seed, states, inputs, outputs):
    system = linear_system(seed, states=states, inputs=inputs, outputs=outputs)
    assert (system.A.shape, system.B.shape, system.C.shape) == ((states, states), (states, inputs), (outputs, states))
    moduli = np.abs(np.linalg.eigvals(system.A))
    assert moduli.max() < 0.97 + 1e-9
    assert moduli.min() > 0.6 - 1e-9
    response, variance = system.B, 0.0
    for _ in range(2_000):
        variance += np.sum((system.C @ response) ** 2) / outputs
        response = system.A @ response
    assert variance == pytest.approx(3.0, rel=1e-6)
    again = linear_system(seed, states=states, inputs=inputs, outputs=outputs)
    np.testing.assert_array_equal(system.A, again.A)


def test_the_modes_of_the_default_system_are_told_apart():
    for seed in range(10):
        eigenvalues = np.linalg.eigvals(linear_system(seed).A)
        distance = np.abs(eigenvalues[:, None] - eigenvalues) + np.eye(len(eigenvalues))
        assert distance.min() > 0.1
        assert np.iscomplex(eigenvalues).all()


def test_a_simulation_follows_its_equations_and_its_seed():
    system = linear_system(seed=0)
    u, y = simulate(system, 50, seed=7)
    again_u, again_y = simulate(system, 50, seed=7)
    np.testing.assert_array_equal(u, again_u)
    np.testing.assert_array_equal(y, again_y)
    assert not np.array_equal(y, simulate(system, 50, seed=8)[1])


def test_the_recurrence_gives_the_state_before_each_drive():
    A, drive = np.array([[0.5]]), np.array([[1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(recurrence(A, drive)[:, 0], [0.0, 1.0, 2.5])
    np.testing.assert_array_equal(recurrence(A, drive, np.array([4.0]))[:, 0], [4.0, 3.0, 3.5])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"states": 0}, "states must be at least 1, got 0"),
        ({"outputs": -1}, "outputs must be at least 1, got -1"),
        ({"slowest": 1.0}, "0 < fastest <= slowest < 1"),
        ({"measurement_noise": 0.0}, "measurement_noise must be above 0"),
        ({"process_noise": -1.0}, "process_noise must not be negative"),
    ],
)
def test_an_impossible_system_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        linear_system(seed=0, **wrong)


def test_a_simulation_without_steps_is_refused():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        simulate(linear_system(seed=0), 0, seed=0)
