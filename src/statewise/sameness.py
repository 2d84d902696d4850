"""The first difference between what two runs left behind: to the bit, with its name, its place and both values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import torch
from torch import Tensor

from statewise.checkpoints import ENTRY
from statewise.runs import Run, load_run

# Of a checkpoint: what a run goes on from. The entry holds the command, which is another one in a run that was resumed.
NOT_COMPARED = frozenset({ENTRY, "pytorch-lightning_version"})
NAMES = {
    "state_dict": "weights",
    "optimizer_states": "optimizer",
    "lr_schedulers": "schedule",
    "callbacks": "callback",
    "loops": "counter",
}


class Difference(NamedTuple):
    """Where two runs part, and what stands there in each of them."""

    name: str
    one: Any
    other: Any

    def __str__(self) -> str:
        return f"{self.name} is {_shown(self.other)} and not {_shown(self.one)}"


def between_checkpoints(one: Path, other: Path, *, left_out: str | None = None) -> Difference | None:
    """Weights, optimizer, schedule, callbacks' memories, position and counters of two checkpoint files.

    left_out: callbacks whose name holds this word are not compared; the same below for metrics and results.
    """
    if not (one.is_file() and other.is_file()):
        return first_difference(one.is_file(), other.is_file(), f"whether there is a {one.name}")
    first, second = (torch.load(path, map_location="cpu", weights_only=True) for path in (one, other))
    for checkpoint in (first, second):
        known = checkpoint.get("callbacks", {})
        checkpoint["callbacks"] = {name: state for name, state in known.items() if not _names(name, left_out)}
    parts = sorted(set(first) | set(second), key=lambda key: (list(NAMES).index(key) if key in NAMES else len(NAMES), str(key)))
    for key in parts:
        if key not in NOT_COMPARED:
            found = first_difference(first.get(key), second.get(key), NAMES.get(key, str(key)))
            if found is not None:
                return found
    return None


def between_results(one: Path, other: Path, *, left_out: str | None = None) -> Difference | None:
    """Predictions, test errors, health findings and the histories of two run folders."""
    found = first_difference(_results(load_run(one), left_out), _results(load_run(other), left_out), "")
    for name in ("predictions.parquet", "gradient_norms.parquet", "eigenvalues.parquet"):
        found = found or first_difference(_columns(one / name), _columns(other / name), name.removesuffix(".parquet"))
    return found


def between_metrics(whole: Path, parts: Sequence[Path], *, left_out: str | None = None) -> Difference | None:
    """The rows of metrics.csv that training wrote: those of `parts`, one after another, are to be the last ones of `whole`."""
    expected, got = _rows(whole, left_out), [row for part in parts for row in _rows(part, left_out)]
    if len(got) > len(expected):
        return Difference("the number of rows in metrics.csv", len(expected), len(got))
    return first_difference(expected[len(expected) - len(got) :], got, "metrics.csv row")


def first_difference(one: Any, other: Any, name: str) -> Difference | None:
    """The first leaf in which two trees of plain values and tensors are not the same; NaN equals NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _between_tensors(one, other, name)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [*one, *(key for key in other if key not in one)]
        children: Iterator[tuple[Any, Any, Any]] = ((key, one.get(key), other.get(key)) for key in keys)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return Difference(f"the length of {name}", len(one), len(other))
        children = ((f"[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        same = one == other or (_is_nan(one) and _is_nan(other))
        return None if same and isinstance(other, type(one)) else Difference(name, one, other)
    for key, a, b in children:
        found = first_difference(a, b, f"{name}{key}" if str(key).startswith("[") or not name else f"{name} {key}")
        if found is not None:
            return found
    return None


def _between_tensors(one: Tensor, other: Tensor, name: str) -> Difference | None:
    if one.shape != other.shape or one.dtype != other.dtype:
        return Difference(f"the form of {name}", f"{list(one.shape)} {one.dtype}", f"{list(other.shape)} {other.dtype}")
    same = (one == other) | (one.isnan() & other.isnan()) if one.is_floating_point() or one.is_complex() else one == other
    if bool(same.all()):
        return None
    place = (~same).reshape(-1).nonzero()[0].item()
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), one.shape)]
    at = str(index) if index else ""
    return Difference(f"{name}{at}", one.reshape(-1)[int(place)].item(), other.reshape(-1)[int(place)].item())


def _results(run: Run, left_out: str | None) -> dict[str, Any]:
    summary, health = run.summary or {}, run.health or {}
    findings = {"verdict": health.get("verdict"), "findings": health.get("findings")}
    results = {"test": summary.get("test"), "steps": summary.get("steps"), "health": findings}
    return {name: value for name, value in results.items() if not _names(name, left_out)}


def _columns(path: Path) -> dict[str, list[Any]] | None:
    return pl.read_parquet(path).to_dict(as_series=False) if path.is_file() else None


def _rows(folder: Path, left_out: str | None = None) -> list[dict[str, Any]]:
    """What was logged, row by row, without what was never there and without the test, which every run has."""
    metrics = load_run(folder).metrics
    if metrics is None:
        return []
    rows = ({name: value for name, value in row.items() if value is not None} for row in metrics.iter_rows(named=True))
    return [row for row in rows if not any(name.startswith("test/") or _names(name, left_out) for name in row)]


def _names(name: Any, word: str | None) -> bool:
    return word is not None and word in str(name).lower()


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
