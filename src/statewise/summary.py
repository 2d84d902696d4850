"""The result of a run in one place: what summary.json holds, and the few sentences and rows people read of it."""

import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

STATUSES = ("ok", "diverged", "unhealthy", "failed", "interrupted")
BASELINES = ("last_value", "zero", "linear")
RETURN_FIGURES = {  # the key and what people call it
    "information_coefficient": "information coefficient",
    "rank_correlation": "rank correlation",
    "directional_accuracy": "directional accuracy",
    "r2_against_zero": "R2 against zero",
}
VERSIONED = ("statewise", "torch", "lightning", "hydra-core", "omegaconf", "torchmetrics", "polars", "numpy", "scipy")


class Errors(TypedDict):
    """Mean squared and mean absolute error in scaled units; None where there is none."""

    mse: float | None
    mae: float | None


class TargetErrors(Errors):
    mse_original_units: float | None
    mae_original_units: float | None


class RunErrors(TargetErrors):
    """Errors on the test rows: unweighted means over the targets, then every target by its name.

    Levels have `r2_of_levels`, each target's R2 beside the one against the last value. Returns have the four figures of
    returns.py (each a value and its standard error), the same for each target and step where there are several, and the
    figures of trading.py for each target where evaluate.cost is set.
    """

    per_target: dict[str, TargetErrors]
    r2_of_levels: NotRequired[dict[str, dict[str, float | None]]]
    information_coefficient: NotRequired[dict[str, float | None]]
    rank_correlation: NotRequired[dict[str, float | None]]
    directional_accuracy: NotRequired[dict[str, float | None]]
    r2_against_zero: NotRequired[dict[str, float | None]]
    returns_per_target: NotRequired[dict[str, list[dict[str, Any]]]]
    trading: NotRequired[dict[str, dict[str, float | None]]]


class Summary(TypedDict):
    """What summary.json holds. Keys are always there; a value is null where the run has none."""

    status: str
    model: str
    data: str
    val: dict[str, float | int | None] | None
    objective: dict[str, str | float | None] | None
    test: RunErrors
    baselines: dict[str, Errors | None]
    floor: dict[str, float | None] | None
    identification: dict[str, float | None] | None
    health: dict[str, Any]
    parameters: int | None
    steps: int
    seconds: dict[str, float | None]
    samples_per_second: float | None
    versions: dict[str, str]
    seed: int | None
    parent: NotRequired[str]
    error: NotRequired[str]
    stopped: NotRequired[str]
    fault: NotRequired[dict[str, str]]
    epoch_borders: NotRequired[dict[str, Any]]


class ResultRow(NamedTuple):
    """One line of the results table. `skill` is the share of the best baseline's mse that is saved."""

    name: str
    mse: float | None
    mae: float | None
    skill: float | None


def plain(value: Any) -> Any:
    """The same value in what JSON knows: arrays and tensors become lists, numbers that are not finite become None."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, torch tensors
        return plain(value.tolist())
    return str(value)


def versions() -> dict[str, str]:
    """The versions that decide a result."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def errors_on_test(
    names: Sequence[str],
    scaled: Mapping[str, Any],
    original: Mapping[str, Any],
    **figures: Any,
) -> RunErrors:
    """The `test` part of the summary from two results of MaskedErrors.compute(), in scaled and in original units.

    A target without one observed value (NaN) becomes null. The figures that not every run has (those of `RunErrors` that are
    not required) appear only where they are given.
    """
    per_target: dict[str, TargetErrors] = {}
    for j, name in enumerate(names):
        per_target[name] = {
            "mse": plain(float(scaled["mse_per_target"][j])),
            "mae": plain(float(scaled["mae_per_target"][j])),
            "mse_original_units": plain(float(original["mse_per_target"][j])),
            "mae_original_units": plain(float(original["mae_per_target"][j])),
        }
    errors: RunErrors = {
        "mse": plain(float(scaled["mse"])),
        "mae": plain(float(scaled["mae"])),
        "mse_original_units": plain(float(original["mse"])),
        "mae_original_units": plain(float(original["mae"])),
        "per_target": per_target,
    }
    unknown = sorted(set(figures) - RunErrors.__optional_keys__)
    if unknown:
        raise TypeError(f"errors_on_test has no figure {unknown[0]!r}")
    return cast(RunErrors, {**errors, **plain(figures)})


