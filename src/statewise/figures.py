"""The pictures of a run. Each function takes plain data and returns a matplotlib Figure that belongs to nobody.

Figures are built without pyplot: nothing is registered globally, no display is needed, and a figure is freed when it is
let go. Importing this module loads matplotlib (about a second), so callers import it where they draw.
"""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

INK, MUTED, GRID = "#1f2933", "#6b7785", "#d8dde3"
BLUE, ORANGE, GREEN, VIOLET, PINK, GOLD = "#2a78d6", "#e8622c", "#12a06c", "#7d5cf0", "#d6417f", "#c2910c"
NOTHING = "#9aa5b1"
SERIES = (BLUE, ORANGE, GREEN, VIOLET, PINK, GOLD)
# From early to late, and from small to large: readable on white and on black, so neither end comes near one of them.
TIME = LinearSegmentedColormap.from_list("time", ["#f0a64b", "#d9507f", "#5a4fd6"])
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}
WIDTH = 9.0  # inches; every picture of a report is equally wide
NARROW = 5.0  # for a card of TensorBoard: what is drawn is larger beside the picture
MAX_TARGETS = 8
MAX_SNAPSHOTS = 40
MAX_COLUMNS = 300  # of the heat map: more cannot be told apart at this width


@mpl.rc_context(STYLE)
def losses(
    metrics: pl.DataFrame,
    *,
    baselines: Mapping[str, float] | None = None,
    test_mse: float | None = None,
) -> Figure:
    """Training and validation error over optimiser steps; the test errors of model and baselines as levels.

    `metrics` has the columns `step`, `train/loss_epoch` (or, for a run of one epoch, `train/loss`) and `val/mse` (or
    `val/loss`); missing ones are left out. The test errors are named on the right: they are of other rows than the curves
    and best compared with each other.
    """
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    drawn = []
    steps, values = logged(metrics, "train/loss")
    epochs, means = logged(metrics, "train/loss_epoch")
    if len(epochs) > 1:  # single batches scatter far beyond what there is to see
        axes.plot(epochs, means, color=BLUE, marker="o", markersize=4, label="training (mean of each epoch)")
        drawn.append(means)
    elif len(steps):
        axes.plot(steps, values, color=BLUE, alpha=0.25, linewidth=0.8)
        axes.plot(steps, smoothed(values), color=BLUE, label="training, smoothed")
        drawn.append(values)
    name = "val/mse" if "val/mse" in metrics.columns else "val/loss"
    steps, values = logged(metrics, name)
    if len(steps):
        axes.plot(steps, values, color=ORANGE, marker="o", markersize=4, label=f"validation ({name})")
        drawn.append(values)
    marks = [(mse, f"test: {name}", MUTED) for name, mse in (baselines or {}).items()]
    if test_mse is not None:
        marks.append((test_mse, "test: model", INK))
    for mse, _, colour in marks:
        axes.axhline(mse, color=colour, linewidth=0.9, linestyle=(0, (5, 3)), zorder=1)
    drawn.append(np.array([mse for mse, *_ in marks]))
    every = np.concatenate(drawn)
    if every.size and every.min() > 0 and every.max() > 5 * every.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.01)
    axes.set_title("Error over training, scaled units")
    axes.set_xlabel("optimiser step")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right", ncols=2)
    if marks:
        labels_right(axes, [(mse, f"{name} {mse:.4g}", colour) for mse, name, colour in marks])
    return figure


