"""One line for each run of a folder: what it was asked for, how it ended and how good it is."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One run. Figures are None where there is none, never NaN.

    Attributes:
        job: the number in its sweep; None for a run of its own.
        overrides: as typed.
        status: running, ok, diverged, unhealthy, failed or interrupted.
        health: the verdict.
        best_baseline: its name.
        skill: the share of the best baseline's mse that is saved.
        message: why, where it is not ok.
        folder: the run folder.
    """

    job: int | None
    overrides: tuple[str, ...]
    status: str
    folder: Path
    model: str = ""
    data: str = ""
    objective: float | None = None
    val_mse: float | None = None
    test_mse: float | None = None
    test_mae: float | None = None
    best_baseline: str | None = None
    best_baseline_mse: float | None = None
    skill: float | None = None
    health: str | None = None
    seconds: float | None = None
    message: str = ""


def rows_of(folder: Path) -> list[Row]:
    """Every run in a folder of runs or of a sweep; of a job that was done again only its latest attempt.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
    """
    raise NotImplementedError
