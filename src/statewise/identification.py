"""Has a trained linear model found the system that made its data?

Only for one dense layer without norm, activation, gate, residual, skip or anchor, on data of a known linear system. With
the outputs y among its inputs such a model learns a predictor,
    h_t = A_bar h_(t-1) + B_bar (W_in z_t + b_in)         prediction of y_(t+1) = W_out C h_t + b_out
with z_t = (u_t, y_t) scaled. Its matrix tends to that of the Kalman predictor, A - K C, and not to A. Putting the
predictions in place of the measured y closes the loop and gives the model of the system itself:
    A_hat = A_bar + B_y C_hat,   B_hat = B_u,   C_hat = W_out C        with B_u, B_y the columns of B_bar W_in
It is known up to a change of basis only, so what is compared does not depend on the basis: eigenvalues, Markov
parameters (the impulse response), and a free simulation. Ljung, System Identification (1999), sections 4.3 and 7.3.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from statewise.data.datamodule import WindowsDataModule
from statewise.data.generators.synthetic import LinearSystem, recurrence
from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster

MARKOV_PARAMETERS = 20


@dataclass(frozen=True)
class LinearPredictor:
    """The model's linear maps: n states, d width, f features, m outputs."""

    A_bar: np.ndarray  # [n, n]
    B_bar: np.ndarray  # [n, d]
    C: np.ndarray  # [d, n]
    W_in: np.ndarray  # [d, f]
    b_in: np.ndarray  # [d]
    W_out: np.ndarray  # [m, d]
    b_out: np.ndarray  # [m]


@dataclass(frozen=True)
class Scaling:
    """Scaled value = (value - mean) / scale, column by column."""

    mean: np.ndarray
    scale: np.ndarray


