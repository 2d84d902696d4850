"""The figures of returns and of levels as rows of text, the same in the terminal and on the page."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statewise.summary import RETURN_FIGURES, number

MOST = 24  # rows of each target and step that people read
R2_HEADER = ("R2", "R2 against last value")
_TRADING = {
    "turnover": "turnover",
    "mean_return": "mean return",
    "mean_return_after_cost": "after cost",
    "sharpe": "Sharpe ratio",
    "sharpe_after_cost": "after cost",
    "sharpe_per_year": "Sharpe ratio, a year",
    "sharpe_per_year_after_cost": "after cost",
}


class Rows(NamedTuple):
    """A table: the title of its first column, the other columns, and the cells."""

    title: str
    header: Sequence[str]
    cells: Sequence[Sequence[str]]


def with_error(figure: Mapping[str, float | None]) -> str:
    """A value and its standard error."""
    error = "" if figure.get("se") is None else f" ± {number(figure['se'])}"
    return number(figure.get("value")) + error


def r2_cells(test: Mapping[str, Any], target: str) -> list[str]:
    """Both R2 of a target of levels, never one alone; nothing where there are none."""
    figures = test.get("r2_of_levels", {}).get(target)
    if not figures or figures["r2_against_last_value"] is None:
        return []
    return [number(figures["r2"]), number(figures["r2_against_last_value"])]


def each_return(test: Mapping[str, Any]) -> Rows | None:
    """The four figures of each target and step, None where there is one only or more than people read."""
    per_target = test.get("returns_per_target", {})
    steps = max((len(entries) for entries in per_target.values()), default=0)
    cells = [
        [name if steps == 1 else f"{name}, step {entry['step']}", *(with_error(entry[key]) for key in RETURN_FIGURES)]
        for name, entries in per_target.items()
        for entry in entries
    ]
    if not 1 < len(cells) <= MOST:
        return None
    return Rows("each target of returns", list(RETURN_FIGURES.values()), cells)


def trading(test: Mapping[str, Any]) -> Rows | None:
    """What positions would have earned, None where nothing was traded."""
    figures = test.get("trading") or {}
    keys = [key for key in _TRADING if any(key in entry for entry in figures.values())]
    cells = [[name, *(number(entry.get(key)) for key in keys)] for name, entry in figures.items()]
    return Rows("trading, per row", [_TRADING[key] for key in keys], cells) if cells else None
