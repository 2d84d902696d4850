"""Bars in, predictions out, one line after another: the model carries its state, which is a memory without an end.

After as many bars as a window has rows, from nothing, the prediction is that of the window. Later ones are of all bars since
the state was new, where those of a whole file (whole.py) are of the last window only.
"""

import csv
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from statewise.assembly import DTYPES
from statewise.data.features.formula import formulas
from statewise.launch import RunFailed
from statewise.predicting.asked import Asked
from statewise.predicting.bars import SOURCE, Bar, Bars
from statewise.predicting.checks import FAR, far_sentence
from statewise.predicting.memory import Features, SeriesMemory
from statewise.predicting.whole import moment, prediction_columns
from statewise.restore import Trained

HEADER = ("time", "series", "step", "rows_seen")


@runtime_checkable
class Written(Protocol):
    """What is asked of standard output."""

    def write(self, text: str, /) -> Any: ...

    def flush(self) -> None: ...


def stream_lines(trained: Trained, asked: Asked, lines: Iterable[str], out: Written, err: Written, *, strict: bool) -> int:
    """Reads lines to their end and writes a line for each bar and step ahead, flushed; what is odd is a line in `err`.

    Returns:
        the exit code 0, also where nobody reads what is written any more.

    Raises:
        ValueError: the model has no step, or a line cannot be used.
        RunFailed: a prediction is not finite.
    """
    stream = Stream(trained, asked, err, strict=strict)
    writer = csv.writer(out, lineterminator="\n")
    try:
        bars = Bars(lines, asked, trained.form)
        stream.begin(bars)
        writer.writerow([*HEADER, *(predicted for predicted, _ in prediction_columns(trained.form.targets))])
        out.flush()
        for bar in bars:
            predictions, rows_seen = stream.after(bar)
            if predictions is None:
                continue
            time = bar_time(bar)
            for step, values in enumerate(predictions, start=1):
                texts = ["" if math.isnan(value) else repr(value) for value in values]
                writer.writerow([time, bar.series, step, rows_seen, *texts])
            out.flush()
    except BrokenPipeError:
        _leave(out)
    return 0


