"""A page that compares runs, report.html in the folder of a sweep: all of it is inside the file, except links to their own."""

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from statewise import page_parts as parts
from statewise import runs
from statewise.summary import number, percent
from statewise.sweeps.choosing import objective_name, ordered, value_of
from statewise.sweeps.fold_table import fold_groups
from statewise.sweeps.rows import Row, best_rows, common_overrides, rows_of, varied_overrides
from statewise.sweeps.table import BEST, listed, reasons, typed

MAX_KEY_COLUMNS = 5
MAX_ROWS_FIRST = 40
STYLE = """
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); gap: 18px 28px;
  align-items: start; }
.panels figure { margin: 0; min-width: 0; } .panels .picture svg { min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 14px; font-size: 13px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.legend .scale { width: 140px; border-radius: 6px; }
.runs b { color: var(--good); } .runs .word, .runs .typed { text-align: left; }
.runs td.typed { white-space: normal; overflow-wrap: anywhere; min-width: 15em; }
.reasons table.text td { white-space: normal; } .reasons td:first-child { min-width: 4.5em; }
.reasons table.text td:nth-child(2) { white-space: nowrap; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
@media print { .runs th, .runs td { white-space: normal; padding: 3px 6px 3px 0; overflow-wrap: anywhere; font-size: 10px; }
  .runs .badge { font-size: 10px; } .legend, figcaption { font-size: 11px; } .panels { grid-template-columns: 1fr 1fr; } }
"""


def write_comparison(folder: Path) -> Path | None:
    """Write report.html into the folder of a sweep and return its path; None where the folder is a run of its own."""
    folder = Path(folder).absolute()
    if (folder / runs.CONFIG).is_file():
        return None
    return write_page(rows_of(folder), folder / runs.REPORT)


def write_page(rows: Sequence[Row], path: Path) -> Path:
    """Write the page that compares the rows.

    Raises: ValueError where the file is the report of a run.
    """
    path = Path(path).absolute()
    if path.name == runs.REPORT and (path.parent / runs.CONFIG).is_file():
        raise ValueError(f"{path} is the report of a run; give the page another name")
    with runs.atomic_file(path) as file:
        file.write(page(rows, path.parent).encode("utf-8"))
    return path


def page(rows: Sequence[Row], seen_from: Path) -> str:
    """The whole page; links are relative to the folder that will hold it."""
    rows, objective = ordered(rows, None), objective_name(rows)
    table = [_table(rows, objective, seen_from), _reasons(rows, seen_from), _folds(rows)]
    pictures = [_pictures(group, objective, name) for name, group in _by_data(rows).items()]
    # A table of more than a screen or two would hide what comes after it.
    between = [*table, *pictures] if len(rows) <= MAX_ROWS_FIRST else [*pictures, *table]
    sections = [_head(rows, objective), *between, _health(rows)]
    title = html.escape(_title(rows))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{parts.STYLE}{STYLE}</style></head>\n'
        f"<body><main>\n{''.join(sections)}</main></body></html>\n"
    )


def _title(rows: Sequence[Row]) -> str:
    models, data = (sorted({getattr(row, name) for row in rows} - {""}) for name in ("model", "data"))
    what = f"{' and '.join(models[:3])} on {' and '.join(data[:3])}" if models and data and len(models + data) <= 5 else ""
    return f"{len(rows)} run{'s' if len(rows) > 1 else ''}{f': {what}' if what else ''}"


def _head(rows: Sequence[Row], objective: str) -> str:
    states = list(dict.fromkeys(row.status for row in rows))
    badges = _counts([row.status for row in rows])
    best, common = best_rows(rows), common_overrides(rows)
    lead = (
        "" if best else "No run ended ok." if "ok" not in states else "The runs have different targets: there is no best one."
    )
    for row in best:
        own = typed(varied_overrides(row, common)) or row.folder.name
        on = f" on {row.data}" if len(best) > 1 else ""
        lead += f"Best {objective}{on}: {number(row.objective)} with {own}"
        if row.test_mse is not None:
            lead += f"; test MSE {number(row.test_mse)}"
        if row.skill is not None:
            side = "below" if row.skill > 0 else "above"
            share = f"{100 * abs(row.skill):,.2f} % {side} the best baseline"
            lead += f", {share} ({row.best_baseline}, {number(row.best_baseline_mse)})"
        lead += ". "
    shared = f'<p class="muted">All with: <code>{html.escape(typed(common))}</code></p>' if common and len(rows) > 1 else ""
    return (
        f"<header><h1>{html.escape(_title(rows))}</h1><p>{badges}</p>"
        f'<p class="lead">{html.escape(lead.strip())}</p>{shared}</header>\n'
    )