def identify(
    predictor: LinearPredictor,
    system: LinearSystem,
    *,
    input_columns: list[int],
    output_columns: list[int],
    features: Scaling,
    targets: Scaling,
    u: np.ndarray,
) -> dict[str, float]:
    """The distances between the model in closed loop and the true system.

    input_columns, output_columns: where u and y stand among the features; output i is target i.
    u: inputs [T, i] in original units for the free simulation.

    eigenvalue_error: the largest distance between an eigenvalue of A_hat and its partner of A, in the pairing with the
    smallest sum of distances. markov_error: the Frobenius norm of the difference of the first 20 Markov parameters
    C A^k B, in original units, over the norm of the true ones; under white inputs of unit variance it is the relative
    root mean square error of what the outputs owe to the last 20 inputs. simulation_nrmse: both systems run freely, without
    noise or measured outputs, on the same inputs from their rest under the mean input; the root mean square error of
    each output over its standard deviation, then the mean over outputs. What overflows is infinite.
    """
    closed = _closed_loop(predictor, input_columns, output_columns, features, targets)
    if not all(np.isfinite(part).all() for part in (closed.A, closed.B, closed.C, closed.a, closed.c)):
        return dict.fromkeys(("eigenvalue_error", "markov_error", "simulation_nrmse"), math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        figures = {
            "eigenvalue_error": _eigenvalue_error(system.A, closed.A),
            "markov_error": _relative(_markov(system.A, system.B, system.C), _markov(closed.A, closed.B, closed.C)),
            "simulation_nrmse": _simulation_error(system, closed, u),
        }
    return {name: value if math.isfinite(value) else math.inf for name, value in figures.items()}


def identification_figures(forecaster: nn.Module, datamodule: WindowsDataModule) -> dict[str, float] | None:
    """The figures of `identify` for a trained model, or None where they have no meaning: another model, data without a
    known system, another number of states, a horizon above 1."""
    system = datamodule.system
    if system is None or datamodule.horizon != 1 or datamodule.target_inputs is None:
        return None
    predictor = linear_predictor(forecaster)
    if predictor is None or predictor.A_bar.shape != system.A.shape:
        return None
    output_columns = list(datamodule.target_inputs)
    input_columns = [i for i in range(datamodule.n_features) if i not in output_columns]
    if (len(output_columns), len(input_columns)) != (system.C.shape[0], system.B.shape[1]):
        return None
    # One series: row 0 of the scaler holds the statistics of everything. Its columns begin with the features.
    mean, scale = datamodule.scaler.mean[0], datamodule.scaler.scale[0]
    features = Scaling(mean[: datamodule.n_features], scale[: datamodule.n_features])
    newest = [batch.inputs[:, -1].double().numpy() for batch in datamodule.evaluation_batches("test")]
    u = (np.concatenate(newest) * features.scale + features.mean)[:, input_columns]
    return identify(
        predictor,
        system,
        input_columns=input_columns,
        output_columns=output_columns,
        features=features,
        targets=Scaling(features.mean[output_columns], features.scale[output_columns]),
        u=u,
    )


@torch.no_grad()
def linear_predictor(forecaster: nn.Module) -> LinearPredictor | None:
    """The matrices of a forecaster that is one plain linear layer between two projections, None for any other."""
    if not isinstance(forecaster, Forecaster) or len(forecaster.layers) != 1:
        return None
    layer = forecaster.layers[0]
    parts = {name for name, _ in forecaster.named_children()}
    if (
        not isinstance(layer, DenseSSM)
        or getattr(layer, "D", None) is not None
        or parts != {"input_proj", "ssm_0", "output_proj"}
    ):
        return None
    nonlinear = forecaster.activation is not None or forecaster.dropout > 0
    if nonlinear or forecaster.residual or forecaster.linear_skip or forecaster.anchor_inputs is not None:
        return None
    # One step from rest on each unit vector reads B_bar, whatever the discretisation.
    unit = torch.eye(layer.d_inner, dtype=layer.B.dtype, device=layer.B.device)
    _, columns = layer.step(unit, layer.initial_state(layer.d_inner))
    tensors = (
        layer.discrete_transition(),
        columns.T,
        layer.C,
        forecaster.input_proj.weight,
        forecaster.input_proj.bias,
        forecaster.output_proj.weight,
        forecaster.output_proj.bias,
    )
    return LinearPredictor(*(tensor.detach().double().cpu().numpy() for tensor in tensors))


@dataclass(frozen=True)
class _ClosedLoop:
    """h_t = A h_(t-1) + B u_t + a,   y_(t+1) = C h_t + c, in original units of u and y."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    a: np.ndarray
    c: np.ndarray


def _closed_loop(
    predictor: LinearPredictor, input_columns: list[int], output_columns: list[int], features: Scaling, targets: Scaling
) -> _ClosedLoop:
    # Out of the scaled units: z = (value - mean) / scale in front, y = mean + scale * prediction behind.
    into = predictor.B_bar @ predictor.W_in / features.scale  # (n f)
    constant = predictor.B_bar @ predictor.b_in - into @ features.mean  # (n)
    C = targets.scale[:, None] * (predictor.W_out @ predictor.C)  # (m n)
    c = targets.mean + targets.scale * predictor.b_out  # (m)
    B_u, B_y = into[:, input_columns], into[:, output_columns]
    return _ClosedLoop(A=predictor.A_bar + B_y @ C, B=B_u, C=C, a=constant + B_y @ c, c=c)


def _eigenvalue_error(A: np.ndarray, A_hat: np.ndarray) -> float:
    distance = np.abs(np.linalg.eigvals(A)[:, None] - np.linalg.eigvals(A_hat)[None, :])
    return float(distance[linear_sum_assignment(distance)].max())


def _markov(A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """C A^k B for k = 0 .. 19: [k, m, i]."""
    parameters = []
    for _ in range(MARKOV_PARAMETERS):
        parameters.append(C @ B)
        B = A @ B
    return np.stack(parameters)


def _relative(true: np.ndarray, found: np.ndarray) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def _simulation_error(system: LinearSystem, closed: _ClosedLoop, u: np.ndarray) -> float:
    true = _free_run(_ClosedLoop(system.A, system.B, system.C, np.zeros(len(system.A)), np.zeros(len(system.C))), u)
    found = _free_run(closed, u)
    error = np.sqrt(np.mean((found - true) ** 2, axis=0)) / true.std(axis=0)
    return float(error.mean())


def _free_run(model: _ClosedLoop, u: np.ndarray) -> np.ndarray:
    """Outputs after each input [T, m], from the state of rest under the mean input: it exists in every basis alike."""
    drive = u @ model.B.T + model.a
    rest = np.linalg.lstsq(np.eye(len(model.A)) - model.A, drive.mean(axis=0), rcond=None)[0]
    before = recurrence(model.A, drive, rest)
    after = before @ model.A.T + drive
    outputs: np.ndarray = after @ model.C.T + model.c
    return outputs
