"""The faults and the healthy set-ups of health_score.py under other people's tools, and under rules on the loss curve.

Each tool runs with its defaults, in the version that the table names. A fault counts as found where the tool says something
from a warning up that it does not say of the healthy twin. Faulty fits are longer than in health_score.py, as rules on
curves need steps. To install the tools: `pip install -e ".[health-peers]"`, and `pip install --no-deps torcheck==1.0.1`, which
asks for a torch below 2.0 and runs with later ones.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from health_cases.cases import SET_UPS, Faulty, Sound, faulty_cases, sound_cases
from health_cases.families import FAMILIES, seeded
from health_cases.faults import FAULTS
from health_cases.fitting import prepared, quiet
from health_cases.peers import RAISED, TOOLS, Said, Tool, Watch
from health_cases.set_up import Run, quiet_trainer
from rich.console import Console
from rich.progress import track
from rich.table import Table

FAULTY_STEPS = 100
HEALTHY_STEPS = 200


@dataclass(frozen=True)
class Verdict:
    """What one tool made of one run: the kinds of its warnings, for a faulty run those that its twin does not share."""

    tool: str
    case: str
    family: str
    seed: int
    healthy: bool
    kinds: tuple[str, ...]
    step: int | None = None
    names_cause: bool = False
    # It raised an exception of its own, which no user would read as a finding.
    raised: bool = False

    @property
    def said(self) -> bool:
        return bool(self.kinds)


def watched(run: Run, watch: Watch, seed: int, steps: int) -> list[Said]:
    """Fit the run under a tool, silently."""
    steps = 1 if watch.one_step else steps
    with seeded(seed), quiet(), tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = quiet_trainer(run, Path(folder), steps, watch)
        try:
            trainer.fit(run.task, run.batches, run.validation, ckpt_path=run.checkpoint)
        except Exception as error:
            watch.raised(error, trainer.global_step)
        watch.finish(trainer.global_step)
    return watch.said


_TWINS: dict[tuple[Any, ...], set[tuple[str, str]]] = {}


def on_faulty(tool: Tool, case: Faulty) -> Verdict:
    """The tool on a faulty run, less what it says of the healthy twin, which is fitted once for all that share it."""
    fault = FAULTS[case.fault]

    def said(broken: bool) -> list[Said]:
        run = prepared(fault, case.family, case.seed, onset=case.onset, broken=broken, steps=FAULTY_STEPS)
        return watched(run, tool.watch(), case.seed, FAULTY_STEPS)

    key = (tool.name, case.family, case.seed, fault.setting, case.onset if fault.setting else 0)
    if key not in _TWINS:
        _TWINS[key] = {each.key for each in said(broken=False)}
    new = [each for each in said(broken=True) if each.key not in _TWINS[key]]
    spoken = [each for each in new if each.kind != RAISED]
    kinds = tuple(dict.fromkeys(each.kind for each in spoken))
    return Verdict(
        tool.name,
        case.label,
        case.family,
        case.seed,
        False,
        kinds,
        min((each.step for each in spoken), default=None),
        any(case.fault in tool.causes.get(kind, ()) for kind in kinds),
        len(spoken) < len(new),
    )


def on_healthy(tool: Tool, case: Sound) -> Verdict:
    """The tool on a healthy run."""
    with quiet():
        run = SET_UPS[case.set_up].build(FAMILIES[case.family], case.seed)
    said = watched(run, tool.watch(), case.seed, case.steps)
    kinds = tuple(dict.fromkeys(each.kind for each in said if each.kind != RAISED))
    raised = any(each.kind == RAISED for each in said)
    return Verdict(tool.name, case.set_up, case.family, case.seed, True, kinds, raised=raised)


def one(task: tuple[str, Faulty | Sound]) -> Verdict:
    """Any run under the tool of that name, in a process of its own or not."""
    torch.set_num_threads(1)
    name, case = task
    tool = next(tool for tool in TOOLS if tool.name == name)
    return on_faulty(tool, case) if isinstance(case, Faulty) else on_healthy(tool, case)


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def totals(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The row of one tool. Exceptions count in the columns that say so only."""
    faulty = [each for each in verdicts if not each.healthy]
    healthy = [each for each in verdicts if each.healthy]
    found = [each for each in faulty if each.said]
    return {
        "cells": len(faulty),
        "found": share(len(found), len(faulty)),
        "found_or_raised": share(sum(each.said or each.raised for each in faulty), len(faulty)),
        "names_cause": share(sum(each.names_cause for each in found), len(found)),
        "healthy_runs": len(healthy),
        "flagged": share(sum(each.said for each in healthy), len(healthy)),
        "flagged_or_raised": share(sum(each.said or each.raised for each in healthy), len(healthy)),
    }


