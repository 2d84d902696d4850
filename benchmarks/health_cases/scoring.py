"""From what health said of a faulty run and of its healthy twin to the score, with the arithmetic of its totals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from health_cases.expected import Names, Row

_RANK = {"info": 0, "warning": 1, "error": 2}
MEASURES = ("found", "right_cause", "right_parameter")


@dataclass(frozen=True)
class Cell:
    """One faulty run: what was found of it. A cell that does not apply has only its reason."""

    fault: str
    family: str
    seed: int
    applicable: bool
    found: bool | None = None
    step: int | None = None
    id: str | None = None
    right_cause: bool | None = None
    right_parameter: bool | None = None
    # The following are printed, not written: the file has the keys that readers were promised.
    contract: bool = True
    late: bool = False
    nameable: bool = False
    equal_weights: bool = False
    shown: int = 0
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key in _WRITTEN}


_WRITTEN = ("fault", "family", "seed", "applicable", "found", "step", "id", "right_cause", "right_parameter")


@dataclass(frozen=True)
class Healthy:
    """One healthy run: all that was found in it from a warning up."""

    set_up: str
    family: str
    seed: int
    findings: list[dict[str, Any]]
    contract: bool = True
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        findings = [{key: finding[key] for key in ("id", "severity", "step", "parameters")} for finding in self.findings]
        return {"set_up": self.set_up, "family": self.family, "seed": self.seed, "findings": findings}


def news(findings: Iterable[Mapping[str, Any]], twin: Iterable[Mapping[str, Any]], severity: str) -> list[Mapping[str, Any]]:
    """The findings of this severity or worse that the healthy twin does not show, in the order of the report."""
    known = {(finding["id"], tuple(finding["parameters"])) for finding in twin if at_least(finding, severity)}
    return [f for f in findings if at_least(f, severity) and (f["id"], tuple(f["parameters"])) not in known]


def at_least(finding: Mapping[str, Any], severity: str) -> bool:
    return _RANK[finding["severity"]] >= _RANK[severity]


def names_rightly(named: Sequence[str], affected: Names | None) -> bool:
    """Whether something is named, and nothing but what the fault affects. True where there is nothing to name."""
    if affected is None:
        return True
    return bool(named) and all(any(fnmatchcase(name, pattern) for pattern in affected) for name in named)


def judge(
    row: Row,
    onset: int,
    affected: Names | None,
    findings: Iterable[Mapping[str, Any]],
    twin: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """Judge a faulty run by the first finding of its report: that is what people read."""
    new = news(findings, twin, row.severity)
    if not new:
        return {"found": False, "nameable": affected is not None}
    first = new[0]
    return {
        "found": True,
        "step": first["step"],
        "id": first["id"],
        "right_cause": first["id"] in row.ids,
        "right_parameter": names_rightly(first["parameters"], affected),
        "late": first["step"] > onset + row.step,
        "nameable": affected is not None,
        "shown": len(new),
    }


def totals(cells: Iterable[Cell], healthy: Sequence[Healthy]) -> dict[str, Any]:
    """Shares over the cells that apply; the right parameter over those where there is one to name."""
    applied = [cell for cell in cells if cell.applicable]
    found = [cell for cell in applied if cell.found]
    named = [cell for cell in found if cell.nameable]
    return {
        "cells": len(applied),
        "found": _share(len(found), len(applied)),
        "right_cause": _share(sum(bool(cell.right_cause) for cell in found), len(found)),
        "right_parameter": _share(sum(bool(cell.right_parameter) for cell in named), len(named)),
        "late": sum(cell.late for cell in found),
        "healthy_runs": len(healthy),
        "healthy_error": sum(any(at_least(f, "error") for f in run.findings) for run in healthy),
        "healthy_warn": sum(any(at_least(f, "warning") for f in run.findings) for run in healthy),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


@dataclass(frozen=True)
class Target:
    """What the project is held to."""

    key: str
    text: str
    bound: float
    better: str

    def met(self, totals_: Mapping[str, Any]) -> bool:
        value = self.value(totals_)
        return value >= self.bound if self.better == "higher" else value <= self.bound

    def value(self, totals_: Mapping[str, Any]) -> float:
        if self.key == "healthy_warn":
            return _share(totals_["healthy_warn"], totals_["healthy_runs"]) if totals_["healthy_runs"] else 0.0
        return float(totals_[self.key])


TARGETS = (
    Target("found", "faults found", 0.98, "higher"),
    Target("right_cause", "right cause, of those found", 0.92, "higher"),
    Target("right_parameter", "right parameter or module, of those found", 0.95, "higher"),
    Target("late", "found later than allowed", 0, "lower"),
    Target("healthy_error", "healthy runs with an error", 0, "lower"),
    Target("healthy_warn", "share of healthy runs with a warning or an error", 0.01, "lower"),
)