@mpl.rc_context(STYLE)
def predictions(
    frame: pl.DataFrame, *, rows: int = 240, step: int = 1, where: str = "test rows", width: float = WIDTH
) -> Figure:
    """Prediction against truth over a stretch of consecutive rows of the first series, one panel for each target.

    `frame` has the columns of predictions.parquet; a column `linear` is drawn beside the model.
    """
    names = frame["variable"].unique(maintain_order=True).to_list()
    shown = names[:MAX_TARGETS]
    figure = Figure(figsize=(width, 0.9 + 1.45 * len(shown) * (width / WIDTH) ** 0.5), layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    first = frame.filter((pl.col("step") == step) & (pl.col("series") == pl.col("series").first()))
    for axes, name in zip(panels, shown, strict=True):
        part = first.filter(pl.col("variable") == name).head(rows)
        time = part["time"].to_numpy()
        axes.plot(time, part["target"].cast(pl.Float64).to_numpy(), color=INK, linewidth=1.3, label="truth")
        if "linear" in part.columns:
            axes.plot(time, part["linear"].to_numpy(), color=GREEN, linewidth=1.0, alpha=0.8, label="linear model")
        axes.plot(time, part["prediction"].to_numpy(), color=ORANGE, linewidth=1.2, label="prediction")
        axes.set_ylabel(name)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.005)
    ahead = "one step ahead" if step == 1 else f"{step} steps ahead"
    more = "" if len(shown) == len(names) else f" (first {len(shown)} of {len(names)} targets)"
    series = first["series"][0] if len(first) else ""
    title = f"Prediction {ahead} against truth, {where}{f', {series}' if series else ''}{more}"
    panels[0].set_title(_fitting(title, width), pad=22)
    panels[0].legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3, borderaxespad=0.2)
    _time_axis(panels[-1], first["time"])
    figure.align_ylabels(panels)
    return figure


