"""The pictures of a run's training health: how far each block moved, and when each finding was made. As in figures.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from statewise.figures import BLUE, GOLD, INK, MUTED, NOTHING, PINK, STYLE, WIDTH

SEVERITIES = {"error": PINK, "warning": GOLD, "info": BLUE}
SPAN, LARGEST = 1e-9, 1e30
MAX_NAMES = 64  # characters of parameter names beside a finding


@mpl.rc_context(STYLE)
def movement(names: Sequence[str], panels: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """How much each block moved: one row a block, one panel a measure, on logarithmic scales.

    `panels` maps the title of a measure to one array of readings for each block. The dot is their median, the line their
    range without the outermost twentieths. An exact zero and a block without any reading stand at the left edge, in colours
    of their own: no place on a logarithmic scale would show them.
    """
    figure = Figure(figsize=(WIDTH, 1.15 + max(0.24 * len(names), 0.5)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    kinds = set[str]()
    for panel, (title, readings) in zip(axes, panels.items(), strict=True):
        kinds |= _panel(panel, readings)
        panel.set_title(title, fontsize=9.5)
    axes[0].set_yticks(range(len(names)), labels=list(names), fontsize=8)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    notes = [_dot(PINK, "exactly zero")] if "zero" in kinds else []
    notes += [_dot(NOTHING, "nothing measured")] if "none" in kinds else []
    if notes:
        figure.legend(handles=notes, loc="outside lower right", ncols=2, borderaxespad=0.0)
    return figure


def _panel(axes: Axes, readings: Sequence[np.ndarray]) -> set[str]:
    """One measure; returns which kinds of blocks are in it: "moving", "zero", "none"."""
    kinds = set[str]()
    finite = [values[np.isfinite(values)] for values in (np.asarray(values, dtype=np.float64) for values in readings)]
    largest = max((float(values.max(initial=0.0)) for values in finite), default=0.0)
    for row, values in enumerate(finite):
        # Far below the largest everything is equally still, and numbers near overflow have no place on a scale.
        known = np.where(values > 0, np.clip(values, min(SPAN * largest, LARGEST), LARGEST), 0.0)
        middle = float(np.median(known)) if known.size else None
        if middle:
            kinds.add("moving")
            low, high = np.quantile(known[known > 0], [0.05, 0.95])
            axes.plot([low, high], [row, row], color=BLUE, alpha=0.35, linewidth=3, zorder=2)
            axes.plot([middle], [row], "o", color=BLUE, markersize=5, zorder=3)
            continue
        kinds.add("none" if middle is None else "zero")
        colour = NOTHING if middle is None else PINK
        across = axes.get_yaxis_transform()
        axes.plot([0.0], [row], "o", color=colour, markersize=6, transform=across, clip_on=False, zorder=3)
    axes.set_xscale("log")
    axes.margins(x=0.08)
    axes.autoscale_view()  # matplotlib would set the limits only when it draws
    low, high = axes.get_xlim()
    if high < 100 * low:  # a decade each would leave one or two labels
        readable = low >= 0.005
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if readable else (1.0, 3.0)))
        axes.xaxis.set_major_formatter("{x:g}" if readable else "{x:.0e}")
    else:
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="both", which="both", length=0)
    axes.tick_params(axis="y", pad=9)
    if "moving" not in kinds:
        axes.set_xticks([])
    return kinds


@mpl.rc_context(STYLE)
def timeline(findings: Sequence[Mapping[str, Any]], steps: int) -> Figure:
    """When each finding was made, over the optimiser steps of the run: true from the dot on, as far as is known."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.42 * len(findings)), layout="constrained")
    axes = figure.subplots()
    end = max(steps, *(int(finding["step"]) for finding in findings), 1)
    for row, finding in enumerate(findings):
        colour, start = SEVERITIES.get(finding["severity"], INK), int(finding["step"])
        axes.plot([start, end], [row, row], color=colour, alpha=0.3, linewidth=5, zorder=2)
        axes.plot([start], [row], "o", color=colour, markersize=7, zorder=3, clip_on=False)
        right = start > 0.6 * end
        axes.annotate(
            _names(finding.get("parameters") or ()), (start, row), xytext=(-4 if right else 4, 6),
            textcoords="offset points", ha="right" if right else "left", va="bottom", fontsize=7.5, color=MUTED,
        )  # fmt: skip
    axes.set_yticks(range(len(findings)), labels=[str(finding["id"]) for finding in findings], fontsize=8.5)
    axes.set_ylim(len(findings) - 0.5, -0.75)
    axes.tick_params(axis="y", length=0, pad=9)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("optimiser step")
    seen = [severity for severity in SEVERITIES if any(finding["severity"] == severity for finding in findings)]
    axes.legend(
        handles=[_dot(SEVERITIES[severity], severity) for severity in seen], loc="lower right", bbox_to_anchor=(1.0, 1.0),
        ncols=3, borderaxespad=0.2,
    )  # fmt: skip
    axes.set_title("When it was seen")
    return figure


def _names(parameters: Sequence[str]) -> str:
    text, shown = "", 0
    for name in parameters:
        if text and len(text) + len(name) > MAX_NAMES:
            break
        text, shown = f"{text}, {name}" if text else str(name), shown + 1
    return text if shown == len(parameters) else f"{text} and {len(parameters) - shown} more"


def _dot(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", linestyle="none", markersize=6, label=label)
