"""The figures of a run on its test windows, for people: errors in scaled and original units, and those of returns."""

from typing import Any

import numpy as np
from torch import Tensor

from statewise.data.datamodule import WindowsDataModule
from statewise.metrics import directional_accuracy, information_coefficient
from statewise.summary import RunErrors, errors_on_test
from statewise.task import Forecasting


def test_figures(datamodule: WindowsDataModule, task: Forecasting) -> RunErrors:
    """The test errors of a task that has just been tested; for returns also the two figures of a forecaster of returns."""
    predictions = tested_predictions(task)
    errors = task.test_errors
    names = {"mse": "mse_original_units", "mae": "mae_original_units"}
    names |= {f"{key}_per_target": f"{name}_per_target" for key, name in names.items()}
    of_returns: dict[str, Any] = {}
    if not datamodule.targets_are_levels:
        targets, observed = datamodule.last_step("test")
        truth, forecast = in_original_units(datamodule, predictions)
        of_returns = {
            "information_coefficient": {
                **information_coefficient(predictions, targets, observed),
                "planted": datamodule.planted_ic,
            },
            "directional_accuracy": directional_accuracy(forecast, truth, observed),
        }
    original = {key: errors[name] for key, name in names.items()}
    return errors_on_test(datamodule.target_names, errors, original, **of_returns)


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
