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


@pytest.fixture
def run_folder():
    """Write what a run leaves behind, by hand: a function of its folder and of what shall be in it."""
    from statewise.runs import write_json
    from statewise.summary import errors_on_test, summarise

    def write(
        folder: Path,
        overrides: list[str],
        *,
        mse: float | None = None,
        val: float | None = None,
        status: str | None = "ok",
        baseline: float = 0.8,
        curve: list[float] | None = None,
        config: str = "",
        **summary: Any,
    ) -> Path:
        """No summary where `status` is None; `curve` is the val/mse of metrics.csv, from step 10 on."""
        (folder / ".hydra").mkdir(parents=True)
        (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {entry}\n" for entry in overrides))
        (folder / ".hydra" / "config.yaml").write_text(f"objective: val/mse\nreport: false\noptimizer:\n  lr: 0.001\n{config}")
        if curve is not None:
            lines = [f"{number},{10 * (number + 1)},{value!r},{value!r}" for number, value in enumerate(curve)]
            (folder / "metrics.csv").write_text("\n".join(["epoch,step,val/mse,train/loss", *lines]) + "\n")
        if status is not None:
            scaled = {"mse": mse or 0.0, "mae": (mse or 0.0) / 2, "mse_per_target": [mse or 0.0], "mae_per_target": [0.1]}
            given = {
                "model": "gru",
                "data": "lti",
                "seed": 0,
                "test": None if mse is None else errors_on_test(["x"], scaled, scaled),
                "val": None if val is None else {"mse": val, "step": 10},
                "baselines": {"last_value": {"mse": 1.0, "mae": 1.0}, "linear": {"mse": baseline, "mae": 0.7}},
                "seconds": {"setup": 0.5, "fit": 2.0},
                **summary,
            }
            write_json(folder / "summary.json", summarise(status=status, **given))
        return folder

    return write
