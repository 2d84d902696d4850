"""What is noted about a run while it goes on, and written into its folder however it ends."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch import nn

from statewise import console, runs, summary
from statewise.borders.curves import write_curves
from statewise.callbacks.checkpoints import BestAndLast
from statewise.callbacks.epoch_borders import EpochBorders
from statewise.callbacks.epoch_lines import EpochLines
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.hparams_tab import write_never_begun
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth
from statewise.data.datamodule import WindowsDataModule
from statewise.evaluation import in_original_units, test_figures, tested_predictions
from statewise.faults import Injected
from statewise.identification import identification_figures
from statewise.loggers import finish
from statewise.models.baselines import Baselines, floor
from statewise.models.forecaster import Forecaster
from statewise.report import build_report
from statewise.task import Forecasting
from statewise.trading import Trading

log = logging.getLogger(__name__)


class RunRecord:
    """Collects the facts of one run and leaves summary.json, health.json, predictions, histories and the report.

    Args:
        folder: the run folder.
        config: the resolved configuration as plain values.
        model: the name of the chosen model, for people.
        data: the name of the chosen data set.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], *, model: str, data: str) -> None:
        self.folder = folder
        self.config = config
        self.model = model
        self.data = data
        self.status = "failed"
        self.message: str | None = None
        self.stopped: str | None = None  # where the run stopped, if before its planned end
        self.baselines: Baselines | None = None
        self.trading = Trading()
        self._seconds: dict[str, float] = {}
        self._parameters: int | None = None
        self._fault: Injected | None = None
        self._trainer: L.Trainer | None = None
        self._callbacks: Mapping[str, L.Callback] = {}
        self._results: dict[str, Any] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase: setup, fit or test."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = time.perf_counter() - start

    def describe(self, datamodule: WindowsDataModule, model: nn.Module, fault: Injected | None = None) -> None:
        """Log what was read, dropped, filled and split, how large the model is, and what was broken on purpose."""
        for note in datamodule.notes:
            log.info("data: %s", note)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        log.info("model: %s with %s parameters", self.model, f"{self._parameters:,}")
        self._fault = fault
        if fault is not None:
            log.warning("fault=%s: this run was broken on purpose. %s", fault.name, fault.what)

    def watch(self, trainer: L.Trainer, callbacks: Mapping[str, L.Callback]) -> None:
        """Remember who knows the steps, the health and the histories."""
        self._trainer, self._callbacks = trainer, callbacks

    def write_results(self, datamodule: WindowsDataModule, task: Forecasting) -> None:
        """Evaluate the test predictions and write them in original units, the linear baseline's beside them."""
        predictions = tested_predictions(task)
        series, times = datamodule.target_positions("test")
        truth, forecast = in_original_units(datamodule, predictions)
        beside = {
            name: datamodule.to_original("test", np.asarray(result.predictions))
            for name, result in (self.baselines.results if self.baselines else {}).items()
            if result is not None and name == "linear"
        }
        runs.write_predictions(
            self.folder / runs.PREDICTIONS,
            series=series,
            times=times,
            names=datamodule.target_names,
            truth=truth,
            prediction=forecast,
            baselines=beside,
        )
        figures = identification_figures(task.model, datamodule) if isinstance(task.model, Forecaster) else None
        self._results = {
            "test": test_figures(datamodule, task, trading=self.trading, last_value=self._last_value()),
            "floor": floor(datamodule),
            "identification": figures,
        }
        self.status = "ok"

    def objective(self, name: str) -> float:
        """The metric that a sweep minimises: the best validated ``val/mse``, or any metric of the trainer by its name."""
        value = self._value_of(name)
        self._results["objective"] = {"name": name, "value": value}
        return value

    def _value_of(self, name: str) -> float:
        assert self._trainer is not None
        for callback in self._all_callbacks():
            if isinstance(callback, BestAndLast) and callback.monitor == name and callback.best_step is not None:
                return callback.best_value
        metrics = self._trainer.callback_metrics
        if name not in metrics:
            log.warning("objective: this run has no metric '%s', only %s", name, ", ".join(sorted(metrics)))
            return math.nan
        return float(metrics[name])

    def close(self) -> None:
        """Write what is known, then show it: the table, the verdict, the folder."""
        health = self._health()
        runs.write_json(self.folder / runs.HEALTH, health)
        result = summary.summarise(
            status=self.status,
            model=self.model,
            data=self.data,
            seed=self.config["seed"],
            val=self._best_validated(),
            baselines=self._baseline_errors(),
            health=health,
            parameters=self._parameters,
            steps=self._trainer.global_step if self._trainer else 0,
            seconds=self._seconds,
            samples_per_second=self._samples_per_second(),
            parent=self.config["resume"],
            error=self.message,
            stopped=self.stopped,
            fault=self._fault._asdict() if self._fault else None,
            epoch_borders=self._borders.report() if self._borders else None,
            **self._results,
        )
        self._write_histories()
        runs.write_json(self.folder / runs.SUMMARY, result)  # after all else: a run without it was broken off
        self._close_loggers()
        (self.folder / "hparams.yaml").unlink(missing_ok=True)  # Lightning's loggers leave it, empty
        if self.config["report"] and self._seconds.get("fit"):
            build_report(self.folder)
        if self.status == "ok":
            console.print_results(result, self.folder)
        else:
            log.info("the run folder: %s", self.folder)

    def _best_validated(self) -> dict[str, float | int | None] | None:
        kept = [found for found in self._all_callbacks() if isinstance(found, BestAndLast) and found.monitor == "val/mse"]
        return {"mse": kept[0].best_value, "step": kept[0].best_step} if kept and kept[0].best_step is not None else None

    def _close_loggers(self) -> None:
        """And let a run that was refused before its training began stand in TensorBoard's table too."""
        finish(self._trainer.loggers if self._trainer else (), succeeded=self.status == "ok")
        if self.status != "ok" and self.config["logger"]["tensorboard"]:
            write_never_begun(self.folder, self.config)

    def _last_value(self) -> np.ndarray | None:
        found = self.baselines.results["last_value"] if self.baselines else None
        return None if found is None else found.predictions

    def _baseline_errors(self) -> dict[str, summary.Errors | None]:
        found = self.baselines.results if self.baselines else {}
        return {name: None if result is None else {"mse": result.mse, "mae": result.mae} for name, result in found.items()}

    def _health(self) -> dict[str, Any]:
        callback = self._callbacks.get("training_health")
        if isinstance(callback, TrainingHealth):
            return callback.report()
        return {"verdict": "not_checked", "findings": [], "checks": []}

    def _samples_per_second(self) -> float | None:
        seconds = self._seconds.get("fit")
        counts = [callback.samples for callback in self._all_callbacks() if isinstance(callback, EpochLines)]
        return counts[0] / seconds if seconds and counts else None

    def _all_callbacks(self) -> list[L.Callback]:
        return [] if self._trainer is None else self._trainer.callbacks  # type: ignore[attr-defined]

    @property
    def _borders(self) -> EpochBorders | None:
        return next((item for item in self._callbacks.values() if isinstance(item, EpochBorders)), None)

    def _write_histories(self) -> None:
        write_curves(self.folder, self._borders.around if self._borders else ())
        norms = next((item for item in self._callbacks.values() if isinstance(item, GradientNorms)), None)
        projection = next((item for item in self._callbacks.values() if isinstance(item, SpectralProjection)), None)
        runs.write_history(
            self.folder,
            gradient_norms=norms.history if norms else None,
            eigenvalues=projection.history if projection else (),
        )
