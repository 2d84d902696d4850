"""The data sets of conf/data: each says where its table comes from, the data module does the rest."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hydra.core.hydra_config import HydraConfig

from statewise.choices import one_of
from statewise.data.datamodule import WindowsDataModule
from statewise.data.features.targets import needed_columns, select
from statewise.data.files.reading import Reading
from statewise.data.files.search import find_files
from statewise.data.generators.market import bar_features, market_bars
from statewise.data.generators.sample_and_hold import COLUMNS, sample_and_hold
from statewise.data.generators.synthetic import kalman_predictions, linear_system, simulate
from statewise.data.oddities.impossible import POLICIES as IMPOSSIBLE
from statewise.data.oddities.impossible import told
from statewise.data.preparation.cache import POLICIES, cache_folder
from statewise.data.preparation.kept import Store
from statewise.data.samples import CHANNELS, air_quality
from statewise.data.segments.regular import on_grid
from statewise.data.source import Source
from statewise.data.tables.table import Table, read_table

__all__ = ["LTI", "AirQuality", "File", "Market", "SampleAndHold", "Source"]


class AirQuality(WindowsDataModule):
    """The embedded sample: hourly air quality and weather of Beijing, the five channels both inputs and targets."""

    def __init__(self, *, window: int = 60, **windows: Any) -> None:
        super().__init__(window=window, **windows)

    def source(self) -> Source:
        return Source(air_quality(), features=CHANNELS, targets=CHANNELS)


class File(WindowsDataModule):
    """Files of rows: one, all in a folder, all that match a pattern, or all of a list. What each holds is seen in it.

    Args:
        path: relative ones mean `folder`.
        features: the input columns, by name or by expression (features/functions.py); None takes all numeric ones.
        targets: what to predict: columns, or returns and differences over the next rows (features/targets.py); None takes
            the features.
        folder: None is the folder where the command was started.
        time, series, names, separator, decimal, thousands, null_values, header, skip, day_first, timezone, bar_label,
            duplicates: what the file does not say itself (`statewise.data.files.reading.Reading`).
        impossible_bars: prices outside of their own high and low: `keep` (and say so) or `error`.
        cache: whether the scaled values are kept for the next run with the same files and options: `auto` where that saves
            time, `on`, or `off`.
        cache_folder: where; relative ones mean `folder`. None is $STATEWISE_CACHE, else the user's cache folder.
    """

    def __init__(
        self,
        *,
        path: Any,
        window: int = 60,
        time: Any = None,
        series: str | None = None,
        features: list[str] | None = None,
        targets: list[str] | None = None,
        folder: str | None = None,
        names: list[str] | None = None,
        separator: str | None = None,
        decimal: str | None = None,
        thousands: str | None = None,
        null_values: list[str] | None = None,
        header: int | None = None,
        skip: int | None = None,
        day_first: bool | None = None,
        timezone: str | None = None,
        bar_label: str = "start",
        duplicates: str = "error",
        impossible_bars: str = "keep",
        cache: str = "auto",
        cache_folder: str | None = None,
        **windows: Any,
    ) -> None:
        super().__init__(window=window, **windows)
        self.path: str | list[str] = path if isinstance(path, str) else list(path)
        self.folder = folder
        self.reading = Reading(
            time=time if time is None or isinstance(time, str) else tuple(time),
            series=series,
            names=None if names is None else tuple(names),
            separator=separator,
            decimal=decimal,
            thousands=thousands,
            null_values=tuple(null_values or ()),
            header=header,
            skip=skip,
            day_first=day_first,
            timezone=timezone,
            bar_label=bar_label,
            duplicates=duplicates,
        )
        one_of("data.cache", cache, POLICIES)
        self.impossible_bars = one_of("data.impossible_bars", impossible_bars, IMPOSSIBLE)
        self.cache, self.cache_folder = cache, cache_folder
        self.features = None if features is None else tuple(features)
        self.targets = None if targets is None else tuple(targets)

    def store(self, options: Mapping[str, Any]) -> Store | None:
        if self.cache == "off":
            return None
        start = self._start()
        files = find_files(self.path, start)
        own = {
            "reading": self.reading,
            "features": self.features,
            "targets": self.targets,
            "impossible_bars": self.impossible_bars,
        }
        chosen = None if self.cache_folder is None else start / Path(self.cache_folder).expanduser()
        return Store(files, {**options, **own}, cache_folder(chosen), always=self.cache == "on")

    def _start(self) -> Path:
        """The folder that relative paths mean."""
        return launch_folder() if self.folder is None else Path(self.folder)

    def table(self) -> Table:
        """The rows of the files, before anything is inserted or derived."""
        table = read_table(
            self.path,
            folder=self._start(),
            columns=None if self.features is None else partial(needed_columns, self.features, self.targets),
            reading=self.reading,
        )
        return told(table, self.impossible_bars)

    def source(self) -> Source:
        # Before anything is derived: a return over an inserted row is one over its carried price.
        table, _ = on_grid(self.table(), self.gap)
        return select(table, self.features, self.targets, timezone=self.reading.timezone)


class LTI(WindowsDataModule):
    """A stable linear system with known matrices, driven by known inputs, and the error of its optimal predictor.

    Row t holds the inputs u and outputs y at t, so that u at t is known when y at t + 1 is predicted.

    Args:
        system_seed: of the system and its noise; not the seed of the run.
    """

    def __init__(
        self,
        *,
        window: int = 128,
        states: int = 8,
        inputs: int = 2,
        outputs: int = 4,
        process_noise: float = 0.05,
        measurement_noise: float = 0.1,
        steps: int = 20_000,
        system_seed: int = 0,
        **windows: Any,
    ) -> None:
        super().__init__(window=window, **windows)
        self.states, self.inputs, self.outputs = states, inputs, outputs
        self.process_noise, self.measurement_noise = process_noise, measurement_noise
        self.steps, self.system_seed = steps, system_seed

    def source(self) -> Source:
        system = linear_system(
            self.system_seed,
            states=self.states,
            inputs=self.inputs,
            outputs=self.outputs,
            process_noise=self.process_noise,
            measurement_noise=self.measurement_noise,
        )
        # Another seed than the system's: matrices and noise must not come from the same random numbers.
        u, y = simulate(system, self.steps, self.system_seed + 1)
        features = (*(f"u{i}" for i in range(self.inputs)), *(f"y{i}" for i in range(self.outputs)))
        frame = pl.DataFrame(np.hstack([u, y]), schema=list(features))
        return Source(
            Table.of(frame, time=None, series=None, columns=features),
            features=features,
            targets=features[self.inputs :],
            optimal=kalman_predictions(system, u, y),
            system=system,
        )


class Market(WindowsDataModule):
    """One-minute bars with a planted signal; the next log return is the target.

    Args:
        ic: the information coefficient of the signal, 0 for pure noise.
        bars: of each instrument.
        system_seed: of the bars; not the seed of the run.
    """

    def __init__(
        self,
        *,
        window: int = 16,
        batch_size: int = 1024,
        ic: float = 0.05,
        bars: int = 200_000,
        instruments: int = 2,
        system_seed: int = 0,
        **windows: Any,
    ) -> None:
        super().__init__(window=window, batch_size=batch_size, **windows)
        self.ic, self.bars, self.instruments, self.system_seed = ic, bars, instruments, system_seed

    def source(self) -> Source:
        drawn = market_bars(self.system_seed, self.ic, bars=self.bars, instruments=self.instruments)
        features = ("log_return", "log_range", "log_volume")
        frame = bar_features(drawn.frame).select("ts", "symbol", *features)
        return Source(
            Table.of(frame, time="ts", series="symbol", columns=features),
            features=features,
            targets=features[:1],
            targets_are_levels=False,
            optimal=drawn.expected_return[:, None],
            planted_ic=self.ic,
        )


class SampleAndHold(WindowsDataModule):
    """A stream of values with rare markers; the target is the value at the latest one, which is known without error.

    Args:
        sequences: that begin with a marker and are independent of each other.
        length: input rows of a sequence: with data.window the same, each is one window.
        marker_rate: the probability that a row is marked.
        system_seed: of the draw; not the seed of the run.
    """

    def __init__(
        self,
        *,
        window: int = 128,
        batch_size: int = 64,
        sequences: int = 20_000,
        length: int = 128,
        marker_rate: float = 0.05,
        system_seed: int = 0,
        **windows: Any,
    ) -> None:
        super().__init__(window=window, batch_size=batch_size, **windows)
        if length < window:
            raise ValueError(f"data.length must be at least data.window={window}, got {length}: a window is of one sequence")
        self.sequences, self.length, self.marker_rate, self.system_seed = sequences, length, marker_rate, system_seed

    def source(self) -> Source:
        frame = sample_and_hold(
            self.system_seed, sequences=self.sequences, rows=self.length + self.horizon, marker_rate=self.marker_rate
        )
        return Source(
            Table.of(frame, time="time", series=None, columns=COLUMNS),
            features=COLUMNS[:2],
            targets=COLUMNS[2:],
            optimal=frame.select(COLUMNS[2:]).to_numpy(),
        )


def launch_folder() -> Path:
    """The folder where the command was started, also inside a Hydra job that has its own working folder."""
    return Path(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else Path.cwd()
