"""What a run says in the terminal when it is done: tables that also read well in a log or a pipe."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statewise.returns_tables import R2_HEADER, Rows, each_return, r2_cells, trading
from statewise.summary import RETURN_FIGURES, number, percent, result_rows, verdict_on_result

MIN_WIDTH = 100
PIPE_WIDTH = 160
MAX_TARGETS = 12
COLOURS = {"ok": "green", "healthy": "green", "warning": "yellow", "not_checked": "yellow"}


def console() -> Console:
    """A console on standard output that is never narrower than the tables need.

    Without a terminal rich assumes 80 columns, or what COLUMNS says, and would shorten numbers to fit.
    """
    found = Console(highlight=False)
    width = max(found.width, MIN_WIDTH if found.is_terminal else PIPE_WIDTH)
    return Console(highlight=False, width=width)


def results_table(summary: Mapping[str, Any], rows: str = "test rows") -> Table:
    """Model, baselines and floor: errors on the same rows and skill against the best baseline."""
    table = _table()
    table.add_column(Text(f"{summary['data']}, {rows}, scaled units"), no_wrap=True)
    for name in ("MSE", "MAE", "skill"):
        table.add_column(name, justify="right", no_wrap=True)
    for index, row in enumerate(result_rows(summary)):
        cells = (Text(row.name), number(row.mse), number(row.mae), percent(row.skill))
        table.add_row(*cells, style="bold" if index == 0 else None)
    return table


def targets_table(summary: Mapping[str, Any]) -> Table | None:
    """The errors of each target, or None where there is one target only or more than a screen should hold."""
    per_target = summary["test"]["per_target"]
    if not 1 < len(per_target) <= MAX_TARGETS:
        return None
    table = _table()
    table.add_column("each target", no_wrap=True)
    beside = {name: r2_cells(summary["test"], name) for name in per_target}
    for name in ("MSE", "MAE", "MSE, original units", "MAE, original units", *(R2_HEADER if any(beside.values()) else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for name, errors in per_target.items():
        keys = ("mse", "mae", "mse_original_units", "mae_original_units")
        table.add_row(Text(name), *(number(errors[key]) for key in keys), *beside[name])
    return table


def figures_table(rows: Rows | None) -> Table | None:
    """Rows of text as a table; None stays None."""
    if rows is None:
        return None
    table = _table()
    table.add_column(rows.title, no_wrap=True)
    for name in rows.header:
        table.add_column(name, justify="right", no_wrap=True)
    for name, *cells in rows.cells:
        table.add_row(Text(name), *cells)
    return table


def print_figures(summary: Mapping[str, Any], rows: str = "test rows", *, to: Console) -> None:
    """The tables of errors on some rows, the result in a sentence, and the figures of returns."""
    if summary["test"]["mse"] is not None:
        test = summary["test"]
        of_returns = figures_table(each_return(test)), figures_table(trading(test))
        for table in (results_table(summary, rows), targets_table(summary), *of_returns):
            if table is not None:
                to.print(table)
                to.print()
    verdict = verdict_on_result(summary)
    _line(to, "result", verdict if rows == "test rows" else verdict.replace("Test MSE", f"MSE on {rows}"))
    for key, name in RETURN_FIGURES.items():
        entry = summary["test"].get(key)
        if entry:
            parts = [number(entry.get("value"))]
            parts += [f"± {number(entry['se'])} (standard error)"] if entry.get("se") is not None else []
            parts += [f"planted {number(entry['planted'])}"] if entry.get("planted") is not None else []
            _line(to, name, ", ".join(parts))


def print_results(summary: Mapping[str, Any], folder: Path | str, *, to: Console | None = None) -> None:
    """The end of a run: the table, the result in a sentence, the verdict on the training, and where everything is."""
    to = to or console()
    print_figures(summary, to=to)
    if summary.get("identification"):
        found = (f"{key.replace('_', ' ')} {number(value)}" for key, value in summary["identification"].items())
        _line(to, "identification", ", ".join(found))
    findings = summary["health"]["findings"]
    verdict = summary["health"]["verdict"]
    count = f", {len(findings)} finding{'s' if len(findings) > 1 else ''}" if findings else ""
    _line(to, "training", f"{verdict.replace('_', ' ')}{count}", COLOURS.get(verdict, "red"))
    for finding in findings:
        _line(to, "", f"{finding['severity']} {finding['id']}: {finding['message']}")
    _line(to, "status", summary["status"], COLOURS.get(summary["status"], "red"))
    if summary.get("error") and summary["test"]["mse"] is not None:
        _line(to, "reason", summary["error"])
    _line(to, "folder", str(folder))


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _line(to: Console, name: str, text: str, style: str = "") -> None:
    """Soft wrapping leaves the breaking of long lines to the terminal, so that a path can be copied in one piece."""
    to.print(Text.assemble((f"{name.replace('_', ' '):<24}", "dim"), (text, style)), soft_wrap=True)
