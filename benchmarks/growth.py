"""How time and memory grow with the length, the state and the batch.

    python benchmarks/growth.py [--quick] [--json FILE]

f+b of one layer of each kind in float32, gradients for the input and for all parameters: processor time, and the bytes by
which resident memory rises meanwhile (the input and the gradient that is handed in are there before). The whole run also
draws docs/growth.png; --quick has fewer sizes and leaves the figure alone. There is no bar here: that the work is at most
proportional to the length is a test that counts (tests/scan/test_growth.py).

Rows come in pairs, milliseconds and MiB. The last rows give the exponent of T over the long half of the lengths: 1 is
linear, 2 would be quadratic.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from measuring import MIB, Row, fastest, main, peak_memory  # before torch

# isort: split
import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from torch import nn

from statewise import figures
from statewise.models.dense_ssm import DenseSSM
from statewise.models.diagonal_ssm import DiagonalSSM
from statewise.models.mamba2 import Mamba2

FIGURE = Path(__file__).parents[1] / "docs" / "growth.png"
WIDTH = 256
NAMES = {"t": "T", "n": "N", "batch": "batch"}
COLOURS = {"dense": figures.BLUE, "mamba2": figures.ORANGE, "diagonal": figures.VIOLET}
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "dense": lambda n: DenseSSM(d_model=WIDTH, expand=1, d_state=n),
    "mamba2": lambda n: Mamba2(d_model=WIDTH, d_state=n),
    "diagonal": lambda n: DiagonalSSM(d_model=WIDTH, d_state=n),
}


class Size(NamedTuple):
    """One point of a sweep."""

    t: int = 1024
    n: int = 16
    batch: int = 1

    def __str__(self) -> str:
        return f"T={self.t} N={self.n} d={WIDTH} batch={self.batch}"


class Sweep(NamedTuple):
    """One size varies, the two others stay at their defaults."""

    axis: str
    values: tuple[int, ...]

    def sizes(self) -> list[Size]:
        return [Size(**{self.axis: value}) for value in self.values]


class Cost(NamedTuple):
    """Of one f+b."""

    milliseconds: float
    mebibytes: float


FULL = (
    Sweep("t", tuple(2**k for k in range(8, 15))),
    Sweep("n", (4, 8, 16, 32, 64, 128, 256)),
    Sweep("batch", (1, 2, 4, 8, 16, 32)),
)
QUICK = (Sweep("t", (256, 1024, 4096, 16384)), Sweep("n", (16, 64)), Sweep("batch", (1, 4)))


def forward_backward(layer: nn.Module, size: Size) -> Callable[[], None]:
    x = torch.randn(size.batch, size.t, WIDTH, requires_grad=True)
    g = torch.randn_like(x)

    def run() -> None:
        layer(x)[0].backward(g)
        # At the end, so that the memory of the gradients belongs to the run.
        x.grad = None
        layer.zero_grad()

    return run


def costs(sweeps: tuple[Sweep, ...], rounds: int) -> dict[str, dict[Size, Cost]]:
    """The cost of every layer at every size; the layers take turns, as the variants of any benchmark do."""
    measured: dict[str, dict[Size, Cost]] = {name: {} for name in LAYERS}
    for size in dict.fromkeys(size for sweep in sweeps for size in sweep.sizes()):
        runs = {name: forward_backward(make(size.n), size) for name, make in LAYERS.items()}
        seconds = fastest(runs, rounds)
        for name, run in runs.items():
            measured[name][size] = Cost(1e3 * seconds[name], peak_memory(run) / MIB)
    return measured


def rows_of(measured: dict[str, dict[Size, Cost]], lengths: Sweep) -> list[Row]:
    def row(size: str, against: str, value: float) -> Row:
        return Row("growth", "float32", size, against, value, None, "lower")

    rows = []
    for name, by_size in measured.items():
        for size, cost in by_size.items():
            rows.append(row(f"{name} {size}", "ms", cost.milliseconds))
            rows.append(row(f"{name} {size}", "MiB", cost.mebibytes))
    long = lengths.sizes()[len(lengths.values) // 2 :]
    for name, by_size in measured.items():
        first, last = by_size[long[0]], by_size[long[-1]]
        for what, ratio in (
            ("time", last.milliseconds / first.milliseconds),
            ("memory", last.mebibytes / first.mebibytes),
        ):
            exponent = math.log(ratio) / math.log(long[-1].t / long[0].t)
            rows.append(row(f"{name} T={long[0].t:,} to {long[-1].t:,}", f"{what}, exponent of T", exponent))
    return rows


@mpl.rc_context(figures.STYLE)
def picture(measured: dict[str, dict[Size, Cost]], sweeps: tuple[Sweep, ...]) -> Figure:
    """Time above memory, one column for each sweep, both axes logarithmic, with lines of slope 1 behind."""
    figure = Figure(figsize=(figures.WIDTH * 1.2, 6.2), layout="constrained")
    grid = figure.subplots(2, len(sweeps), sharex="col", sharey="row")
    for column, sweep in enumerate(sweeps):
        held = [f"{NAMES[axis]} = {value}" for axis, value in Size()._asdict().items() if axis != sweep.axis]
        varied = NAMES[sweep.axis]
        grid[0, column].set_title(f"{varied}  ({', '.join(held)})")
        grid[1, column].set_xlabel({"T": "T, time steps", "N": "N, the state (d_state)"}.get(varied, varied))
        for axes, field in zip(grid[:, column], Cost._fields, strict=True):
            axes.set(xscale="log", yscale="log", xlim=(sweep.values[0] / 1.25, sweep.values[-1] * 1.25))
            axes.grid(visible=False)
            axes.xaxis.set(ticks=sweep.values, minor_locator=NullLocator())
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            for name, by_size in measured.items():
                values = [getattr(by_size[size], field) for size in sweep.sizes()]
                axes.plot(sweep.values, values, "o-", color=COLOURS[name], markersize=4, label=name)
    for axes in grid.flat:
        _draw_slopes(axes)
    grid[0, 0].set_ylabel("forward and backward, ms")
    grid[1, 0].set_ylabel("peak memory, MiB")
    grid[0, 0].legend(loc="upper left")
    return figure


def _draw_slopes(axes: Axes) -> None:
    """Lines along which a cost is proportional to the size, five to three decades."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    offset, label = bottom / right, "proportional"
    while offset < top / left:
        axes.plot((left, right), (offset * left, offset * right), "--", color="0.82", linewidth=0.7, zorder=0, label=label)
        offset, label = offset * 10**0.6, ""
    axes.set(xlim=(left, right), ylim=(bottom, top))


def measure(quick: bool) -> list[Row]:
    """All rows; the figure only where all sizes were measured."""
    sweeps = QUICK if quick else FULL
    measured = costs(sweeps, rounds=5 if quick else 10)
    if not quick:
        FIGURE.write_bytes(figures.png(picture(measured, sweeps), dpi=110))
        print(f"drawn: {FIGURE}")
    return rows_of(measured, sweeps[0])


if __name__ == "__main__":
    main(__doc__, measure)
