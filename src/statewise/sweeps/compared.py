"""What can be drawn of many runs together: their curves, their test errors, and the objective over what was varied."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import polars as pl

from statewise import page_parts as parts
from statewise import runs
from statewise.sweeps import comparison_figures as draw
from statewise.sweeps.choosing import value_of
from statewise.sweeps.rows import Row, best_rows, common_overrides, key_of, of_the_run, varied_overrides
from statewise.sweeps.table import listed

MAX_KEYS = 6
FAR = 1000.0  # times the median
CURVES = {"train/loss": "training loss", "val/loss": "validation loss", "val/mse": "validation error"}


def varied_keys(rows: Sequence[Row]) -> list[str]:
    """What the rows differ in, in the order in which it was typed."""
    common = common_overrides(rows)
    return list(dict.fromkeys(key_of(entry) for row in rows for entry in varied_overrides(row, common)))


def name_of(row: Row, common: Sequence[str]) -> str:
    """For a legend or an axis: the number and what the row has for itself, of each key its last word."""
    number = row.folder.name if row.job is None else str(row.job)
    own = " ".join(f"{key_of(entry).rpartition('.')[2]}={entry.partition('=')[2]}" for entry in varied_overrides(row, common))
    text = f"{number}: {own}" if own else number
    return text if len(text) <= 38 else f"{text[:36]}…"


def comparable(rows: Sequence[Row]) -> list[Row]:
    """The rows that ended ok without those so far above the others that on their scale nothing else could be told apart."""
    good = [row for row in rows if row.status == "ok"]
    for name in ("objective", "test_mse"):
        values = [value for row in good if (value := getattr(row, name)) is not None]
        limit = FAR * float(np.median(values)) if values and min(values) > 0 else math.inf
        good = [row for row in good if (getattr(row, name) or 0.0) <= limit]
    return good


def colours_of(rows: Sequence[Row]) -> dict[Row, str]:
    """Of the rows that can be compared, the best first."""
    good = sorted(comparable(rows), key=lambda row: (row.objective is None, row.objective or 0.0, row.folder))
    return dict(zip(good, draw.colours(len(good)), strict=True)) if good else {}


def pictures(rows: Sequence[Row], objective: str) -> Iterator[parts.Picture]:
    """The panels of some runs on the same data."""
    yield from _curves(rows)
    yield from _test_errors(rows)
    yield from _against(rows, objective)


def _curves(rows: Sequence[Row]) -> Iterator[parts.Picture]:
    colour, best = colours_of(rows), best_rows(rows)
    metrics = {row: found for row in rows if (found := _metrics(row)) is not None}
    drawn: dict[str, list[draw.Curve]] = {}
    for name in CURVES:
        for row, table in metrics.items():
            steps, values = _logged(table, name)
            if len(steps):
                curve = draw.Curve(steps, values, colour.get(row, ""), ok=row in colour, best=row in best)
                drawn.setdefault(name, []).append(curve)
    same = _same(drawn.get("val/loss", []), drawn.get("val/mse", []))
    for name, lines in drawn.items():
        if name == "val/loss" and same:
            continue
        title = f"{CURVES[name].capitalize()} ({'val/mse and val/loss' if name == 'val/mse' and same else name})"
        grey = any(not line.ok for line in lines)
        caption = "Dashed and grey: a run that did not end well, or far above the others." if grey else ""
        yield name.replace("/", "_"), partial(draw.curves, title, lines), caption


def _test_errors(rows: Sequence[Row]) -> Iterator[parts.Picture]:
    colour, common = colours_of(rows), common_overrides(rows)
    tested = [row for row in colour if row.test_mse is not None]
    if not tested:
        return
    baselines = {(row.best_baseline, row.best_baseline_mse) for row in tested}
    baseline = baselines.pop() if len(baselines) == 1 else (None, None)
    summary = runs.Run(tested[0].folder).summary or {}
    names, errors = [name_of(row, common) for row in tested], [row.test_mse for row in tested]
    far = [name_of(row, common) for row in rows if row.status == "ok" and row not in colour]
    caption = "Left of the dashed line a run is better than the best baseline on the same test rows." if baseline[0] else ""
    yield (
        "test_errors",
        lambda: draw.test_errors(
            names,
            [error for error in errors if error is not None],
            [colour[row] for row in tested],
            (baseline[0], baseline[1]) if baseline[0] and baseline[1] is not None else None,
            (summary.get("floor") or {}).get("mse") if len(baselines) == 0 else None,
        ),
        f"{caption} Far to the right of all this: {listed(far)}." if far else caption,
    )


def _against(rows: Sequence[Row], objective: str) -> Iterator[parts.Picture]:
    keys, good = varied_keys(rows), set(comparable(rows))
    shown = [key for key in keys if key != "seed" and of_the_run(key)] or keys
    values = {key: [_value(value_of(row, key)) for row in rows] for key in shown[:MAX_KEYS]}
    for key, xs in values.items():
        if not all(isinstance(x, float) for x in xs):
            xs = [f"{x:g}" if isinstance(x, float) else x for x in xs]
        other = next((name for name in values if name != key), None) if len(values) == 2 else None
        lines = [_word(value) for value in values[other]] if other else [""] * len(rows)
        ys = [row.objective if row in good else None for row in rows]
        points = [draw.Point(x, y, line) for x, y, line in zip(xs, ys, lines, strict=True)]
        yield (
            f"over_{key}",
            partial(draw.against, key, points, objective, other or ""),
            "A dot is a run; a line or a dash is at the median of those at the same place."
            if len(rows) > len(set(zip(xs, lines, strict=True)))
            else "A dot is a run.",
        )


def _metrics(row: Row) -> pl.DataFrame | None:
    try:
        return runs.Run(row.folder).metrics
    except pl.exceptions.PolarsError:  # its run is writing it just now
        return None


def _logged(metrics: pl.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray]:
    from statewise.figures import logged, smoothed

    if name == "train/loss":
        steps, values = logged(metrics, "train/loss_epoch")
        if len(steps) > 1:
            return steps, values
        steps, values = logged(metrics, name)
        return steps, smoothed(values) if len(values) else values
    return logged(metrics, name)


def _same(some: Sequence[draw.Curve], others: Sequence[draw.Curve]) -> bool:
    return len(some) == len(others) and all(
        len(one.values) == len(other.values) and np.allclose(one.values, other.values, rtol=1e-6)
        for one, other in zip(some, others, strict=True)
    )


def _value(found: object) -> float | str:
    if isinstance(found, bool) or found is None:
        return str(found).lower()
    try:
        return float(str(found))
    except ValueError:
        return str(found)


def _word(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else value
