"""What a sweep over `data.fold` comes to: a line for each fold, their mean and its standard error.

python train.py -m data.folds.n=4 data.fold=0,1,2,3                  one group of four folds
python train.py -m data.folds.n=4 data.fold=0,1 model=gru,nlinear    two groups of two: one for each way to train
"""

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from statewise.summary import best_baseline, number, percent, result_rows

FIGURES = ("test_mse", "test_mae", "best_baseline_mse", "skill")
COLUMNS = ("overrides", "fold", "status", "test_mse", "test_mae", "best_baseline", "best_baseline_mse", "skill", "folder")
_KEY = "data.fold="


@dataclass(frozen=True)
class Group:
    """The folds of one way to train.

    Attributes:
        overrides: what tells it from the other groups; empty where there is one.
        folds: for each job a mapping of COLUMNS, in the order of the folds; figures are None where there is none.
    """

    overrides: str
    folds: tuple[Mapping[str, Any], ...]

    def over_folds(self) -> tuple[dict[str, float | None], dict[str, float | None]]:
        """Mean and standard error of each figure over the folds that went well (of one fold there is no error)."""
        means: dict[str, float | None] = {}
        errors: dict[str, float | None] = {}
        for name in FIGURES:
            values = [fold[name] for fold in self.folds if fold["status"] == "ok" and fold[name] is not None]
            mean = math.fsum(values) / len(values) if values else None
            means[name], errors[name] = mean, None
            if mean is not None and len(values) > 1:
                squares = math.fsum((value - mean) ** 2 for value in values)
                errors[name] = math.sqrt(squares / (len(values) - 1) / len(values))
        return means, errors


def fold_groups(jobs: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The jobs of a multirun that differ in their fold, by everything else they differ in; none where it was not swept.

    A job has `overrides` (a list), `status` and `folder`.
    """
    swept = [job for job in jobs if _fold_of(job["overrides"]) is not None]
    if len({_fold_of(job["overrides"]) for job in swept}) < 2:
        return []
    others = [[entry for entry in job["overrides"] if not entry.startswith(_KEY)] for job in swept]
    common = set(others[0]).intersection(*others)
    groups: dict[str, list[dict[str, Any]]] = {}
    for job, entries in zip(swept, others, strict=True):
        label = " ".join(entry for entry in entries if entry not in common)
        groups.setdefault(label, []).append(_line(job, label))
    return [Group(label, tuple(sorted(lines, key=lambda line: line["fold"]))) for label, lines in groups.items()]


def fold_table(groups: Sequence[Group]) -> Table:
    """For the terminal; skill is the share of the best baseline's mse that is saved."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    if len(groups) > 1:
        table.add_column("overrides", overflow="fold")
    table.add_column("fold", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for name in ("test MSE", "test MAE", "best baseline", "its MSE", "skill"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        label = [Text(group.overrides)] if len(groups) > 1 else []
        for fold in group.folds:
            table.add_row(*label, str(fold["fold"]), fold["status"], *_cells(fold, fold["best_baseline"] or "–"))
        means, errors = group.over_folds()
        counted = sum(fold["status"] == "ok" for fold in group.folds)
        table.add_row(*label, "mean", f"of {counted}", *_cells(means, ""), style="bold")
        error = errors["skill"]
        plus_minus = "–" if error is None else f"{100 * error:.2f} %"
        table.add_row(*label, "± standard error", "", *_cells(errors, "")[:-1], plus_minus, end_section=True)
    return table


def write_folds(groups: Sequence[Group], folder: Path) -> None:
    """Writes folds.csv, one line for each fold and then mean and standard error, and folds.json into the sweep's folder."""
    lines: list[Mapping[str, Any]] = []
    for group in groups:
        means, errors = group.over_folds()
        lines += group.folds
        lines += [{"overrides": group.overrides, "fold": "mean", **means}]
        lines += [{"overrides": group.overrides, "fold": "standard_error", **errors}]
    with (folder / "folds.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(lines)
    entries = []
    for group in groups:
        means, errors = group.over_folds()
        entries.append({"overrides": group.overrides, "folds": list(group.folds), "mean": means, "standard_error": errors})
    (folder / "folds.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def sweep_folder(groups: Sequence[Group]) -> Path:
    """The folder that holds those of all jobs."""
    return Path(os.path.commonpath([fold["folder"] for group in groups for fold in group.folds]))


def _fold_of(overrides: Iterable[str]) -> int | None:
    """The last one counts, as in Hydra."""
    values = [entry.removeprefix(_KEY) for entry in overrides if entry.startswith(_KEY)]
    return int(values[-1]) if values and values[-1].isdecimal() else None


def _line(job: Mapping[str, Any], label: str) -> dict[str, Any]:
    line = dict.fromkeys(COLUMNS) | {"overrides": label, "fold": _fold_of(job["overrides"]), "status": job["status"]}
    line["folder"] = str(job["folder"])
    path = Path(job["folder"]) / "summary.json"
    if path.is_file():
        summary = json.loads(path.read_text(encoding="utf-8"))
        model, best = result_rows(summary)[0], best_baseline(summary)
        line |= {"test_mse": model.mse, "test_mae": model.mae, "skill": model.skill}
        if best is not None:
            line |= {"best_baseline": best[0].replace("_", " "), "best_baseline_mse": best[1]}
    return line


def _cells(figures: Mapping[str, Any], baseline: str) -> list[str]:
    errors = (number(figures[name]) for name in ("test_mse", "test_mae"))
    return [*errors, baseline, number(figures["best_baseline_mse"]), percent(figures["skill"])]
