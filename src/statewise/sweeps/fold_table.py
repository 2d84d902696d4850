"""What a sweep over `data.fold` comes to: a line for each fold, their mean and its standard error.

python train.py -m data.folds.n=4 data.fold=0,1,2,3                  one group of four folds
python train.py -m data.folds.n=4 data.fold=0,1 model=gru,nlinear    two groups of two: one for each way to train
"""

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from statewise.runs import atomic_file, write_json
from statewise.summary import number, percent
from statewise.sweeps.rows import Row, identity, key_of

FIGURES = ("test_mse", "test_mae", "best_baseline_mse", "skill")
COLUMNS = ("overrides", "fold", "status", "test_mse", "test_mae", "best_baseline", "best_baseline_mse", "skill", "folder")
_KEY = "data.fold"


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


def fold_groups(rows: Iterable[Row]) -> list[Group]:
    """The jobs of a sweep that differ in their fold, by everything else they differ in; none where it was not swept."""
    swept = [row for row in rows if _fold_of(row.overrides) is not None]
    if len({_fold_of(row.overrides) for row in swept}) < 2:
        return []
    others = [sorted(entry for entry in identity(row.overrides) if key_of(entry) != _KEY) for row in swept]
    common = set(others[0]).intersection(*others)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row, entries in zip(swept, others, strict=True):
        label = " ".join(entry for entry in entries if entry not in common)
        groups.setdefault(label, []).append(_line(row, label))
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
    """Writes folds.csv, one line for each fold and then mean and standard error, and folds.json into the sweep's folder.

    Folders of jobs are below that of the files, so that all can move together.
    """
    lines: list[Mapping[str, Any]] = []
    entries = []
    for group in groups:
        means, errors = group.over_folds()
        folds = [{**fold, "folder": os.path.relpath(fold["folder"], folder)} for fold in group.folds]
        lines += folds
        lines += [{"overrides": group.overrides, "fold": "mean", **means}]
        lines += [{"overrides": group.overrides, "fold": "standard_error", **errors}]
        entries.append({"overrides": group.overrides, "folds": folds, "mean": means, "standard_error": errors})
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    with atomic_file(folder / "folds.csv") as file:
        file.write(text.getvalue().encode("utf-8"))
    write_json(folder / "folds.json", entries)


def _fold_of(overrides: Iterable[str]) -> int | None:
    """The last one counts, as in Hydra."""
    values = [entry.partition("=")[2] for entry in overrides if key_of(entry) == _KEY]
    return int(values[-1]) if values and values[-1].isdecimal() else None


def _line(row: Row, label: str) -> dict[str, Any]:
    line = {name: getattr(row, name, None) for name in COLUMNS}
    return line | {"overrides": label, "fold": _fold_of(row.overrides), "folder": str(row.folder)}


def _cells(figures: Mapping[str, Any], baseline: str) -> list[str]:
    errors = (number(figures[name]) for name in ("test_mse", "test_mae"))
    return [*errors, baseline, number(figures["best_baseline_mse"]), percent(figures["skill"])]
