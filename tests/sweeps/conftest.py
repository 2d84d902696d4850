"""Sweeps of jobs that take no time: each is a process of its own as in earnest, but what it does its seed says."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

KILLED, EXITED, DIVERGED, SLOW, NO_VALUE, SILENT = 109, 107, 101, 150, 160, 170

FAKE_JOB = """
import json, math, os, sys, time
from pathlib import Path
folder, summary = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
asked = dict(entry.partition("=")[::2] for entry in sys.argv[3:])
seed = int(asked.get("seed", 0))
print("asked for", *sys.argv[3:], flush=True)
value = float(asked.get("optimizer.lr", 0.001)) + seed / 3
if seed == 109: os.kill(os.getpid(), 9)
if seed == 107: sys.exit(7)
if seed == 150: time.sleep(600)
if seed == 170: sys.exit(0)
if seed == 101:
    summary |= {"status": "diverged", "error": "the training loss is nan", "objective": None}
elif seed == 160:
    summary["objective"] = {"name": "val/f1", "value": None}
else:
    summary["objective"] = {"name": "val/mse", "value": value}
(folder / "summary.json").write_text(json.dumps(summary))
sys.exit(seed == 101)
"""


@dataclass
class Swept:
    """What a command with -m left: its exit code, the folder of the sweep, what it said."""

    code: int
    folder: Path
    out: str
    err: str

    @property
    def records(self) -> dict[int, dict]:
        return {int(path.parent.name): json.loads(path.read_text()) for path in sorted(self.folder.glob("*/job.json"))}

    @property
    def statuses(self) -> list[str]:
        return [record["status"] for _, record in sorted(self.records.items())]

    @property
    def seeds(self) -> list[str]:
        """What tells the jobs apart, in the order of their numbers."""
        return [seed_of(record["overrides"]) for _, record in sorted(self.records.items())]


def seed_of(overrides):
    return next((entry for entry in overrides if entry.startswith("seed=")), "")


@pytest.fixture
def sweep(train, tmp_path):
    """Run a command with -m in the process; the folder of the sweep is always the same."""
    folder = tmp_path / "sweep"

    def run(*overrides: str) -> Swept:
        where = [] if "sweep.resume" in str(overrides) else [f"hydra.sweep.dir={folder}"]
        outcome = train("-m", *where, *overrides, tiny=False)
        return Swept(outcome.code, folder, outcome.out, outcome.err)

    return run


@pytest.fixture
def fake_jobs(monkeypatch, tmp_path):
    """Put the script above in the place of the real command."""
    from statewise.summary import summarise
    from statewise.sweeps import launchers, watch

    template = tmp_path / "template.json"
    template.write_text(json.dumps(summarise(status="ok", model="dense_ssm", data="lti", seed=0)))

    def command(overrides, folder, **_):
        return [sys.executable, "-c", FAKE_JOB, str(folder), str(template), *overrides]

    monkeypatch.setattr(launchers, "command", command)
    monkeypatch.setattr(watch, "POLL", 0.01)
