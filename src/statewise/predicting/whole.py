"""The predictions of a trained model on every window of a new file, and their errors where the file knows better."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from statewise.data.preparation.scaling import StandardScaler
from statewise.launch import RunFailed
from statewise.metrics import MaskedErrors
from statewise.predicting.asked import Asked
from statewise.predicting.new_file import NewFile
from statewise.restore import Trained
from statewise.summary import errors_on_test

PLACES = ("series", "origin_time", "time", "step")


@dataclass
class Scores:
    """Errors over observed targets, batch by batch: of the model and of the forecasts anybody can make."""

    names: tuple[str, ...]
    scaled: dict[str, MaskedErrors] = field(default_factory=dict)
    original: MaskedErrors = field(init=False)

    def __post_init__(self) -> None:
        self.original = MaskedErrors(len(self.names))

    def update(self, name: str, prediction: Tensor, truth: Tensor, observed: Tensor) -> None:
        """Adds the errors of one forecast, all in scaled units, `[n, horizon, m]`."""
        self.scaled.setdefault(name, MaskedErrors(len(self.names))).update(prediction, truth, observed)

    @property
    def any(self) -> bool:
        """Whether a target was observed at all."""
        return any(bool(errors.counts.any()) for errors in self.scaled.values())

    def of_model(self) -> dict[str, Any]:
        """As the `test` part of a summary (summary.py)."""
        return dict(errors_on_test(self.names, self.scaled["model"].compute(), self.original.compute()))

    def of_baselines(self) -> dict[str, dict[str, float]]:
        """As the `baselines` part of a summary."""
        found = {name: errors.compute() for name, errors in self.scaled.items() if name != "model"}
        return {name: {key: float(values[key]) for key in ("mse", "mae")} for name, values in found.items()}


class Predictions:
    """All predictions of a file, a batch of windows at a time: `frames` goes through it once, and keeps the scores.

    Attributes:
        scores: errors so far.
        beyond: predicted rows so far that lie after the end of the file, or in a gap of it.
        first, last: of the times of predicted rows so far (numbers of rows where there are no times).
    """

    def __init__(self, trained: Trained, asked: Asked, new: NewFile) -> None:
        self.trained, self.asked, self.new = trained, asked, new
        self.scores = Scores(trained.form.targets)
        self.beyond = 0
        self.first: Any = None
        self.last: Any = None
        self._columns = prediction_columns(trained.form.targets)

    def __len__(self) -> int:
        return len(self.new.starts) * self.trained.form.horizon

    @property
    def schema(self) -> dict[str, Any]:
        clock = pl.Int64 if self.new.rows.times is None else pl.Datetime("ns")
        values = {name: pl.Float64 for pair in self._columns for name in pair}
        return dict(zip(PLACES, (pl.String, clock, clock, pl.Int32), strict=True)) | values

    def frames(self) -> Iterator[pl.DataFrame]:
        """A row for each window and step ahead: where it stands, then prediction and truth of each target, null if unknown.

        Raises:
            RunFailed: a prediction is not finite.
        """
        for first in range(0, len(self.new.starts), self.asked.batch_size):
            windows = slice(first, first + self.asked.batch_size)
            yield self._frame(windows)

    def _frame(self, windows: slice) -> pl.DataFrame:
        new, form = self.new, self.trained.form
        inputs = window_inputs(new, windows, self.asked.window, form.n_features)
        prediction = predict(self.trained.model, inputs, form.horizon, form.n_targets, self.asked.supervision)
        clock = new.clock_after(windows, self.asked.window, form.horizon)
        if not bool(torch.isfinite(prediction).all()):
            wrong = int(np.argmin(torch.isfinite(prediction).flatten(1).all(1).numpy()))
            raise RunFailed(
                f"the prediction from {moment(clock[wrong, 0])} is not finite: this model cannot predict {new.name}"
            )
        # Past what is no time: where times are irregular, those beyond the file are not known.
        self.first = np.fmin.reduce(clock[:, 1:], axis=None, initial=self.first)
        self.last = np.fmax.reduce(clock[:, 1:], axis=None, initial=self.last)
        codes = new.rows.codes_of(new.starts[windows])
        mean, scale = statistics(new.scaler, form.targets, codes)
        truth, observed = new.truth_after(windows, self.asked.window, form.horizon)
        self._score(inputs, prediction, truth.double(), observed, mean, scale)
        self.beyond += int(
            (new.starts[windows, None] + self.asked.window + np.arange(form.horizon) >= new.stop[windows, None]).sum()
        )

        values = prediction.numpy() * scale[:, None] + mean[:, None]  # (n h m)
        actual = np.where(observed.numpy(), truth.double().numpy() * scale[:, None] + mean[:, None], np.nan)
        names = pl.Series(np.asarray(new.rows.series, dtype=object)[codes].repeat(form.horizon), dtype=pl.String)
        steps = np.tile(np.arange(1, form.horizon + 1, dtype=np.int32), len(codes))
        places = (names, clock[:, :1].repeat(form.horizon, axis=1).reshape(-1), clock[:, 1:].reshape(-1), steps)
        columns: dict[str, Any] = dict(zip(PLACES, places, strict=True))
        for target, (predicted, known) in enumerate(self._columns):
            columns[predicted] = np.ascontiguousarray(values[:, :, target]).reshape(-1)
            columns[known] = pl.Series(np.ascontiguousarray(actual[:, :, target]).reshape(-1)).fill_nan(None)
        return pl.DataFrame(columns)

    def _score(
        self, inputs: Tensor, prediction: Tensor, truth: Tensor, observed: Tensor, mean: np.ndarray, scale: np.ndarray
    ) -> None:
        form, factor = self.trained.form, torch.from_numpy(scale)[:, None]
        self.scores.update("model", prediction, truth, observed)
        self.scores.original.update(prediction * factor, truth * factor, observed)
        if form.target_inputs is not None:
            last = inputs[:, -1][:, list(form.target_inputs)].double()
            self.scores.update("last_value", last[:, None].expand_as(truth), truth, observed)
        if not form.targets_are_levels:
            zero = torch.from_numpy(-mean / scale)
            self.scores.update("zero", zero[:, None].expand_as(truth), truth, observed)


def moment(clock: Any) -> str:
    """A place on the clock for a person: a time without the zeros that say nothing, or the number of a row."""
    whole, _, fraction = str(clock).partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def prediction_columns(targets: Sequence[str]) -> list[tuple[str, str]]:
    """What the columns of a target's prediction and truth are called; no name comes twice."""
    taken = {*PLACES, "rows_seen", *(f"{name}_actual" for name in targets)}
    return [(f"{name}_predicted" if name in taken else name, f"{name}_actual") for name in targets]


def window_inputs(new: NewFile, windows: slice, window: int, n_features: int) -> Tensor:
    """`[n, window, features]`, contiguous."""
    views = new.scaled[:, :n_features].unfold(0, window, 1).transpose(1, 2)  # (places t f)
    return views.index_select(0, torch.from_numpy(new.starts[windows]))


def predict(
    model: nn.Module, inputs: Float[Tensor, "n t f"], horizon: int, targets: int, supervision: str
) -> Float[Tensor, "n horizon m"]:
    """Scaled predictions after the last row, float64, computed as the test of a run computes them."""
    with torch.inference_mode():
        y: Tensor = model(inputs, last_only=supervision == "last")[0]
        return y[:, -1].reshape(len(y), horizon, targets).double()


def statistics(scaler: StandardScaler, targets: Sequence[str], codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of the targets of each window, `[n, m]` each."""
    mean, scale = scaler.of(codes)
    places = [scaler.names.index(name) for name in targets]
    return mean[:, places], scale[:, places]