def together(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """All tools as one that says whatever one of them says."""
    runs: dict[tuple[Any, ...], list[Verdict]] = {}
    for each in verdicts:
        runs.setdefault((each.case, each.family, each.seed, each.healthy), []).append(each)
    return [
        Verdict(
            "all together",
            *key,
            kinds=tuple(chain.from_iterable(each.kinds for each in group)),
            names_cause=any(each.names_cause for each in group),
            raised=any(each.raised for each in group),
        )
        for key, group in runs.items()
    ]


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """A line for each tool; in brackets the share when its exceptions count too."""
    printed = Table("tool", "faulty runs found", "names the cause, of those", "healthy runs flagged")

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f} %"

    def both(row: dict[str, Any], key: str) -> str:
        with_raised = row[f"{key}_or_raised"]
        return percent(row[key]) + (f" ({percent(with_raised)})" if with_raised != row[key] else "")

    for name, row in rows.items():
        printed.add_row(name, both(row, "found"), percent(row["names_cause"]), both(row, "flagged"))
    return printed


def main(argv: list[str] | None = None) -> int:
    """Print the table; 0 also where tools are missing: they say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated: %(default)s")
    parser.add_argument("--tools", default=",".join(tool.name for tool in TOOLS), help="comma-separated: %(default)s")
    parser.add_argument("--only", default="", help="these faults and healthy set-ups only, as G1,O7,T3a")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table and all verdicts to this file")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    options = parser.parse_args(argv)
    families, only = options.families.split(","), [each for each in options.only.split(",") if each]
    if unknown := [each for each in families if each not in FAMILIES]:
        parser.error(f"family {unknown[0]} is none of {', '.join(FAMILIES)}")
    if unknown := [each for each in options.tools.split(",") if each not in {tool.name for tool in TOOLS}]:
        parser.error(f"tool {unknown[0]} is none of {', '.join(tool.name for tool in TOOLS)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    chosen = [tool for tool in TOOLS if tool.name in options.tools.split(",")]
    missing = {tool.name: why for tool in chosen if (why := tool.missing()) is not None}
    for name, why in missing.items():
        console.print(f"{name} is left out: {why}", markup=False)
    seeds = (0,) if options.quick else (0, 1)
    cases: list[Faulty | Sound] = [case for case in faulty_cases(families, seeds, only) if case.row is not None]
    cases += [case for case in sound_cases(families, seeds, HEALTHY_STEPS, only) if not case.contract]
    work = [(tool.name, case) for tool in chosen if tool.name not in missing for case in cases]
    if options.jobs == 1:
        verdicts = [one(each) for each in track(work, "runs", console=console, disable=not console.is_terminal)]
    else:
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            done = pool.map(one, work, chunksize=8)
            verdicts = list(track(done, "runs", total=len(work), console=console, disable=not console.is_terminal))
    rows = {
        tool.name: totals([each for each in verdicts if each.tool == tool.name]) for tool in chosen if tool.name not in missing
    }
    if len(rows) > 1:
        rows["all together"] = totals(together(verdicts))
    console.print(table(rows))
    if options.json is not None:
        versions = {tool.name: tool.version for tool in chosen}
        content = {"tools": rows, "versions": versions, "missing": missing, "runs": [asdict(each) for each in verdicts]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