@mpl.rc_context(STYLE)
def eigenvalues(history: Sequence[tuple[int, str, np.ndarray]], *, width: float = WIDTH) -> Figure:
    """The eigenvalues of every layer's A_bar in the unit circle: hollow at the start, filled at the end."""
    layers = list(dict.fromkeys(layer for _, layer, _ in history))
    columns = min(max(len(layers), 1), 3 if width > NARROW else 2)
    rows = -(-max(len(layers), 1) // columns)
    figure = Figure(figsize=(width, 0.6 + rows * (width - 0.8) / max(columns, 2)), layout="constrained")
    panels = figure.subplots(rows, max(columns, 2), squeeze=False).ravel()
    steps = np.array([step for step, _, _ in history] or [0])
    norm = Normalize(steps.min(), max(steps.max(), steps.min() + 1))
    for axes, layer in zip(panels, layers, strict=False):
        own = [(step, np.asarray(values)) for step, name, values in history if name == layer]
        kept = sorted(set(np.linspace(0, len(own) - 1, min(len(own), MAX_SNAPSHOTS)).astype(int)))
        axes.add_patch(Circle((0, 0), 1.0, fill=False, edgecolor=MUTED, linewidth=1.0))
        for step, values in (own[index] for index in kept[1:-1]):
            axes.plot(values.real, values.imag, ".", markersize=2.6, color=TIME(norm(step)), alpha=0.55, zorder=2)
        (start, before), (end, after) = own[0], own[-1]
        hollow = {"color": TIME(norm(start)), "fillstyle": "none", "markersize": 6, "label": "start"}
        filled = {"color": TIME(norm(end)), "markersize": 5, "label": "end"}
        axes.plot(before.real, before.imag, "o", zorder=3, **hollow)
        axes.plot(after.real, after.imag, "o", zorder=4, **filled)
        reach = 1.08 * max(1.0, np.abs(after).max(initial=0.0), np.abs(before).max(initial=0.0))
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        radii = f"radius {np.abs(before).max():.3f} → {np.abs(after).max():.3f}"
        axes.set_title(f"{layer}:{' ' if width > NARROW else chr(10)}{radii}", fontsize=9.5)
        axes.xaxis.set_major_locator(MaxNLocator(5, symmetric=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    for axes in panels[len(layers) :]:
        axes.set_visible(False)
    used = list(panels[: max(len(layers), 1)])
    colours = mpl.cm.ScalarMappable(norm, TIME)
    bar = figure.colorbar(colours, ax=used, label="optimiser step", shrink=0.8, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    figure.suptitle("Eigenvalues of A_bar in the unit circle", x=0.008, ha="left", fontsize=10.5, weight="bold")
    if layers:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="upper right", ncols=2, handletextpad=0.1, borderaxespad=0.0)
    return figure


@mpl.rc_context(STYLE)
def spectral_radii(radii: Mapping[str, tuple[np.ndarray, np.ndarray]], *, threshold: float = 1.0) -> Figure:
    """The spectral radius of every layer's A_bar over optimiser steps; `radii` maps a layer to (steps, radii)."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    for index, (layer, (steps, values)) in enumerate(radii.items()):
        axes.plot(steps, values, color=SERIES[index % len(SERIES)], label=layer)
    axes.axhline(threshold, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    axes.annotate(
        "projected at and above", (1.0, threshold), xycoords=("axes fraction", "data"), xytext=(-2, 3),
        textcoords="offset points", ha="right", fontsize=8, color=MUTED,
    )  # fmt: skip
    low = min((values.min(initial=threshold) for _, values in radii.values()), default=threshold)
    axes.set_ylim(top=axes.get_ylim()[1] + 0.12 * max(threshold - low, 0.01))
    axes.margins(x=0.01)
    axes.set_title("Spectral radius of A_bar")
    axes.set_xlabel("optimiser step")
    if radii:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=min(len(radii), 6), borderaxespad=0.2)
    return figure


@mpl.rc_context(STYLE)
def gradient_norms(steps: np.ndarray, names: Sequence[str], matrix: np.ndarray, *, width: float = WIDTH) -> Figure:
    """The gradient norm of every parameter over steps as a heat map: a parameter that learns nothing is a cold line.

    `matrix` is [steps, parameters]. NaN means that there was no gradient; this and an exact zero have their own
    colours, because no place on a logarithmic scale would show them.
    """
    image = _binned(np.asarray(matrix, dtype=np.float64), MAX_COLUMNS).T  # (parameters, columns)
    positive = image[np.isfinite(image) & (image > 0)]
    low, high = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    if low == high:
        low, high = low / 2, high * 2
    # Below a millionth of the largest everything is equally cold; one dead parameter must not bleach the others.
    colours = mpl.colormaps["viridis"].with_extremes(bad=NOTHING, under=PINK)
    bottom = max(low, high * 1e-6)
    # An exact zero goes below the scale, where it gets the colour for that; on the scale it would be masked like NaN.
    drawn = np.where(image == 0, bottom / 10, np.maximum(image, bottom))
    tall = min(max(0.17 * len(names), 1.2), 11.0)
    figure = Figure(figsize=(width, 1.2 + tall), layout="constrained")
    axes = figure.subplots()
    span = (float(steps[0]), float(max(steps[-1], steps[0] + 1))) if len(steps) else (0.0, 1.0)
    shown = axes.imshow(
        np.ma.masked_invalid(drawn), aspect="auto", interpolation="nearest", cmap=colours, norm=LogNorm(bottom, high),
        extent=(*span, len(names) - 0.5, -0.5),
    )  # fmt: skip
    every = max(1, -(-len(names) // 65))
    axes.set_yticks(range(0, len(names), every), labels=list(names)[::every], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.set_title(_fitting("Gradient norm of every parameter before clipping", width))
    axes.set_xlabel("optimiser step")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    bar = figure.colorbar(shown, ax=axes, pad=0.015, aspect=30, label="norm")
    bar.outline.set_visible(False)
    notes = [Patch(color=PINK, label="exactly zero")] if (image == 0).any() else []
    notes += [Patch(color=NOTHING, label="no gradient")] if np.isnan(image).any() else []
    if notes:
        axes.legend(handles=notes, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.3)
    return figure


@mpl.rc_context(STYLE)
def learning_rate(steps: np.ndarray, values: np.ndarray) -> Figure:
    """The learning rate over optimiser steps."""
    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, values, color=VIOLET)
    axes.set_ylim(bottom=0.0)
    axes.margins(x=0.01)
    axes.set_title("Learning rate")
    axes.set_xlabel("optimiser step")
    return figure


def logged(metrics: pl.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a metric was logged as a finite number, and its values there; both empty if it never was."""
    if name not in metrics.columns:
        return np.empty(0), np.empty(0)
    part = metrics.select("step", name).filter(pl.col(name).is_finite())
    return part["step"].to_numpy(), part[name].to_numpy()


def smoothed(values: np.ndarray) -> np.ndarray:
    """A running mean over about a fiftieth of the run, centred, narrower at both ends instead of padded."""
    half = max(len(values) // 100, 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    reach = np.minimum(half, np.minimum(index, len(values) - 1 - index))
    return np.asarray((sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1))


def png(figure: Figure, *, dpi: int = 120, colours: int | None = None) -> bytes:
    """The figure as a PNG on white; with a palette of so many colours it is several times smaller."""
    _lay_out(figure, dpi)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    if colours is None:
        return buffer.getvalue()
    from PIL import Image  # matplotlib writes PNG with it

    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(colours).save(small, format="PNG", optimize=True)
    return small.getvalue()


def svg(figure: Figure) -> str:
    """The figure as an SVG element for a page: no background, its greys are the page's --ink, --muted and --grid.

    Texts are paths, so the page needs no font; the same figure gives the same bytes.
    """
    _lay_out(figure, 72)  # that of every SVG
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "statewise"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in ((INK, "ink"), (MUTED, "muted"), (GRID, "grid")):
        text = text.replace(colour, f"var(--{variable})")
    return text


def _lay_out(figure: Figure, dpi: int) -> None:
    """Place everything once and for all: savefig would draw the whole figure twice to do the same.

    The size of hinted text depends a little on the resolution, so that it must be known here.
    """
    figure.set_dpi(dpi)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def _binned(matrix: np.ndarray, columns: int) -> np.ndarray:
    """At most `columns` rows: the geometric mean of what is positive in a bin, 0 or NaN where nothing is."""
    if len(matrix) <= columns:
        return matrix
    starts = np.linspace(0, len(matrix), columns, endpoint=False).astype(int)
    positive = np.isfinite(matrix) & (matrix > 0)
    logs = np.add.reduceat(np.log(np.where(positive, matrix, 1.0)), starts)
    counts = np.add.reduceat(positive.astype(int), starts)
    zeros = np.add.reduceat((matrix == 0).astype(int), starts)
    means = np.exp(logs / np.maximum(counts, 1))
    return np.where(counts > 0, means, np.where(zeros > 0, 0.0, np.nan))


def _fitting(title: str, width: float) -> str:
    """A title in as many lines as a picture of so many inches needs for it."""
    return textwrap.fill(title, round(9 * width))


def _time_axis(axes: Axes, time: pl.Series) -> None:
    if time.dtype.is_temporal():
        locator = dates.AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    else:
        axes.set_xlabel("row")


def labels_right(axes: Axes, marks: Sequence[tuple[float, str, str]], *, size: float = 8) -> None:
    """Texts beside the right edge, each at the height of its value, moved apart where they would overlap."""
    gap = 0.065 * size / 8  # of the height of the axes: one line of text
    ordered = sorted(marks)
    axes.autoscale_view()  # matplotlib would set the limits only when it draws
    points = axes.transData.transform([(0.0, value) for value, *_ in ordered])
    heights = axes.transAxes.inverted().transform(points)[:, 1]
    for _ in range(60):
        lacking = np.maximum(gap - np.diff(heights), 0.0) / 2
        heights[:-1] -= lacking
        heights[1:] += lacking
    for (_, text, colour), height in zip(ordered, heights, strict=True):
        axes.text(1.02, height, text, transform=axes.transAxes, va="center", fontsize=size, color=colour)
