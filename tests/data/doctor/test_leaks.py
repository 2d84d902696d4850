"""The leak audit: honest data pass, and each planted leak is caught and named."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from statewise.data.datamodule import WindowsDataModule
from statewise.data.doctor.changed import CHANGES, changed
from statewise.data.doctor.leaks import FileOf, audit, model_audit
from statewise.data.segments.gaps import Gap
from statewise.data.source import Source
from statewise.data.tables.numeric import InMemory
from statewise.data.tables.table import Table
from statewise.data.windows.folds import Folds


class Derived(WindowsDataModule):
    """Windows of the columns that some function makes of a table."""

    def __init__(self, table, make=None, *, targets=None, reach=0, **windows) -> None:
        super().__init__(**{"window": 4, "batch_size": 16, **windows})
        self._table, self._make, self._targets, self._reach = table, make, targets, reach

    def source(self) -> Source:
        table = self._table
        if self._make is not None:
            columns = {name: self._make(pl.Series(table.read(name), nan_to_null=True)).to_numpy() for name in table.columns}
            if self._targets is not None:
                columns = {**{name: table.read(name) for name in table.columns}, **self._targets(table)}
            table = replace(table, numeric=InMemory(columns))
        targets = table.columns if self._targets is None else tuple(self._targets(self._table))
        features = tuple(name for name in table.columns if self._targets is None or name not in targets)
        return Source(table, features=features, targets=targets, reach=self._reach)


def bars(rows=120, *, minutes=None, series=1) -> Table:
    random = np.random.default_rng(0)
    price = 100 + np.cumsum(random.normal(size=(series, rows)), axis=1).ravel()
    price[[20, 83, 84, rows - 20]] = np.nan
    stamps = np.tile(np.arange(rows) if minutes is None else np.asarray(minutes), series)
    frame = pl.DataFrame(
        {
            "ts": np.datetime64("2024-01-01", "ns") + (stamps * 60 * 10**9).astype("timedelta64[ns]"),
            "who": np.repeat([f"s{i}" for i in range(series)], rows),
            "close": price,
            "volume": np.exp(random.normal(size=rows * series)),
        }
    )
    return Table.of(frame, "ts", "who" if series > 1 else None, ("close", "volume"))


def verdicts(table, make, **keys) -> dict[str, str]:
    """The name of each question, and what was found where it is no pass."""
    return {finding.name: "" if finding.passed else finding.message for finding in audit(table, make, **keys)}


CLEAN = {"training": "", "validation": "", "inputs": ""}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"horizon": 3, "supervision": "all"},
        {"sampling": "contiguous", "supervision": "all"},
        {"folds": Folds(3, "rolling"), "fold": 1},
        {"folds": Folds(3, "surrounding"), "fold": 1, "embargo": 5},
        {"gap": Gap("forward_fill")},
    ],
    ids=["a split", "all", "contiguous", "rolling", "surrounding", "forward fill"],
)
def test_the_data_module_lets_nothing_through(keys):
    minutes = np.delete(np.arange(124), [10, 11, 60, 100])

    assert verdicts(bars(minutes=minutes), lambda table: Derived(table, **keys)) == CLEAN


def test_several_series_let_nothing_through():
    assert verdicts(bars(60, series=3), Derived) == CLEAN


def test_the_expressions_of_a_file_let_nothing_through():
    keys = {"path": "bars.csv", "window": 8, "targets": ["log_return(close, 3)"]}
    keys["features"] = ["log_return(close)", "zscore(volume, 10)", "mean(close, 5)"]

    assert verdicts(bars(), lambda table: FileOf(table, **keys)) == CLEAN


def test_a_scaler_that_has_seen_all_rows_is_caught(monkeypatch):
    monkeypatch.setattr(
        "statewise.data.preparation.prepared.rows_in", lambda blocks, count, short=0: np.ones(count, dtype=bool)
    )

    found = verdicts(bars(), Derived)

    assert found["training"].startswith(
        "rows outside the training blocks were changed (times 1000): the scaler's mean of close was "
    )
    assert found["inputs"] == ""


@pytest.mark.parametrize(
    "leak",
    [
        lambda values: values.rolling_mean(5, min_samples=1, center=True),
        lambda values: values.fill_null(strategy="backward"),
        lambda values: values.fill_null(values.mean()),
        lambda values: values.interpolate(),
        lambda values: (values - values.mean()) / values.std(),
    ],
    ids=["centred mean", "backward fill", "filled with the mean", "interpolated", "standardised as a whole"],
)
def test_features_that_know_later_rows_are_caught(leak):
    # A value is missing on either side of both borders.
    table = bars()
    values = {name: table.read(name).copy() for name in table.columns}
    values["close"][[83, 95]] = np.nan
    found = verdicts(replace(table, numeric=InMemory(values)), lambda table: Derived(table, leak), moments=30)

    assert found["training"].startswith("rows outside the training blocks were changed")
    assert "differ" in found["training"] or "the scaler's" in found["training"]
    assert found["validation"].startswith("rows outside the training and validation blocks were changed")
    assert found["inputs"].startswith("rows after 2024-01-01 ")
    assert "close differs at 2024-01-01 " in found["inputs"]


def test_a_fill_from_a_series_that_begins_later_is_caught():
    table = bars(60, series=2)
    values = {name: np.arange(120.0) + 100 for name in table.columns}
    values["close"][55:60] = np.nan
    times = table.rows.times + np.repeat([0, 30], 60).astype("timedelta64[m]")
    found = verdicts(
        replace(table, rows=replace(table.rows, times=times), numeric=InMemory(values)),
        lambda table: Derived(table, lambda column: column.fill_null(strategy="backward")),
        moments=40,
    )
    assert found["inputs"] == ""

    times = table.rows.times + np.repeat([0, 57], 60).astype("timedelta64[m]")
    found = verdicts(
        replace(table, rows=replace(table.rows, times=times), numeric=InMemory(values)),
        lambda table: Derived(table, lambda column: column.fill_null(strategy="backward")),
        moments=100,
    )
    assert "close differs at 2024-01-01 00:55:00 of series s0" in found["inputs"]


def next_return(table: Table) -> dict[str, np.ndarray]:
    close = table.read("close")
    return {"next": np.append(close[4:], [np.nan] * 4) - close}


def test_a_target_made_of_later_rows_passes_with_its_reach_and_is_caught_without():
    def make(reach):
        return lambda table: Derived(table, lambda column: column, targets=next_return, reach=reach)

    assert verdicts(bars(), make(4)) == CLEAN
    assert "the scaler's mean of next" in verdicts(bars(), make(0))["training"]


def test_a_feature_that_looks_back_into_an_evaluation_block_needs_an_embargo():
    def make(embargo):
        keys = {"folds": Folds(3, "surrounding"), "fold": 0, "embargo": embargo}
        return lambda table: Derived(table, lambda column: column.shift(4), **keys)

    assert "the scaler's" in verdicts(bars(), make(None))["training"]
    assert verdicts(bars(), make(4)) == CLEAN


def test_the_rounding_that_a_running_mean_keeps_is_no_leak():
    def make(embargo):
        keys = {"folds": Folds(3, "surrounding"), "fold": 0, "embargo": embargo}
        return lambda table: Derived(table, lambda column: column.rolling_mean(5, min_samples=1), **keys)

    assert "the scaler's" in verdicts(bars(), make(None))["training"]
    assert verdicts(bars(), make(4)) == CLEAN


def test_a_data_set_that_makes_other_rows_is_refused():
    with pytest.raises(ValueError, match=r"made 120 rows of 121: it cannot be audited row by row"):
        audit(bars(121), lambda table: Derived(bars(120)))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_touches_the_flagged_rows_only_and_no_missing_one(change):
    table, flags = bars(), np.arange(120) >= 80

    for name in table.columns:
        before, after = table.read(name), changed(table, flags, change, 0).read(name)
        assert before[:80].tobytes() == after[:80].tobytes()
        assert np.array_equal(np.isnan(before), np.isnan(after))
        there = ~np.isnan(before[80:])
        assert np.mean(before[80:][there] != after[80:][there]) > 0.9
        assert np.array_equal(np.sign(before[80:][there]), np.sign(after[80:][there]))


def test_a_causal_model_passes_and_one_that_sees_the_future_does_not():
    inputs = torch.randn(3, 12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gru = torch.nn.GRU(2, 4, batch_first=True, dtype=torch.float64)

    assert model_audit(lambda x: gru(x)[0], inputs).passed
    assert model_audit(lambda x: x.cumsum(1), inputs).passed
    centred = model_audit(lambda x: x + 1e-3 * x.roll(-1, dims=1), inputs)
    assert not centred.passed
    assert "inputs after time step 2 were changed: the output at step 2 differs by up to" in centred.message
    assert not model_audit(lambda x: x - x.mean(1, keepdim=True), inputs).passed
    assert not model_audit(lambda x: x / (x.abs().amax(1, keepdim=True) < 2.9), inputs).passed


def test_a_model_is_asked_in_evaluation_mode_and_left_in_training():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 3))

    assert model_audit(model, torch.randn(2, 6, 2)).passed
    assert model.training
