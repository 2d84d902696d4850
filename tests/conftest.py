"""Every test runs with the shapes in the signatures checked (jaxtyping, beartype) and on one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest

jaxtyping.install_import_hook("statewise", "beartype.beartype")
# How fast examples are drawn says something of the machine and what else it does, nothing of the code.
hypothesis.settings.register_profile("tests", suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.load_profile("tests")

# A run that takes about a second: a small linear system, a small model, every part of a real run.
TINY = [
    "data=lti",
    "data.steps=400",
    "data.window=16",
    "data.batch_size=64",
    "model.d_model=4",
    "model.d_state=4",
    "model.n_layers=1",
    "scheduler.warmup_steps=2",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
    "logger=csv",
    "report=false",
]


@dataclass
class Outcome:
    """What a command left: its exit code, its folder, what it said."""

    code: int
    folder: Path
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture
def train(tmp_path, capsys, monkeypatch):
    """Run `statewise.train.main` in the process with a folder of its own and return the outcome."""
    from statewise.train import main

    monkeypatch.chdir(tmp_path)
    count = iter(range(1000))

    def run(*overrides: str, tiny: bool = True) -> Outcome:
        folder = tmp_path / f"run{next(count)}"
        capsys.readouterr()
        code = main([*(TINY if tiny else []), f"hydra.run.dir={folder}", *overrides])
        said = capsys.readouterr()
        return Outcome(code, folder, said.out, said.err)

    return run
