"""All benchmarks, one after another, and the tables that come of them.

    make bench                          all sizes
    make bench ARGS=--quick             fewer sizes and repeats
    python benchmarks/all.py [--quick] [--json FILE] [NAME ...]

Each benchmark runs in a process of its own. docs/benchmarks.md gets a summary and every row; README.md gets the summary,
if it has the two marks for it. With names of benchmarks only those run, and nothing is written but the JSON. Run it on a
machine that does nothing else. callbacks.py runs within health_overhead.py. selection.py is not among
them: it trains for half an hour and draws a figure.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

from measuring import COLUMNS, Row, from_json, to_json

# isort: split
import torch

HERE = Path(__file__).parent
DOCUMENT, README = HERE.parent / "docs" / "benchmarks.md", HERE.parent / "README.md"
BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
BENCHMARKS = (
    "dense_scan",
    "mamba2",
    "inference",
    "windows",
    "health_overhead",
    "lightning_overhead",
    "two_processes",
    "growth",
    "readers",
)
PACKAGES = ("torch", "lightning", "transformers", "mambapy")
QUESTIONS = {
    "D1": "Dense layer, forward and backward at T 60: times as fast as the naive loop",
    "D2": "Dense layer: its time in units of its two products alone",
    "D3": "Dense layer at T 256: times as fast as the naive loop; time at T 4096 in units of T 1024",
    "D4": "Whole training step of the original's model, 4 layers: times as fast as with naive layers",
    "D5": "Dense scan: error of states and gradients against the float64 loop",
    "M1": "Mamba-2 block, forward and backward at T 60: times as fast as the peer",
    "M2": "Mamba-2 block at T 512 and 2048: times as fast as the peer; peak memory in units of the leanest peer's",
    "M4": "Mamba-2: error against the float64 loop",
    "S1": "One step of the dense forecaster: times as fast as computing its window anew",
    "S2": "One step of a Mamba-2 block: times as fast as the peer's",
    "C1": "The three callbacks: per cent of a training step",
    "H1": "Training health alone: milliseconds of a step, and of its preflight",
    "L1": "Lightning's loop: per cent more than a bare loop",
    "P1": "Two processes: exchange of the gradients in per cent of a step",
    "P2": "Two processes: times as fast as one, at equal global batch",
    "R1": "A file of 10,000,000 x 32: seconds from path to windows at the second start",
    "R2": "The same: peak memory of reading in units of the tensor; of the whole process in GiB",
    "R3": "CSV of 1 GB: time of reading in units of polars' own reader",
    "R4": "The same file: samples per second of the training loader",
    "W1": "Windows: batches times as fast as per-item loading; set-up of 1,000,000 rows in ms and MiB",
}


def run(name: str, quick: bool) -> list[Row] | None:
    """The rows of one benchmark; None where it failed, its output above."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        print(f"\n{name}", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(file), *(["--quick"] if quick else [])]
        if subprocess.run(command, check=False).returncode or not file.is_file():
            return None
        return from_json(file.read_text(encoding="utf-8"))


def summary(rows: Iterable[Row]) -> str:
    """One line for each id: the row that is closest to its bar, or furthest below it."""
    lines = [["id", "what", "rows", "closest to its bar", "value", "bar", "ok"]]
    for name, group in groupby(sorted(rows, key=_place), key=lambda row: row.id):
        held = [row for row in group if row.bar is not None]
        if not held:
            continue
        worst = min(held, key=lambda row: row.margin or 0.0)
        met = sum(bool(row.ok) for row in held)
        cells = dict(zip(COLUMNS, worst.cells(), strict=True))
        case = ", ".join(part for part in (worst.dtype, worst.size, f"against {worst.against}") if part)
        case = case.removesuffix(", against absolute")
        ok = "yes" if met == len(held) else f"NO ({len(held) - met} of {len(held)} fall short)"
        lines.append([name, QUESTIONS.get(name, ""), str(len(held)), case, cells["value"], cells["bar"], ok])
    return markdown(lines)


def document(rows: list[Row], failed: list[str], command: str) -> str:
    """docs/benchmarks.md: when, where and with what; the summary; every row."""
    barred = sorted((row for row in rows if row.id in QUESTIONS), key=_place)
    others = [row for row in rows if row.id not in QUESTIONS]
    parts = [
        "# Benchmarks",
        f"Written by `{command}`; [performance.md](performance.md) says how it is measured and what the numbers mean. "
        "Rows without a bar are information.",
        f"{date.today()}. {machine()}. {versions()}.",
        *(f"**{name} failed and has no rows.**" for name in failed),
        "## Summary",
        summary(rows),
        "## All rows",
        markdown([["id", "what", *COLUMNS[1:]], *([r.id, QUESTIONS[r.id], *r.cells()[1:]] for r in barred)]),
    ]
    if others:
        parts += ["## How cost grows", markdown([COLUMNS[1:5], *(row.cells()[1:5] for row in others)])]
    return "\n\n".join(parts) + "\n"


def into_readme(text: str, table: str, command: str) -> str:
    """The README with a new table between its marks; unchanged where it has none."""
    said = f"{date.today()}, {machine()}, by `{command}`; every row is in [docs/benchmarks.md](docs/benchmarks.md)."
    new = f"{BEGIN}\n{said}\n\n{table}\n{END}"
    return re.sub(f"{BEGIN}.*{END}", lambda _: new, text, flags=re.DOTALL)


def markdown(lines: Iterable[Iterable[str]]) -> str:
    """A table; the first line is its head."""
    head, *body = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return "\n".join([head, re.sub("[^|]+", "---", head), *body])


def machine() -> str:
    """The processor, and how many of its cores there are."""
    file = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", file.read_text()) if file.exists() else []
    name = names[0].strip() if names else platform.processor() or platform.machine()
    return f"{name}, {len(names) or '?'} cores, one thread used, {torch.backends.cpu.get_cpu_capability()}"


def versions() -> str:
    """Of Python and of the packages that are compared."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


def _place(row: Row) -> int:
    return list(QUESTIONS).index(row.id) if row.id in QUESTIONS else len(QUESTIONS)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="pass --quick on to each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all rows to this file")
    arguments = parser.parse_args(argv)
    names = arguments.names or BENCHMARKS
    if unknown := set(names).difference(BENCHMARKS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: choose from {', '.join(BENCHMARKS)}")
    rows: list[Row] = []
    failed = []
    for name in names:
        found = run(name, arguments.quick)
        if found is None:
            failed.append(name)
        else:
            rows += found
    if arguments.json is not None:
        arguments.json.write_text(to_json(rows), encoding="utf-8")
    table = summary(rows)
    print(f"\n{table}")
    if not arguments.names:
        command = "make bench" + (" ARGS=--quick" if arguments.quick else "")
        DOCUMENT.write_text(document(rows, failed, command), encoding="utf-8")
        README.write_text(into_readme(README.read_text(encoding="utf-8"), table, command), encoding="utf-8")
        print(f"\nwritten: {DOCUMENT}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