def _table(rows: Sequence[Row], objective: str, seen_from: Path) -> str:
    from statewise.sweeps.compared import varied_keys

    best, common, keys = best_rows(rows), common_overrides(rows), varied_keys(rows)
    columns = keys if len(keys) <= MAX_KEY_COLUMNS else ["overrides"]
    kind = "word" if columns is keys else "typed"
    head = [("run", "word"), *((key, kind) for key in columns), ("status", "word"), (objective, ""), ("test MSE", "")]
    head += [("test MAE", ""), ("skill", ""), ("health", "word"), ("seconds", "")]
    body = ""
    for row in rows:
        own = [_readable(value_of(row, key)) if columns is keys else typed(varied_overrides(row, common)) for key in columns]
        words = {"status": parts.badge(row.status), "health": _coloured(row.health or "–")}
        cells = [
            f"<b>{BEST}</b> {_link(row, seen_from)}" if row in best else _link(row, seen_from),
            *(html.escape(text) for text in own),
            words["status"],
            *(number(value) for value in (row.objective, row.test_mse, row.test_mae)),
            percent(row.skill),
            words["health"],
            "–" if row.seconds is None else f"{row.seconds:,.1f}",
        ]
        inside = "".join(f'<td class="{kind}">{cell}</td>' for (_, kind), cell in zip(head, cells, strict=True))
        body += ('<tr class="model">' if row in best else "<tr>") + inside + "</tr>"
    heads = "".join(f'<th class="{kind}">{html.escape(text)}</th>' for text, kind in head)
    note = (
        '<p class="muted">Errors in scaled units, over all targets. Skill: the share of the best baseline\'s test MSE that is '
        f"saved. {BEST} the lowest {html.escape(objective)} of the runs that ended ok.</p>"
    )
    table = f'<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    return parts.card("Runs", f'{note}<div class="scroll">{table}</div>')


def _link(row: Row, seen_from: Path) -> str:
    name = html.escape(os.path.relpath(row.folder, seen_from))
    if not (row.folder / runs.REPORT).is_file():
        return name
    return f'<a href="{quote(os.path.relpath(row.folder / runs.REPORT, seen_from))}">{name}</a>'


def _reasons(rows: Sequence[Row], seen_from: Path) -> str:
    found = [(listed(names), status, message) for (status, message), names in reasons(rows, seen_from).items()]
    table = parts.table(("run", "status", "reason"), found, text=True)
    return parts.card("What did not end well", f'<div class="reasons">{table}</div>' if found else "")


def _folds(rows: Sequence[Row]) -> str:
    lines = []
    for group in fold_groups(rows):
        means, errors = group.over_folds()
        counted = sum(fold["status"] == "ok" for fold in group.folds)
        figures = [f"{number(means[name])} ± {number(errors[name])}" for name in ("test_mse", "test_mae", "best_baseline_mse")]
        skill = percent(means["skill"]) + (f" ± {100 * errors['skill']:.2f} %" if errors["skill"] is not None else "")
        lines.append((group.overrides or "all", f"{counted} of {len(group.folds)}", *figures, skill))
    header = ("", "folds", "test MSE", "test MAE", "best baseline", "skill")
    note = '<p class="muted">Mean over the folds that ended ok ± standard error.</p>'
    return parts.card("Over the folds", note + parts.table(header, lines) if lines else "")


def _pictures(rows: Sequence[Row], objective: str, data: str) -> str:
    from statewise.sweeps.compared import colours_of, name_of, pictures

    drawn = parts.drawn(pictures(rows, objective))
    if not drawn:
        return ""
    colours, common = colours_of(rows), common_overrides(rows)
    if len(set(colours.values())) <= 6:
        keys = [f'<span><i style="background:{c}"></i>{html.escape(name_of(row, common))}</span>' for row, c in colours.items()]
    else:
        scale = ", ".join(list(colours.values())[:: max(len(colours) // 12, 1)])
        gradient = f'<i class="scale" style="background:linear-gradient(90deg, {scale})"></i>'
        keys = [f"<span>best {html.escape(objective)} {gradient} worst</span>"]
    title = f"Curves and errors{f': {data}' if data else ''}"
    return parts.card(title, f'<div class="legend">{"".join(keys)}</div><div class="panels">{drawn}</div>')


def _by_data(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that can be drawn over each other; a run that never knew its data belongs to where there is one data set."""
    names = list(dict.fromkeys(row.data for row in rows if row.data)) or [""]
    return {
        name if len(names) > 1 else "": [row for row in rows if row.data == name or (not row.data and len(names) == 1)]
        for name in names
    }


def _health(rows: Sequence[Row]) -> str:
    """The findings of all runs, each with the runs that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        summary = runs.Run(row.folder).summary if row.health else None
        for finding in (summary or {}).get("health", {}).get("findings", []):
            names = found.setdefault((str(finding["severity"]), str(finding["id"])), [])
            name = row.folder.name if row.job is None else str(row.job)
            if name not in names:
                names.append(name)
    counts = _counts([row.health for row in rows if row.health])
    lines = [(severity, name, f"{len(names)}", listed(names)) for (severity, name), names in found.items()]
    table = parts.table(("severity", "finding", "runs", "which"), lines, text=True) if lines else ""
    said = table or '<p class="muted">No finding in any run.</p>'
    return parts.card("Training health", f"<p>{counts}</p>{said}" if counts else "")


def _counts(words: Sequence[str]) -> str:
    """Each word once, with how often it is there."""
    return "".join(
        f'<span class="badge {parts.VERDICT_COLOURS.get(word, "bad")}">{words.count(word)} {word.replace("_", " ")}</span>'
        for word in dict.fromkeys(words)
    )


def _readable(value: Any) -> str:
    """1e+09 for 1000000000.0; what is no number with a point stays as it was typed."""
    text = str(value)
    if value is None:
        return "–"
    try:
        return f"{float(text):g}" if set(text) & set(".e") else text
    except ValueError:
        return text


def _coloured(verdict: str) -> str:
    return f'<span class="{parts.VERDICT_COLOURS.get(verdict, "")}">{html.escape(verdict.replace("_", " "))}</span>'
