"""The pictures that compare runs: small panels that stand side by side on a page and one below the other on a phone.

Each function takes plain data and returns a matplotlib Figure that belongs to nobody, as those of statewise.figures do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from statewise.figures import GREEN, INK, MUTED, PINK, SERIES, STYLE, TIME

SIZE = (4.6, 3.1)  # inches: 9 pt are readable at the width of a phone, and two fit beside each other on a page
MAX_POINTS = 12_000  # of all curves of a panel together
MAX_NAMED = 40  # runs, each with a line of its own in the chart of test errors
MAX_JOINED = 12  # places on an axis: more are those of a search, where a line would zigzag
LOG_FROM = 20.0  # the largest by the smallest value from which on the axis of what was varied is logarithmic
LOG_ERRORS_FROM = 5.0  # and an axis of errors


@dataclass(frozen=True)
class Curve:
    """A metric of one run over optimiser steps; `ok` says whether the run ended well, `best` is drawn on top."""

    steps: np.ndarray
    values: np.ndarray
    colour: str
    ok: bool = True
    best: bool = False


@dataclass(frozen=True)
class Point:
    """One run in a plot against what it was asked for: `x` a number or a word, `y` None where it has no value."""

    x: float | str
    y: float | None
    line: str = ""


def colours(count: int) -> list[str]:
    """One for each of so many runs, the best first: told apart where they are few, else from dark (best) to light."""
    if count <= len(SERIES):
        return list(SERIES[:count])
    return [to_hex(TIME(1.0 - rank / (count - 1))) for rank in range(count)]


@mpl.rc_context(STYLE)
def curves(title: str, lines: Sequence[Curve]) -> Figure:
    """A metric of every run over each other. The axis fits the runs that ended well: another may leave it."""
    figure, axes = _panel(title)
    most = max(MAX_POINTS // max(len(lines), 1), 24)
    for line in sorted(lines, key=lambda line: (line.best, line.ok)):
        kept = _thinned(line.values, most)
        style = "-" if line.ok else (0, (2, 2))
        width = 2.2 if line.best else 1.3 if len(lines) <= len(SERIES) else 0.8
        marker = "o" if len(kept) == 1 else None
        axes.plot(
            line.steps[kept], line.values[kept], color=line.colour if line.ok else MUTED, linestyle=style, linewidth=width,
            marker=marker, markersize=3,
        )  # fmt: skip
    shown = [line.values for line in lines if line.ok and len(line.values)] or [line.values for line in lines]
    _fit(axes, np.concatenate(shown) if shown else np.empty(0))
    axes.margins(x=0.02)
    axes.set_xlabel("optimiser step")
    return figure


@mpl.rc_context(STYLE)
def test_errors(
    names: Sequence[str], errors: Sequence[float], dots: Sequence[str], baseline: tuple[str, float] | None, floor: float | None
) -> Figure:
    """The test MSE of every run, the lowest on top, beside the best baseline and the best possible predictor."""
    order = np.argsort(errors, kind="stable")
    named = len(names) <= MAX_NAMED
    figure, axes = _panel("Test MSE, scaled units", height=max(SIZE[1] * 0.5, 0.9 + 0.19 * len(names)) if named else 4.2)
    rows = np.arange(len(names))
    axes.scatter(np.asarray(errors)[order], rows, c=[dots[index] for index in order], s=26 if named else 10, zorder=3)
    levels = [(baseline[1], f"best baseline: {baseline[0]}", INK)] if baseline else []
    levels += [(floor, "best possible", GREEN)] if floor else []
    for value, _, colour in levels:
        axes.axvline(value, color=colour, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)
    values = np.array([*errors, *(value for value, *_ in levels)])
    if _spread(values) >= LOG_ERRORS_FROM:
        axes.set_xscale("log")
        _log_ticks(axes, "x")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    margin = 0.6 + 0.012 * len(names)
    axes.set_ylim(len(names) - 1 + margin, -margin)
    if named:
        axes.set_yticks(rows, labels=[names[index] for index in order], fontsize=8)
        axes.tick_params(axis="y", length=0)
    else:
        axes.set_ylabel("runs, the best on top")
    if levels:
        handles = [mpl.lines.Line2D([], [], color=colour, linestyle=(0, (5, 3)), linewidth=1.0) for *_, colour in levels]
        figure.legend(handles, [f"{text} {value:.4g}" for value, text, _ in levels], loc="outside lower left", ncols=1)
    return figure


@mpl.rc_context(STYLE)
def against(name: str, points: Sequence[Point], objective: str, lines: str = "") -> Figure:
    """The objective over one thing that was varied.

    Points with the same `line` (a value of what else was varied, by the name `lines`) have the same colour and, where it is a
    grid and not a search, a line through their median at each x. A run without an objective is a cross at the top edge.
    """
    figure, axes = _panel(f"{objective} over {name}")
    numbers = all(isinstance(point.x, float) for point in points)
    places = sorted({point.x for point in points}, key=lambda x: (isinstance(x, str), x))
    at = {x: float(x) if numbers else float(index) for index, x in enumerate(places)}
    groups = sorted({point.line for point in points}, key=_as_number)
    few = len(groups) <= len(SERIES)
    kept = [point for point in points if point.y is not None]
    for index, group in enumerate(groups):
        colour = SERIES[index] if few else to_hex(TIME(index / (len(groups) - 1)))
        own = [(at[point.x], point.y) for point in kept if point.line == group and point.y is not None]
        if not own:
            continue
        xs, ys = zip(*own, strict=True)
        axes.plot(xs, ys, "o", color=colour, markersize=4.5, alpha=0.75, label=group if few and group else None)
        middles = {x: float(np.median([y for place, y in own if place == x])) for x in sorted(set(xs))}
        if not numbers and len(groups) == 1:
            axes.plot(list(middles), list(middles.values()), "_", color=colour, markersize=22, markeredgewidth=1.8)
        elif few and len(places) <= MAX_JOINED:
            axes.plot(list(middles), list(middles.values()), color=colour, linewidth=1.1, alpha=0.8)
    _fit(axes, np.array([point.y for point in kept], dtype=float), room=0.12)
    _x_axis(axes, [x for x in places if not numbers or not kept or any(point.x == x for point in kept)], numbers=numbers)
    lost = sorted({at[point.x] for point in points if point.y is None})
    _without_result(axes, lost)
    axes.set_xlabel(name)
    if axes.get_legend_handles_labels()[0] or not few:
        title = lines if few else f"colour: {lines}, from small (light) to large (dark)"
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower left", ncols=3, title=title or None, title_fontsize=8.5, alignment="left"
        )
    return figure


def _without_result(axes: Axes, places: Sequence[float]) -> None:
    """Crosses at the top edge; one outside the axis stands at its end with its number, so that the others keep their room."""
    left, right = axes.get_xlim()
    inside = [place for place in places if left <= place <= right]
    marks = [(place, 0.96, axes.get_xaxis_transform()) for place in inside]
    for beyond, edge, side in (
        ([p for p in places if p < left], 0.02, "left"),
        ([p for p in places if p > right], 0.98, "right"),
    ):
        if beyond:
            marks.append((edge, 0.96, axes.transAxes))
            text = ", ".join(f"{place:g}" for place in beyond[:3])
            inwards = 0.035 if side == "left" else -0.035
            axes.annotate(
                f"← {text}" if side == "left" else f"{text} →", (edge + inwards, 0.96), xycoords="axes fraction", ha=side,
                va="center", fontsize=8, color=PINK,
            )  # fmt: skip
    for index, (x, y, transform) in enumerate(marks):
        label = "no result, or far above" if index == 0 else None
        axes.plot([x], [y], "x", color=PINK, markersize=6, transform=transform, label=label, linestyle="none")
    axes.set_xlim(left, right)


def _panel(title: str, *, height: float = SIZE[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _fit(axes: Axes, values: np.ndarray, *, room: float = 0.06) -> None:
    """Limits of the y axis that hold these values, logarithmic where they span far."""
    values = values[np.isfinite(values)]
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    if _spread(values) >= LOG_ERRORS_FROM:
        axes.set_yscale("log")
        factor = (high / low) ** room
        axes.set_ylim(low / factor, high * factor)
        _log_ticks(axes, "y")
    else:
        margin = room * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)
        axes.yaxis.set_major_locator(MaxNLocator(5))


def _x_axis(axes: Axes, places: Sequence[float | str], *, numbers: bool) -> None:
    if not numbers:
        axes.set_xticks(range(len(places)), labels=[_short(str(place)) for place in places])
        if len(places) > 4:
            axes.tick_params(axis="x", rotation=30)
        axes.set_xlim(-0.5, len(places) - 0.5)
        return
    values = np.array(places, dtype=float)
    if _spread(values) >= LOG_FROM:
        axes.set_xscale("log")
        _log_ticks(axes, "x")
    elif len(values) <= 6:
        axes.set_xticks(values, labels=[f"{value:g}" for value in values])
    axes.margins(x=0.08)


def _log_ticks(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    decades = np.log10(high / low) if low > 0 else 10.0
    crowded = decades > (2.5 if which == "y" else 1.5)
    axis.set_major_locator(LogLocator(subs=(1.0,) if crowded else (1.0, 2.0, 5.0), numticks=8))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter("{x:g}")


def _spread(values: np.ndarray) -> float:
    """The largest by the smallest; 0 where one is not above zero."""
    return float(values.max() / values.min()) if values.size and values.min() > 0 else 0.0


def _thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` points: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), max(most // 2, 1) + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, end in pairwise(bounds):
        kept |= {start + int(values[start:end].argmin()), start + int(values[start:end].argmax())}
    return np.array(sorted(kept))


def _as_number(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), ""
    except ValueError:
        return 1, 0.0, text


def _short(text: str) -> str:
    return text if len(text) <= 16 else f"{text[:14]}…"
