"""Two small runs that all tests of this folder look at: the default model, and one that the original can express."""

import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from statewise import cli
from statewise.train import main

RUN = [
    "data=lti",
    "data.steps=400",
    "data.window=16",
    "data.batch_size=64",
    "model.d_model=4",
    "model.d_state=4",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "health=off",
    "logger=csv",
    "report=false",
]
ORIGIN = ["experiment=origin", "model.expand=2"]


def trained(folder, *overrides):
    said = io.StringIO()
    with redirect_stdout(said):
        code = main([*overrides, f"hydra.run.dir={folder}"])
    assert code == 0, said.getvalue()
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The default dense SSM with one layer, stopped after 4 of 5 steps of its first epoch, so that it can be resumed."""
    folder = tmp_path_factory.mktemp("default") / "run"
    return trained(folder, *RUN, "model.n_layers=1", "scheduler.warmup_steps=2", "trainer.stop_after_steps=4")


@pytest.fixture(scope="session")
def origin_run(tmp_path_factory):
    """The original's model in small: expand=2, so that d_model and d_inner are two numbers."""
    return trained(tmp_path_factory.mktemp("origin") / "run", *ORIGIN, *RUN)


@pytest.fixture(scope="session")
def new_file(tmp_path_factory):
    """Rows of the form of the runs' data: six columns, four of them targets."""
    names = ["u0", "u1", "y0", "y1", "y2", "y3"]
    rows = np.random.default_rng(0).standard_normal((40, len(names)))
    path = tmp_path_factory.mktemp("new") / "new.csv"
    pl.DataFrame(dict(zip(names, rows.T, strict=True))).write_csv(path)
    return path


@pytest.fixture
def statewise():
    """Type a command: `statewise("checkpoint", "inspect", path)`."""

    def typed(*arguments):
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])

    return typed


@pytest.fixture
def predictions(statewise, new_file, tmp_path):
    """What a run folder, or a checkpoint, predicts on the new file."""

    def of(place: Path) -> pl.DataFrame:
        out = tmp_path / "predictions.parquet"
        result = statewise("predict", place, "--data", new_file, "--out", out)
        assert result.exit_code == 0, result.output
        return pl.read_parquet(out)

    return of