class Stream:
    """A model that follows bars, each series with a state of its own.

    Args:
        err: where sentences about odd bars go.
        strict: whether a value far from those of training is refused.
    """

    def __init__(self, trained: Trained, asked: Asked, err: Written, *, strict: bool) -> None:
        if not (callable(getattr(trained.model, "step", None)) and callable(getattr(trained.model, "initial_state", None))):
            raise ValueError(
                f"{type(trained.model).__name__} has no step() and no initial_state(), so it cannot follow a stream: predict a "
                "file with --data"
            )
        self._trained, self._asked, self._err, self._strict = trained, asked, err, strict
        self._dtype = DTYPES.get(trained.config.hardware.precision, torch.float32)
        self._model: Any = trained.model
        self._memories: dict[str, SeriesMemory] = {}
        self._told: set[str] = set()
        step = trained.form.step
        self._step = None if step is None else step.length
        self._targets = [trained.scaler.names.index(name) for name in trained.form.targets]
        self._features: Features | None = None

    def begin(self, bars: Bars) -> None:
        """Takes the columns of the bars that will come."""
        wanted = formulas(self._asked.features, bars.names, "data.features")
        self._features = Features(wanted, bars.columns, self._asked.reading.timezone)
        if self._features.names != self._trained.form.features:
            raise ValueError(
                f"the features of the run are {', '.join(self._trained.form.features)}, those of {SOURCE} "
                f"{', '.join(self._features.names)}"
            )

    def after(self, bar: Bar) -> tuple[list[list[float]] | None, int]:
        """The predictions after a bar in original units, `[horizon][m]`, and how many rows are behind them.

        NaN where there is none, because a value is missing that cannot be filled; None for a bar that is left out.

        Raises:
            ValueError: the bar is refused.
        """
        memory = self._memory(bar)
        if not self._in_order(bar, memory):
            return None, 0
        form = self._trained.form
        scaled = None
        try:
            for row in memory.rows(bar.time, bar.values):
                if row.why:
                    self._say(f"line {bar.line}{_of(bar)}: {row.why}; the state begins anew")
                if row.features is None:
                    memory.state, memory.rows_seen, scaled = None, 0, None
                    continue
                if row.fresh:
                    memory.state, memory.rows_seen = self._model.initial_state(1), 0
                scaled = self._step_on(bar, memory, row.features)
        except ValueError as error:
            raise ValueError(f"{SOURCE}, line {bar.line}{_of(bar)}: {error}") from error
        if scaled is None:
            return [[math.nan] * form.n_targets for _ in range(form.horizon)], 0
        if not np.isfinite(scaled).all():
            raise RunFailed(f"{SOURCE}, line {bar.line}: the prediction is not finite: this model cannot predict these bars")
        group = self._group(bar.series)
        mean, scale = self._trained.scaler.mean[group, self._targets], self._trained.scaler.scale[group, self._targets]
        found: list[list[float]] = (scaled * scale + mean).tolist()
        return found, memory.rows_seen

    def _step_on(self, bar: Bar, memory: SeriesMemory, features: np.ndarray) -> np.ndarray:
        form, scaler, group = self._trained.form, self._trained.scaler, self._group(bar.series)
        scaled = (features - scaler.mean[group, : form.n_features]) / scaler.scale[group, : form.n_features]
        self._warn_of_far(bar, scaled)
        with torch.inference_mode():
            inputs = torch.from_numpy(scaled).to(self._dtype)[None]
            y, memory.state = self._model.step(inputs, memory.state)
        memory.rows_seen += 1
        return np.asarray(y.double().reshape(form.horizon, form.n_targets).numpy())

    def _memory(self, bar: Bar) -> SeriesMemory:
        if bar.series not in self._memories:
            assert self._features is not None
            self._memories[bar.series] = SeriesMemory(self._asked, self._features, self._step)
            scaler = self._trained.scaler
            if scaler.per_series and bar.series not in scaler.series:
                self._say(f"line {bar.line}{_of(bar)} is not in the training data, so scaled by the scale of all series")
        return self._memories[bar.series]

    def _in_order(self, bar: Bar, memory: SeriesMemory) -> bool:
        """Whether a bar counts. What the state has seen it cannot unsee, so a bar from before is refused."""
        latest = memory.latest_time
        if latest is None or bar.time is None or bar.time > latest:
            return True
        place = f"{SOURCE}, line {bar.line}{_of(bar)}"
        if bar.time < latest:
            raise ValueError(f"{place}: {bar_time(bar)} comes after {_text(latest)}: bars must come in the order of time")
        if self._asked.reading.duplicates == "first":
            self._say(f"line {bar.line}{_of(bar)}: left out, because a bar of {bar_time(bar)} has come (data.duplicates=first)")
            return False
        raise ValueError(
            f"{place}: a second bar of {bar_time(bar)}, and the first one is in the state of the model already: "
            "data.duplicates=first leaves it out"
        )

    def _warn_of_far(self, bar: Bar, scaled: np.ndarray) -> None:
        for column in np.flatnonzero(np.abs(scaled) > FAR).tolist():
            name = self._trained.form.features[column]
            if name in self._told and not self._strict:
                continue
            self._told.add(name)
            where = f"line {bar.line}{_of(bar)}"
            sentence = far_sentence(name, float(scaled[column]), bar.series, self._trained.scaler, where)
            if self._strict:
                raise ValueError(sentence)
            self._say(f"{sentence}; said once")

    def _group(self, series: str) -> int:
        """The row of the scaler."""
        scaler = self._trained.scaler
        return scaler.series.index(series) + 1 if series in scaler.series else 0

    def _say(self, sentence: str) -> None:
        self._err.write(f"{SOURCE}, {sentence}\n")
        self._err.flush()


def bar_time(bar: Bar) -> str:
    """The time of a bar in UTC, with its zone where that is known."""
    return "" if bar.time is None else _text(bar.time) + ("Z" if bar.aware else "")


def _text(time: int) -> str:
    return moment(np.datetime64(time, "ns"))


def _of(bar: Bar) -> str:
    return f", series {bar.series}" if bar.series else ""


def _leave(out: Written) -> None:
    """Nobody reads any more: what is still in the buffer must not fail once more when the process ends."""
    if out is sys.stdout:
        with suppress(OSError, ValueError, AttributeError):  # where it is no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
