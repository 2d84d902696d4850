"""A linear system whose matrices, and whose best possible predictor, are known.

Notation. x state, u input, y output, w and v independent standard normal noise:
    x_(t+1) = A x_t + B u_t + process_noise * w_t          y_t = C x_t + measurement_noise * v_t
The predictor is the stationary Kalman filter: Anderson, Moore, Optimal Filtering (1979), chapter 4.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_discrete_are

from statewise.choices import at_least


@dataclass(frozen=True)
class LinearSystem:
    """A stable linear system with additive white noise; n states, i inputs, o outputs."""

    A: np.ndarray  # [n, n]
    B: np.ndarray  # [n, i]
    C: np.ndarray  # [o, n]
    process_noise: float  # standard deviation of each state's noise
    measurement_noise: float  # standard deviation of each output's noise


def linear_system(
    seed: int,
    states: int = 8,
    inputs: int = 2,
    outputs: int = 4,
    process_noise: float = 0.05,
    measurement_noise: float = 0.1,
    slowest: float = 0.97,
    fastest: float = 0.6,
) -> LinearSystem:
    """Draws a system of oscillators (one real mode more where `states` is odd) in a random orthogonal basis.

    The moduli of the eigenvalues are spread from `fastest` to `slowest` and their angles over two thirds of a half
    circle, and every mode is driven and seen alike, so that all of them can be told from the data. C and B are scaled
    such that noise and signal come out alike for every seed: the noise-free outputs have variance 3 on average under
    unit white inputs.
    """
    at_least(1, data__states=states, data__inputs=inputs, data__outputs=outputs)
    if not 0 < fastest <= slowest < 1:
        raise ValueError(f"the moduli of the eigenvalues must obey 0 < fastest <= slowest < 1, got {fastest}, {slowest}")
    if process_noise < 0 or measurement_noise <= 0:
        raise ValueError(
            "process_noise must not be negative and measurement_noise must be above 0, "
            f"got {process_noise} and {measurement_noise}"
        )
    rng = np.random.default_rng(seed)
    pairs = states // 2
    moduli = np.linspace(fastest, slowest, pairs) if pairs > 1 else np.full(pairs, slowest)
    # Jittered by a quarter of the distance to the neighbour at most: distinct for every seed.
    angles = 2 / 3 * np.pi * (np.arange(pairs) + 0.5 + rng.uniform(-0.25, 0.25, pairs)) / max(pairs, 1)
    modes = np.zeros((states, states))
    for pair, (modulus, angle) in enumerate(zip(moduli, rng.permutation(angles), strict=True)):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        modes[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = modulus * turn
    if states % 2:
        modes[-1, -1] = fastest
    basis = np.linalg.qr(rng.standard_normal((states, states)))[0]
    B = rng.standard_normal((states, inputs))
    C = rng.standard_normal((outputs, states))
    for mode in (slice(first, first + 2) for first in range(0, states, 2)):
        # A mode of modulus r answers white noise with a variance of about 1 / (1 - r^2).
        B[mode] *= np.sqrt(1 - np.linalg.norm(modes[mode, mode], 2) ** 2) / np.linalg.norm(B[mode])
        C[:, mode] /= np.linalg.norm(C[:, mode])
    A, B, C = basis @ modes @ basis.T, basis @ B, C @ basis.T
    C *= np.sqrt(1.2 * outputs) / np.linalg.norm(C)
    B *= np.sqrt(3.0 / np.mean(np.diag(C @ _gramian(A, B @ B.T) @ C.T)))
    return LinearSystem(A, B, C, float(process_noise), float(measurement_noise))


def simulate(system: LinearSystem, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs u [T, i] (white, standard normal) and outputs y [T, o], from rest at x = 0."""
    at_least(1, data__steps=steps)
    rng = np.random.default_rng(seed)
    states, inputs = system.B.shape
    u = rng.standard_normal((steps, inputs))
    drive = u @ system.B.T + system.process_noise * rng.standard_normal((steps, states))
    noise = system.measurement_noise * rng.standard_normal((steps, len(system.C)))
    return u, recurrence(system.A, drive) @ system.C.T + noise


def kalman_predictions(system: LinearSystem, u: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The best prediction of y_t from y and u before t, by the stationary filter from x = 0: [T, o]."""
    gain, _ = kalman_gain(system)
    # x^_(t+1) = A x^_t + B u_t + K (y_t - C x^_t)
    predictions: np.ndarray = recurrence(system.A - gain @ system.C, u @ system.B.T + y @ gain.T) @ system.C.T
    return predictions


def kalman_gain(system: LinearSystem) -> tuple[np.ndarray, np.ndarray]:
    """The stationary predictor's gain K [n, o] and the covariance of its errors (innovations) [o, o]."""
    A, C = system.A, system.C
    Q = system.process_noise**2 * np.eye(len(A))
    R = system.measurement_noise**2 * np.eye(len(C))
    P = solve_discrete_are(A.T, C.T, Q, R)
    innovations = C @ P @ C.T + R
    return np.linalg.solve(innovations, C @ P @ A.T).T, innovations


def recurrence(A: np.ndarray, drive: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """x_0 = start (zero), x_(t+1) = A x_t + drive_t: the states x_0 .. x_(T-1) BEFORE each drive [T, n]."""
    x = np.empty_like(drive)
    state = np.zeros(len(A)) if start is None else start
    for t, push in enumerate(drive):
        x[t] = state
        state = A @ state + push
    return x


def _gramian(A: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """The stationary covariance X = A X A' + Q, by doubling: sum over k of A^k Q A'^k."""
    X, power = Q, A
    for _ in range(60):
        X = X + power @ X @ power.T
        power = power @ power
    return X
