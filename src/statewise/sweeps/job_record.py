"""job.json in the folder of a job: what became of it, written by whoever watched over it, also where the job itself could not.

A run writes its summary itself; a job that was killed, ran out of memory or called sys.exit has none. This record is there for
every job of a sweep.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from statewise.runs import write_json

JOB = "job.json"


@dataclass(frozen=True)
class JobRecord:
    """What became of one job of a sweep.

    Attributes:
        number: of the job in its sweep, from 0.
        overrides: those of the job: what tells it from the others, and what it shares with them.
        status: running, ok, diverged, unhealthy, failed or interrupted.
        exit_code: of the job; 128 + the signal's number where a signal ended its process, None while it runs.
        message: why, where it is not ok: one line.
        objective: what the sweep minimises; None where there is none, never NaN.
        seconds: from its start to its end.
        folder: the run folder, absolute.
    """

    number: int
    overrides: list[str]
    status: str
    folder: Path
    exit_code: int | None = None
    message: str = ""
    objective: float | None = None
    seconds: float = 0.0

    def write(self) -> None:
        """Into its folder, atomically."""
        write_json(self.folder / JOB, asdict(replace(self, folder=self.folder.absolute())) | {"folder": str(self.folder)})


def read_job(folder: Path) -> JobRecord | None:
    """The record in a folder; None where it holds none that can be read."""
    try:
        found = json.loads((folder / JOB).read_text(encoding="utf-8"))
        return JobRecord(**{**found, "folder": folder})  # the folder may have been moved since
    except (OSError, ValueError, TypeError):
        return None
