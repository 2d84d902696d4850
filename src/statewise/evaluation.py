"""The figures of a run on its test windows, for people: errors in scaled and original units, and those of returns."""

from typing import Any

import numpy as np
from torch import Tensor

from statewise.data.datamodule import WindowsDataModule
from statewise.metrics import r2_of_levels
from statewise.returns import directional_accuracy, information_coefficient, r2_against_zero, rank_correlation
from statewise.standard_errors import time_blocks
from statewise.summary import RunErrors, errors_on_test
from statewise.task import Forecasting
from statewise.trading import Trading, trading_figures


def test_figures(
    datamodule: WindowsDataModule, task: Forecasting, *, trading: Trading, last_value: np.ndarray | None
) -> RunErrors:
    """The test errors of a task that has just been tested, and the figures that belong to its kind of targets.

    Args:
        trading: what to do with forecasts of returns.
        last_value: the forecasts of the last value baseline, `[n, horizon, m]`, scaled; levels have an R2 only with them.
    """
    predictions = tested_predictions(task)
    errors = task.test_errors
    names = {"mse": "mse_original_units", "mae": "mae_original_units"}
    names |= {f"{key}_per_target": f"{name}_per_target" for key, name in names.items()}
    original = {key: errors[name] for key, name in names.items()}
    figures: dict[str, Any] = {}
    if not datamodule.targets_are_levels:
        figures = figures_of_returns(datamodule, predictions, trading)
    elif last_value is not None:
        targets, observed = datamodule.last_step("test")
        found = r2_of_levels(predictions, targets, observed, last_value)
        figures = {"r2_of_levels": dict(zip(datamodule.target_names, found, strict=True))}
    return errors_on_test(datamodule.target_names, errors, original, **figures)


def figures_of_returns(datamodule: WindowsDataModule, predictions: Tensor, trading: Trading) -> dict[str, Any]:
    """Over everything, for each target and step ahead where there are several, and what trading would have earned."""
    targets, observed = (tensor.cpu().numpy() for tensor in datamodule.last_step("test"))
    scaled = predictions.cpu().numpy()
    truth, forecast = in_original_units(datamodule, predictions)
    scale = datamodule.target_scale("test")
    series, times = datamodule.target_positions("test")
    source = datamodule.prepared.source
    _, horizon, m = scaled.shape

    def four(steps: slice, columns: slice, block: np.ndarray | None) -> dict[str, Any]:
        own = np.s_[:, steps, columns]
        seen, in_scale = observed[own], scale[:, None, columns]
        # Correlations of scaled values, and squares of returns in units of their series' scale: no series outweighs the rest.
        return {
            "information_coefficient": information_coefficient(scaled[own], targets[own], seen, block),
            "rank_correlation": rank_correlation(scaled[own], targets[own], seen, block),
            "directional_accuracy": directional_accuracy(forecast[own], truth[own], seen, block),
            "r2_against_zero": r2_against_zero(forecast[own] / in_scale, truth[own] / in_scale, seen, block),
        }

    everything = slice(None)
    shared = -(-(source.reach + horizon - 1) // datamodule.stride)
    figures = four(everything, everything, time_blocks(times[:, 0], shared=shared, columns=m))
    figures["information_coefficient"]["planted"] = datamodule.planted_ic
    if m > 1 or horizon > 1:
        blocks = [time_blocks(times[:, 0], shared=-(-(source.rows_of(j) - 1) // datamodule.stride)) for j in range(m)]
        figures["returns_per_target"] = {
            name: [{"step": h + 1, **four(slice(h, h + 1), slice(j, j + 1), blocks[j])} for h in range(horizon)]
            for j, name in enumerate(datamodule.target_names)
        }
    if trading.cost is not None:
        figures["trading"] = {
            name: trading_figures(
                trading,
                forecast[:, 0, j],
                truth[:, 0, j],
                series=series,
                clock=times[:, 0],
                scale=scale[:, j],
                rows=source.rows_of(j),
                stride=datamodule.stride,
            )
            for j, name in enumerate(datamodule.target_names)
        }
    return figures


def tested_predictions(task: Forecasting) -> Tensor:
    """`[n, horizon, m]` in scaled units, in the order of the test windows."""
    if task.test_predictions is None:
        raise RuntimeError("the task has not been tested yet")
    return task.test_predictions


def in_original_units(datamodule: WindowsDataModule, predictions: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Truth (NaN where it was not observed) and prediction of the test windows, both `[n, horizon, m]`."""
    targets, observed = (tensor.cpu().numpy() for tensor in datamodule.last_step("test"))
    truth = datamodule.to_original("test", targets)
    return np.where(observed, truth, np.nan), datamodule.to_original("test", predictions.numpy())