def summarise(
    *,
    status: str,
    model: str,
    data: str,
    seed: int | None,
    val: Mapping[str, float | int | None] | None = None,
    objective: Mapping[str, str | float | None] | None = None,
    test: RunErrors | None = None,
    baselines: Mapping[str, Errors | None] | None = None,
    floor: float | None = None,
    identification: Mapping[str, float | None] | None = None,
    health: Mapping[str, Any] | None = None,
    parameters: int | None = None,
    steps: int = 0,
    seconds: Mapping[str, float | None] | None = None,
    samples_per_second: float | None = None,
    parent: str | None = None,
    error: str | None = None,
    stopped: str | None = None,
    fault: Mapping[str, str] | None = None,
    epoch_borders: Mapping[str, Any] | None = None,
) -> Summary:
    """The whole summary, every key present, for a run that ended in whatever way.

    `val` is the best validated mse and the step it was reached at, `objective` the name and the value of what a sweep
    minimises. `floor` is the mse of the best possible predictor on the test rows. `parent` is the run that was resumed,
    `error` the one line that says why a run did not end well, `stopped` where one ended before its plan because it was asked
    to, `fault` the name and a sentence of what was broken on purpose, `epoch_borders` what `EpochBorders` reports; these five
    keys are there only where they mean something.

    Raises: ValueError for a status outside `STATUSES` or a baseline outside `BASELINES`.
    """
    if status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
    unknown = sorted(set(baselines or {}) - set(BASELINES))
    if unknown:
        raise ValueError(f"baselines are {', '.join(BASELINES)}, got {unknown[0]!r}")
    no_errors: RunErrors = {
        "mse": None,
        "mae": None,
        "mse_original_units": None,
        "mae_original_units": None,
        "per_target": {},
    }
    found = plain(baselines or {})
    summary: Summary = {
        "status": status,
        "model": model,
        "data": data,
        "val": None if val is None else plain(val),
        "objective": None if objective is None else plain(objective),
        "test": plain(test) if test is not None else no_errors,
        "baselines": {name: found.get(name) for name in BASELINES},
        "floor": None if floor is None else {"mse": plain(float(floor))},
        "identification": None if identification is None else plain(identification),
        "health": {
            "verdict": (health or {}).get("verdict", "not_checked"),
            "findings": plain(list((health or {}).get("findings", []))),
        },
        "parameters": parameters,
        "steps": int(steps),
        "seconds": {part: plain((seconds or {}).get(part)) for part in ("setup", "fit", "test")},
        "samples_per_second": plain(samples_per_second),
        "versions": versions(),
        "seed": seed,
    }
    if parent is not None:
        summary["parent"] = str(parent)
    if error is not None:
        summary["error"] = " ".join(str(error).split())
    if stopped is not None:
        summary["stopped"] = stopped
    if fault is not None:
        summary["fault"] = dict(fault)
    if epoch_borders is not None:
        summary["epoch_borders"] = plain(epoch_borders)
    return summary


def result_rows(summary: Mapping[str, Any]) -> list[ResultRow]:
    """Model, baselines and floor with their skill against the best baseline, for the tables that people read."""
    best = best_baseline(summary)
    named = {str(summary["model"]): summary["test"]}
    named |= {name.replace("_", " "): entry for name, entry in summary["baselines"].items() if entry is not None}
    if summary.get("floor"):
        named["best possible"] = summary["floor"]
    rows = []
    for name, entry in named.items():
        mse = entry.get("mse")
        skill = None if best is None or mse is None or best[1] <= 0 else 1.0 - mse / best[1]
        rows.append(ResultRow(name, mse, entry.get("mae"), skill))
    return rows


def best_baseline(summary: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and mse of the baseline that is hardest to beat on the test rows."""
    known = [(entry["mse"], name) for name, entry in summary["baselines"].items() if entry and entry["mse"] is not None]
    if not known:
        return None
    mse, name = min(known)
    return name, mse


def verdict_on_result(summary: Mapping[str, Any]) -> str:
    """The result of a run in one sentence, with its distance to the best baseline and to the best possible."""
    mse, best, floor = summary["test"]["mse"], best_baseline(summary), (summary.get("floor") or {}).get("mse")
    if mse is None:
        return f"No test result: {summary.get('error') or summary['status']}"
    sentence = f"Test MSE {number(mse)}"
    if best is not None and best[1] > 0:
        share = mse / best[1] - 1.0
        beside = f"the best baseline ({best[0].replace('_', ' ')}, {number(best[1])})"
        sentence += f", {100 * abs(share):.2f} % {'below' if share < 0 else 'above'} {beside}"
    if floor:
        share = mse / floor - 1.0
        side = "above" if share >= 0 else "below"
        sentence += f", {100 * abs(share):.2f} % {side} the best possible predictor ({number(floor)})"
    return sentence


def number(value: float | None) -> str:
    """A number for people: five decimals where errors in scaled units lie, fewer above, e-notation far below and far above."""
    if value is None:
        return "–"
    size = abs(value)
    if (size != 0 and size < 1e-3) or size >= 1e9:
        return f"{value:.3e}"
    decimals = next((decimals for limit, decimals in ((1, 5), (10, 4), (100, 3)) if size < limit), 1)
    return f"{value:,.{decimals}f}"


def percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.2e} %" if abs(value) >= 1e5 else f"{100 * value:+.2f} %"
