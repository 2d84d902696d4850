"""How many faults of the catalogue training health finds and names, and how many healthy runs it flags.

Every fault in four families of models with two seeds (the second seed makes the mistake in a second way), eight of them
also beginning at step 10, and every healthy set-up for 200 steps; all through a real `Trainer.fit`. What is right is in
`health_cases/expected.py`. With contract means: layers bring their own, and a careful user declares what is meant.
The further look-alikes (X, most of them models of their own, run once with the perceptrons) are shown and not scored.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
# Lightning's search for a learning rate draws a bar of its own.
os.environ["TQDM_DISABLE"] = "1"

import argparse
import json
import multiprocessing
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from health_cases import further
from health_cases.cases import (
    FURTHER,
    SET_UPS,
    Faulty,
    Sound,
    differs_without_contract,
    faulty_cases,
    run_faulty,
    run_sound,
    sound_cases,
)
from health_cases.expected import LATE, LATE_ONSET
from health_cases.families import FAMILIES
from health_cases.faults import FAULTS
from health_cases.scoring import TARGETS, Cell, Healthy, totals
from rich.console import Console
from rich.progress import track
from rich.table import Table

SEEDS = (0, 1)
STEPS = 200
QUICK_STEPS = 25


def one(case: Faulty | Sound) -> Cell | Healthy | None:
    """Any run, in a process of its own or not."""
    torch.set_num_threads(1)
    return run_faulty(case) if isinstance(case, Faulty) else run_sound(case)


def results(cases: Sequence[Faulty | Sound], jobs: int, console: Console) -> dict[Faulty | Sound, Cell | Healthy]:
    """All runs, with a bar of progress on a terminal."""

    def finished() -> Iterator[tuple[Faulty | Sound, Cell | Healthy | None]]:
        if jobs == 1:
            yield from ((case, one(case)) for case in cases)
            return
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            running = {pool.submit(one, case): case for case in cases}
            yield from ((running[future], future.result()) for future in as_completed(running))

    progress = track(finished(), "runs", total=len(cases), console=console, disable=not console.is_terminal)
    done: dict[Faulty | Sound, Cell | Healthy] = {}
    for count, (case, result) in enumerate(progress, 1):
        if result is not None:
            done[case] = result
        if not console.is_terminal and count % 100 == 0:
            console.print(f"{count} of {len(cases)} runs")
    return done


def verdict(cell: Cell) -> str:
    """One run in a few characters: the step, then whether cause and parameter are right."""
    if not cell.applicable:
        return "-"
    if not cell.found:
        return "[red]missed[/]"
    marks = f"{'✓' if cell.right_cause else '✗'}{'✓' if cell.right_parameter else '✗'}" + (" late" if cell.late else "")
    if cell.right_cause and cell.right_parameter and not cell.late:
        return f"{cell.step} {marks}"
    return f"[yellow]{cell.step} {marks} {'' if cell.right_cause else cell.id}[/]".replace(" [/]", "[/]")


def fault_table(cells: Iterable[Cell], title: str) -> Table:
    """A row for each fault, a column for each family; within, a line for each seed."""
    cells = list(cells)
    families = [family for family in FAMILIES if any(cell.family == family for cell in cells)]
    table = Table("id", "fault", *families, title=title, caption="step, cause right, parameter right; - does not apply")
    for label in dict.fromkeys(cell.fault for cell in cells):
        columns = ["\n".join(verdict(c) for c in cells if c.fault == label and c.family == family) for family in families]
        title_ = FAULTS[label.partition("@")[0]].title
        table.add_row(label, title_ + (", from step 10" if "@" in label else ""), *columns)
    return table


def target_table(columns: dict[str, dict[str, Any]], counted: Sequence[dict[str, int]]) -> Table:
    """The totals, each beside what it must be; counted: the further look-alikes of each column, which must be nothing."""
    table = Table("measure", "must be", *columns, title="totals")
    for target in TARGETS:
        sign = ">=" if target.better == "higher" else "<="
        values = [f"{target.value(t):.3g}" + ("" if target.met(t) else " [red]NO[/]") for t in columns.values()]
        table.add_row(target.text, f"{sign} {target.bound:g}", *values)
    for key, text in (("cells", "cells that apply"), ("healthy_runs", "healthy runs")):
        table.add_row(text, "", *(str(t[key]) for t in columns.values()))
    flagged = (f"{one['flagged']} of {one['runs']}" for one in counted[: len(columns)])
    table.add_row("further look-alikes flagged", "", *flagged)
    return table


def complaints(cells: Iterable[Cell], healthy: Iterable[Healthy]) -> list[str]:
    """What would make the score untrue, or a healthy run noisy: one line each, with the runs of which it is true."""
    places: dict[str, list[str]] = {}

    def complain(text: str, where: str) -> None:
        places.setdefault(text, []).append(where)

    for cell in cells:
        where = f"{cell.fault} {cell.family} {cell.seed}{'' if cell.contract else ' (without contract)'}"
        if cell.equal_weights:
            complain("the fault leaves the trained weights equal to the healthy twin's", where)
        if cell.applicable and cell.note:
            complain(cell.note, where)
        if cell.shown > 3:
            complain("more than three findings, more than people read", where)
    for run in healthy:
        where = f"{run.set_up} {run.family} {run.seed}{' (with contract)' if run.contract else ''}"
        if run.note:
            complain(f"a healthy run {run.note}", where)
        for found in run.findings:
            complain(f"healthy but flagged: {found['severity']} {found['id']}", f"{where} at step {found['step']}")
    return [
        f"{text}: {', '.join(where[:6])}{f' and {len(where) - 6} more' if where[6:] else ''}" for text, where in places.items()
    ]


def fails(lines: Iterable[str]) -> bool:
    """Whether one of the complaints makes the score worthless, whatever the totals say."""
    return any("equal to the healthy twin" in line or "raised" in line for line in lines)


def listed(text: str, known: Collection[str], what: str) -> list[str]:
    """A comma-separated option, each entry checked."""
    entries = [entry for entry in text.split(",") if entry]
    for entry in entries:
        if entry not in known:
            raise SystemExit(f"{what} {entry} is none of {', '.join(known)}")
    return entries


def main(argv: list[str] | None = None) -> int:
    """0 where every target is met, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated: %(default)s")
    parser.add_argument("--only", default="", help="these faults and healthy set-ups only, as G1,O7,G1@10,T3,X5")
    parser.add_argument(
        "--quick", action="store_true", help=f"one seed, with contract only, healthy runs of {QUICK_STEPS} steps"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the score to this file")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    options = parser.parse_args(argv)
    families = listed(options.families, FAMILIES, "family")
    only = listed(options.only, [*FAULTS, *(f"{fault}@{LATE_ONSET}" for fault in LATE), *SET_UPS, *FURTHER], "case")
    seeds, steps = (SEEDS[:1], QUICK_STEPS) if options.quick else (SEEDS, STEPS)
    faulty = faulty_cases(families, seeds, only)
    sound = sound_cases(families, seeds, steps, only, bare=not options.quick)
    others = sound_cases(families, seeds, steps, only, bare=not options.quick, set_ups=FURTHER)
    bare = [replace(case, contract=False) for case in faulty if differs_without_contract(case) and not options.quick]
    console = Console(width=None if sys.stdout.isatty() else 160)
    done = results([*faulty, *bare, *sound, *others], options.jobs, console)
    score = Score.of(faulty, sound, others, done)
    console.print(fault_table(score.cells, "with contract"))
    if bare:
        console.print(fault_table([done[case] for case in bare], "without contract, where it differs"))
    columns = {"with contract": score.with_contract}
    if not options.quick:
        columns["without"] = score.without
    if score.further:
        console.print(further.further_table(score.further, FURTHER))
    counted = [further.counted(runs) for runs in (score.further, score.further_undeclared)]
    console.print(target_table(columns, counted))
    lines = complaints([*score.cells, *(done[case] for case in bare)], score.healthy)
    for line in lines:
        console.print(f"- {line}", markup=False)
    if options.json is not None:
        written = score.as_dict(bare=not options.quick)
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    met = all(target.met(t) for target in TARGETS for t in columns.values())
    return 0 if met and not fails(lines) else 1


class Score:
    """All cells and healthy runs, with and without contract, and their totals; `further` look-alikes are in no total."""

    def __init__(
        self,
        cells: list[Cell],
        bare: list[Cell],
        healthy: list[Healthy],
        undeclared: list[Healthy],
        further: list[Healthy],
        further_undeclared: list[Healthy],
    ) -> None:
        self.cells, self.bare, self.healthy, self.undeclared = cells, bare, healthy, undeclared
        self.further, self.further_undeclared = further, further_undeclared
        self.with_contract, self.without = totals(cells, healthy), totals(bare, undeclared)

    @classmethod
    def of(cls, faulty: Sequence[Faulty], sound: Sequence[Sound], others: Sequence[Sound], done: dict[Any, Any]) -> "Score":
        """A run that a contract does not change counts in both columns; one that needs it, in the first alone."""
        kept = [case for case in faulty if case.row is None or not case.row.contract]
        bare = [done.get(replace(case, contract=False), done[case]) for case in kept]
        runs = ([done[case] for case in cases if case in done] for cases in (sound, others))
        undeclared = ([done[case] for case in cases if not case.contract] for cases in (sound, others))
        (healthy, further_), (bare_healthy, bare_further) = runs, undeclared
        return cls([done[case] for case in faulty], bare, healthy, bare_healthy, further_, bare_further)

    def as_dict(self, *, bare: bool = True) -> dict[str, Any]:
        """Totals, cells and healthy runs with contract and, with `bare`, the same without under a key of its own."""
        written = {"totals": self.with_contract, **_listed(self.cells, self.healthy, self.further)}
        if bare:
            without = _listed(self.bare, self.undeclared, self.further_undeclared)
            written["without_contract"] = {"totals": self.without, **without}
        return written


def _listed(cells: Iterable[Cell], healthy: Iterable[Healthy], others: Sequence[Healthy]) -> dict[str, Any]:
    return {
        "cells": [cell.as_dict() for cell in cells],
        "healthy": [run.as_dict() for run in healthy],
        "further_look_alikes": further.as_dict(others),
    }


if __name__ == "__main__":
    sys.exit(main())
