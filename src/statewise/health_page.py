"""The part of report.html that says whether the training trained: verdict, findings and their time line, movement, checks."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from statewise import page_parts as parts
from statewise import runs

MAX_NAMES = 24  # of parameters beside a finding
MAX_BLOCKS = 60  # a line of text each: a deeper model is shown by its stillest blocks


def health_card(run: runs.Run) -> str:
    """The whole card; empty where nothing was noted about the health of the run."""
    health = run.health or (run.summary or {}).get("health")
    if not health:
        return ""
    verdict = f"<p>{parts.badge(str(health.get('verdict', 'not_checked')))}{_checks_ran(health)}</p>"
    findings = health.get("findings", [])
    said = _findings(findings) if findings else '<p class="muted">No finding.</p>'
    pictures = parts.drawn(_pictures(run, health, findings))
    return parts.card("Training health", verdict + said + pictures + _not_run(health))


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    """Each finding as it was said, how to declare it intended set apart, and the parameters it concerns."""
    shown = ""
    for entry in findings:
        severity, step = str(entry.get("severity", "")), entry.get("step")
        when = f"step {step}" if step else "before the first update"
        names = [str(name) for name in entry.get("parameters") or []]
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        said, _, intended = str(entry.get("message", "")).partition(" Intended: ")
        shown += (
            f'<div class="finding"><p>{parts.badge(severity)}<b>{html.escape(str(entry.get("id", "")))}</b> '
            f'<span class="muted">{when}</span></p><p>{_marked(said)}</p>'
            + (f'<p class="muted">Intended: {_marked(intended)}</p>' if intended else "")
            + (f'<p class="muted names">{html.escape(", ".join(names[:MAX_NAMES]) + more)}</p>' if names else "")
            + "</div>"
        )
    return shown


def _marked(text: str) -> str:
    """Escaped, with what stands between backticks set as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _pictures(run: runs.Run, health: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Iterator[parts.Picture]:
    from statewise.health_figures import movement, timeline

    steps = int((run.summary or {}).get("steps") or 0)
    if findings and steps:
        yield (
            "findings",
            partial(timeline, findings, steps),
            "A dot is the step at which a finding was made; 0 is before the first update.",
        )
    names, panels = block_readings(health.get("movement") or [])
    if names:
        yield (
            "movement",
            partial(movement, names, panels),
            "Every block has a row: how far its weights are from where they began, how large a step is beside them, and the "
            "gradient. A block far to the left of the others, or at the edge, is not learning.",
        )


def block_readings(points: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    """(names of the blocks, readings of each for every measure), the stillest blocks only where there are very many.

    The distance from the start is the last one that is known, the others are those of all points; NaN where unknown.
    """
    if not points:
        return [], {}
    last = points[-1]["since_start"]
    blocks = sorted(last, key=lambda name: last[name] or 0.0)[:MAX_BLOCKS]
    blocks = [name for name in last if name in set(blocks)]

    def history(measure: str) -> list[np.ndarray]:
        readings = [[point[measure].get(name) for point in points] for name in blocks]
        return [np.array([np.nan if value is None else value for value in values], dtype=float) for values in readings]

    panels = {
        "distance from the start\n‖p − p₀‖ / ‖p₀‖": [values[-1:] for values in history("since_start")],
        "step beside the weights\n‖Δp‖ / ‖p‖": history("update_ratio"),
        "gradient norm\nat the update": history("gradient_norm"),
    }
    return [name.removeprefix("model.") for name in blocks], panels


def _checks_ran(health: Mapping[str, Any]) -> str:
    checks = health.get("checks") or []
    ran = sum(bool(check.get("ran")) for check in checks)
    return f' <span class="muted">{ran} of {len(checks)} checks ran</span>' if checks else ""


def _not_run(health: Mapping[str, Any]) -> str:
    rows = [(str(check["name"]), str(check["why"])) for check in health.get("checks") or [] if not check.get("ran")]
    if not rows:
        return ""
    table = parts.table(("check", "why it did not run"), rows, text=True)
    return f"<details><summary>{html.escape('Checks that did not run')}</summary>{table}</details>"
