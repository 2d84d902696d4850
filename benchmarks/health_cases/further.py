"""The further look-alikes (X): healthy runs by the same rules, in a table of their own and counted apart from the score."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from health_cases.scoring import Healthy, at_least
from health_cases.set_up import SetUp


def is_flagged(run: Healthy) -> bool:
    """Whether anything from a warning up was found in it."""
    return any(at_least(finding, "warning") for finding in run.findings)


def counted(runs: Sequence[Healthy]) -> dict[str, int]:
    """How many there are, and how many of them were flagged."""
    return {"runs": len(runs), "flagged": sum(map(is_flagged, runs))}


def in_words(run: Healthy) -> str:
    """One run in a few characters, with what was declared in it marked."""
    said = ", ".join(f"{f['severity']} {f['id']} at {f['step']}" for f in run.findings)
    marks = f"[yellow]{said}[/]" if said else "quiet"
    where = f"{run.family} {run.seed}{', declared' if run.contract else ''}"
    return f"{where}: {marks}{f' ({run.note})' if run.note else ''}"


def further_table(runs: Iterable[Healthy], set_ups: Mapping[str, SetUp]) -> Table:
    """A row for each set-up: its runs that were flagged or ended early, else how many were left alone."""
    table = Table("id", "look-alike", "runs", title="further look-alikes", caption="not counted in the totals")
    rows: dict[str, list[Healthy]] = {}
    for run in runs:
        rows.setdefault(run.set_up, []).append(run)
    for id, own in rows.items():
        loud = [in_words(run) for run in own if run.findings or run.note]
        calm = len(own) - len(loud)
        table.add_row(id, set_ups[id].title, "\n".join([*loud, *([f"{calm} quiet"] if calm else [])]))
    return table


def as_dict(runs: Sequence[Healthy]) -> dict[str, Any]:
    """As the score writes it."""
    return {"totals": counted(runs), "healthy": [run.as_dict() for run in runs]}
