"""The picture of the borders of epochs. As in figures.py."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from statewise.borders.curves import Curve
from statewise.figures import BLUE, INK, MUTED, ORANGE, STYLE, WIDTH


@mpl.rc_context(STYLE)
def around_borders(curves: Sequence[Curve]) -> Figure:
    """The training loss around every border, laid over each other, with mean and standard deviation at every place.

    Each is divided by the size of its own mean before the border, because the loss of a run falls over its epochs.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    places, matrix = aligned(curves)
    for row in matrix:
        axes.plot(places, row, color=MUTED, alpha=0.35, linewidth=0.7, zorder=2)
    known = np.isfinite(matrix).any(axis=0)
    shown, columns = places[known], matrix[:, known]
    mean, spread = np.nanmean(columns, axis=0), np.nanstd(columns, axis=0)
    for side, colour in ((shown < 0, BLUE), (shown >= 0, ORANGE)):
        axes.fill_between(shown[side], (mean - spread)[side], (mean + spread)[side], color=colour, alpha=0.18, linewidth=0)
        axes.plot(shown[side], mean[side], color=colour, marker="o", markersize=3, zorder=4)
    axes.axvline(-0.5, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    axes.annotate(
        "an epoch begins", (-0.5, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -2),
        textcoords="offset points", va="top", fontsize=8, color=MUTED,
    )  # fmt: skip
    if columns.size:
        low, high = np.nanquantile(columns, [0.01, 0.99])
        low, high = min(low, (mean - spread).min()), max(high, (mean + spread).max())
        room = 0.06 * max(high - low, 1e-9)
        axes.set_ylim(low - room, high + 2 * room)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    axes.set_xlabel("batch, counted from the beginning of an epoch")
    axes.set_ylabel("loss / mean before")
    borders = f"{len(curves)} borders" if len(curves) > 1 else "one border"
    axes.set_title(f"Training loss around {borders} of epochs")
    return figure


def aligned(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """(places, one row for each border in units of its own level before); NaN where a border has no loss."""
    first, last = min(int(c.place.min()) for c in curves), max(int(c.place.max()) for c in curves)
    matrix = np.full((len(curves), last - first + 1), np.nan)
    for row, curve in zip(matrix, curves, strict=True):
        before = curve.loss[(curve.place < 0) & np.isfinite(curve.loss)]
        size = abs(float(before.mean())) if len(before) else 0.0
        row[curve.place - first] = curve.loss / size if size > 0 else curve.loss
    return np.arange(first, last + 1), matrix
