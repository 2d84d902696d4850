"""Two small runs that all tests of this folder predict with: levels of two series, and returns with derived features."""

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from statewise import cli
from statewise.train import main

RUN = [
    "data.window=8",
    "data.batch_size=64",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "scheduler.warmup_steps=2",
    "health=off",
    "logger=csv",
    "report=false",
]
SMALL = ["model.d_model=4", "model.d_state=4", "model.n_layers=1"]


@dataclass
class Trained:
    """A run folder and the file it was trained on."""

    folder: Path
    file: Path


def level_rows(rows=160, *, seed=0, symbols=("AAA", "BBB"), start="2024-01-01T00:00", step="1h"):
    """Two columns of each of some series, with a missing value, a long run of them and a gap in time."""
    random = np.random.default_rng(seed)
    frames = []
    for place, symbol in enumerate(symbols):
        hours = np.arange(rows) + 5 * (np.arange(rows) >= rows // 2)
        walk = 100.0 * (place + 1) + random.standard_normal((rows, 2)).cumsum(0)
        walk[20, 0] = np.nan
        walk[30:36, 1] = np.nan
        times = np.datetime64(start, "ns") + hours * np.timedelta64(int(step[:-1]), step[-1])
        frame = pl.DataFrame({"time": times, "symbol": [symbol] * rows, "a": walk[:, 0], "note": ["x"] * rows, "b": walk[:, 1]})
        frames.append(frame.with_columns(pl.col("a", "b").fill_nan(None), pl.col("time").dt.to_string("%Y-%m-%dT%H:%M:%SZ")))
    return pl.concat(frames)


def price_rows(rows=260, *, seed=1):
    """One-minute prices and volumes in UTC."""
    random = np.random.default_rng(seed)
    times = np.datetime64("2024-03-01T09:00", "ns") + np.arange(rows) * np.timedelta64(1, "m")
    close = 100.0 * np.exp(0.01 * random.standard_normal(rows).cumsum())
    frame = pl.DataFrame({"ts": times, "close": close, "volume": random.integers(1, 1000, rows)})
    return frame.with_columns(pl.col("ts").dt.to_string("%Y-%m-%dT%H:%M:%SZ"))


def trained(folder, *overrides):
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.chdir(folder)
        code = main([*RUN, *overrides, f"hydra.run.dir={folder / 'run'}"])
    assert code == 0, said.getvalue()
    return folder / "run"


@pytest.fixture(scope="session")
def of_levels(tmp_path_factory):
    """A dense SSM on the levels of two series, three steps ahead; its data are gone."""
    folder = tmp_path_factory.mktemp("levels")
    file = folder / "levels.csv"
    level_rows().write_csv(file)
    options = ["data=file", "data.path=levels.csv", "data.features=[a,b]", "data.horizon=3", "data.missing.max_fill=3"]
    run = trained(folder, *SMALL, *options)
    return Trained(run, file.rename(folder / "moved.csv"))


@pytest.fixture(scope="session")
def of_returns(tmp_path_factory):
    """A GRU on derived features; the target is the return over two rows."""
    folder = tmp_path_factory.mktemp("returns")
    price_rows().write_csv(folder / "prices.csv")
    features = "data.features=['log_return(close)','zscore(volume, 5)','hour()']"
    options = ["data=file", "data.path=prices.csv", features, "data.targets=['log_return(close, 2)']", "evaluate.cost=1e-4"]
    run = trained(folder, "model=gru", "model.d_model=4", "model.n_layers=1", *options)
    return Trained(run, folder / "prices.csv")


@pytest.fixture
def statewise(tmp_path, monkeypatch):
    """Calls the command in a folder of its own: its result with exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, stdin=None):
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)

    return call


@pytest.fixture(scope="session")
def levels():
    """Makes the rows of the first file, or rows like them."""
    return level_rows


@pytest.fixture(scope="session")
def prices():
    """Makes the rows of the second file, or rows like them."""
    return price_rows
