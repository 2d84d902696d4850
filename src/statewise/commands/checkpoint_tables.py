"""What `statewise checkpoint inspect` and `diff` print: lines about a file, and a table of its parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statewise.checkpoints.difference import Change, Difference, share

# A difference of more rows is shown as those that stand still, and the ends of the others.
MANY, ENDS = 40, 10


def print_contents(to: Console, found: Mapping[str, Any], broken: Sequence[str]) -> None:
    line(to, "file", f"{found['path']}, {_size(found['bytes'])}")
    for name, text in _titles(found):
        line(to, name, text)
    if found["pickled"]:
        shown = ", ".join(found["pickled"][:3]) + (" ..." if len(found["pickled"]) > 3 else "")
        line(to, "pickled objects", f"{shown}: not loaded", "yellow")
    table = _table("parameter", "type", "shape", "entries", "norm", left=3)
    rows = found["parameters"]
    for row in rows:
        norm = Text("" if row["norm"] is None else f"{row['norm']:.4g}")
        if row["not_finite"]:
            norm = Text(f"{row['not_finite']:,} not finite", style="bold red")
        table.add_row(Text(row["name"]), row["dtype"], _shape(row["shape"]), f"{row['entries']:,}", norm)
    to.print()
    to.print(table)
    to.print()
    entries = sum(row["entries"] for row in rows)
    line(to, "in all", f"{len(rows):,} tensor{'s' if len(rows) != 1 else ''}, {entries:,} entries")
    if broken:
        line(to, "not finite", ", ".join(broken), "bold red")


def _titles(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known of a file, a line each."""
    lines = []
    by = found["statewise_version"]
    written = [found["kind"] if not by else f"{found['kind'].removesuffix(' of statewise')} of statewise {by}"]
    if found["schema_version"] is not None:
        written.append(f"schema version {found['schema_version']}")
    if found["lightning_version"]:
        written.append(f"Lightning {found['lightning_version']}")
    lines.append(("kind", ", ".join(written)))
    if found["model"]:
        precision = f", {found['precision']}" if found["precision"] else ""
        lines.append(("model", f"{found['model']} on {found['data']}{precision}"))
    if found["overrides"]:
        lines.append(("overrides", " ".join(found["overrides"])))
    words = {"epochs": "epochs", "steps": "optimiser steps", "batches": "batches of the next epoch"}
    if any(found["position"].values()):
        counted = ((found["position"][key], name) for key, name in words.items())
        lines.append(("position", ", ".join(f"{count:,} {name}" for count, name in counted if count)))
    if (best := found["best"]) and best["value"] is not None:
        step = f" at step {best['step']:,}" if best["step"] is not None else ""
        lines.append(("best", f"{best['monitor']} {best['value']:.6g}{step}"))
    lines += [("optimizer", _optimizer(state)) for state in found["optimizers"]]
    lines += [("schedule", f"{state['steps']:,} steps, lr {_numbers(state['lr'])}") for state in found["schedulers"]]
    if found["callbacks"]:
        lines.append(("callbacks", ", ".join(found["callbacks"])))
    if form := found["form"]:
        lines.append(("data", f"{len(form['features'])} features, {len(form['targets'])} targets, horizon {form['horizon']}"))
    if scaler := found["scaler"]:
        each = f", for each of {len(scaler['series'])} series" if scaler["series"] else ""
        lines.append(("scaler", f"{len(scaler['columns'])} columns{each}"))
    if found["metadata"]:
        lines.append(("metadata", ", ".join(sorted(found["metadata"]))))
    elif found["kind"] != "checkpoint of statewise" and found["entries"]:
        lines.append(("other entries", ", ".join(found["entries"])))
    return lines


def _optimizer(state: Mapping[str, Any]) -> str:
    parts = [f"{state['groups']} group{'s' if state['groups'] != 1 else ''}"]
    if state["lr"]:
        parts.append(f"lr {_numbers(state['lr'])}")
    if any(state["weight_decay"]):
        parts.append(f"weight decay {_numbers(state['weight_decay'])}")
    steps = f" after {' and '.join(map(str, state['steps']))} steps" if state["steps"] else ""
    names = [name for name in state["state"] if name != "step"]
    parts.append(f"{' and '.join(names) or 'no state'} of {state['with_state']} of {state['parameters']} parameters{steps}")
    return ", ".join(parts)


def print_difference(to: Console, titles: Sequence[str], found: Difference, *, good: bool, every: bool) -> None:
    """The verdict first, in the colour of good or bad news; then a row for each parameter, or for those that tell most."""
    to.print(Text(found.verdict, style="bold green" if good else "bold red"), soft_wrap=True)
    to.print()
    for name, title in zip("AB", titles, strict=True):
        line(to, name, title)
    shown = found.changes if every or len(found.changes) <= MANY else _ends(found)
    table = _table("parameter", "shape", "change", "largest", "entries changed", "", left=2)
    for change in shown:
        note, style = _note(change)
        moved = ("0", "0", "none") if change.equal else (_relative(change), _largest(change), _entries(change))
        table.add_row(Text(change.name), _shape(change.shape), *moved, Text(note, style=style))
    to.print()
    to.print(table)
    to.print()
    if len(shown) < len(found.changes):
        line(to, "", f"{len(found.changes) - len(shown)} more that moved: --all shows them, --json lists them")
    for name, names in (("only in A", found.only_a), ("only in B", found.only_b)):
        if names:
            line(to, name, ", ".join(names))
    for name, a, b in found.other_shape:
        line(to, "other shape", f"{name} is {_shape(a)} in A and {_shape(b)} in B")
    line(to, "change", "||B - A|| / ||A||; largest: max |B - A|")


def _ends(found: Difference) -> list[Change]:
    """What a reader of many rows looks for: what stands still, and what moved least and most."""
    odd = [change for change in found.changes if change.equal or change.not_finite or change.relative is None]
    moved = sorted((change for change in found.changes if change not in odd), key=lambda change: change.relative or 0.0)
    return odd + (moved if len(moved) <= 2 * ENDS else moved[:ENDS] + moved[-ENDS:])


def _note(change: Change) -> tuple[str, str]:
    kept = "" if change.dtypes[0] == change.dtypes[1] else f"{change.dtypes[0]} became {change.dtypes[1]}"
    if change.not_finite:
        return f"{change.not_finite:,} not finite", "bold red"
    if change.equal:
        intended = "a counter" if change.counts else "constant" if change.constant else ""
        return f"equal to the bit{', ' + intended if intended else ''}", "dim" if intended else "bold red"
    return kept, "dim"


def _relative(change: Change) -> str:
    if change.relative is not None:
        return share(change.relative)
    return "from zero" if change.largest is not None else "?"


def _entries(change: Change) -> str:
    return "all" if change.share == 1 else share(change.share)


def _largest(change: Change) -> str:
    return "?" if change.largest is None else f"{change.largest:.2g}"


def _table(*headers: str, left: int) -> Table:
    """A table whose first columns, and the last where it has no header, are words, and the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < left or not header else "right", no_wrap=True)
    return table


def line(to: Console, name: str, text: str, style: str = "") -> None:
    to.print(Text.assemble((f"{name:<18}", "dim"), (text, style)), soft_wrap=True)


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _numbers(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.4g}" for value in values) or "none"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
