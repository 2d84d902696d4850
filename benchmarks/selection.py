"""What selection is for: the error of each model on data=sample_and_hold against its training time, as one figure.

    python benchmarks/selection.py [--quick] [--folder FOLDER] [--figure FILE]

Trains experiment=sample_and_hold_* one after another on all cores and draws them. A run that is in the folder already is
not trained again, so that a figure can be drawn anew in seconds. Times are those of the clock, validation included:
nothing else should run meanwhile. --quick trains for seconds and draws into the folder only: does everything run?
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from statewise import assembly, figures
from statewise.checkpoints import read_checkpoint
from statewise.data.datamodule import WindowsDataModule
from statewise.data.generators.sample_and_hold import best_linear_error
from statewise.runs import Run, load_run
from statewise.summary import number
from statewise.train import main as train

ROOT = Path(__file__).parents[1]
QUICK = ["data.sequences=200", "trainer.max_epochs=2", "scheduler.warmup_steps=2", "trainer.log_every_n_steps=1"]
SHOWN_STEPS = 100  # of one test sequence


@dataclass(frozen=True)
class Model:
    """One line of the figure, and the bounds that its test error is held to."""

    experiment: str
    label: str
    colour: str
    above: float = 0.0
    below: float = float("inf")


MODELS = (
    Model("linear", "linear dense SSM", figures.GOLD, above=0.2),
    Model("dense_ssm", "dense SSM", figures.BLUE, above=0.005, below=0.2),
    Model("diagonal_ssm", "diagonal SSM", figures.VIOLET),
    Model("gru", "GRU", figures.GREEN),
    Model("mamba2", "Mamba-2", figures.ORANGE, below=0.005),
)
ILLUSTRATED = ("dense_ssm", "mamba2")


def trained(model: Model, folder: Path, quick: bool) -> Run:
    """The run of an experiment in its folder, trained now if none ended well there."""
    place = folder / f"sample_and_hold_{model.experiment}"
    if (place / "summary.json").is_file() and load_run(place).summary["status"] == "ok":
        return load_run(place)
    shutil.rmtree(place, ignore_errors=True)  # what a run that was broken off has left
    overrides = [f"experiment={place.name}", f"hydra.run.dir={place}", *(QUICK if quick else [])]
    if code := train(overrides):
        raise SystemExit(f"experiment={place.name} ended with exit code {code}: see {place}/train.log")
    return load_run(place)


def curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Seconds since the fit began, and the validation error then."""
    events = EventAccumulator(str(run.folder), size_guidance={"scalars": 0})
    events.Reload()
    scalars = events.Scalars("val/mse")
    clock = np.array([scalar.wall_time for scalar in scalars])
    # The last validation ends the fit; when it began stands in the summary only.
    return clock - clock[-1] + run.summary["seconds"]["fit"], np.array([scalar.value for scalar in scalars])


def window_of(datamodule: WindowsDataModule) -> int:
    """The place of a test window that shows the task well: with about six markers, so that some holds are long."""
    windows = datamodule.prepared.dataset("test", "all")
    marked = windows.__getitems__(torch.arange(min(200, len(windows)))).inputs[:, :SHOWN_STEPS, 1] > 0  # (w t)
    return int((marked.sum(1) - 6).abs().argmin())


def predicted(run: Run, datamodule: WindowsDataModule, window: int) -> np.ndarray:
    """What the best checkpoint tells after every step of one test window, in original units."""
    config = OmegaConf.create(run.config)
    task = assembly.build_task(config, datamodule, assembly.build_model(config, datamodule))
    task.load_state_dict(read_checkpoint(run.best)["state_dict"])
    batch = datamodule.prepared.dataset("test", "all").__getitems__([window])
    with torch.inference_mode():
        y, _ = task.model.eval()(batch.inputs)  # (1 t 1)
    return original(datamodule, y[0])[:, 0]


def original(datamodule: WindowsDataModule, scaled: torch.Tensor) -> np.ndarray:
    mean, scale = datamodule.prepared.target_statistics("test")
    return scaled.double().numpy() * scale[0] + mean[0]


def draw_task(axes: Axes, datamodule: WindowsDataModule, runs: dict[str, Run]) -> None:
    """One test sequence: what comes in, what is to be told, and what two models tell."""
    window = window_of(datamodule)
    batch = datamodule.prepared.dataset("test", "all").__getitems__([window])
    scaler, steps = datamodule.scaler, np.arange(SHOWN_STEPS)
    value = batch.inputs[0, :SHOWN_STEPS, 0].double().numpy() * scaler.scale[0, 0] + scaler.mean[0, 0]
    marked = batch.inputs[0, :SHOWN_STEPS, 1].numpy() > 0
    told = original(datamodule, batch.targets[0, :, 0])[:SHOWN_STEPS, 0]
    axes.plot(steps, value, ".", color=figures.NOTHING, markersize=4, label="value")
    axes.plot(steps[marked], value[marked], "o", color=figures.INK, markersize=5.5, label="marked value", zorder=5)
    axes.step(steps, told, where="post", color=figures.INK, linewidth=4.5, alpha=0.16, label="to be told", zorder=1)
    for model in (model for model in MODELS if model.experiment in ILLUSTRATED):
        told = predicted(runs[model.experiment], datamodule, window)[:SHOWN_STEPS]
        axes.step(steps, told, where="post", color=model.colour, linewidth=1.4, label=model.label)
    axes.set_title("One test sequence: after every step, tell the latest marked value", pad=24)
    axes.set_xlabel("step")
    axes.set_xlim(-1, SHOWN_STEPS)
    placed = {"loc": "lower left", "bbox_to_anchor": (-0.012, 0.99), "borderaxespad": 0.2}
    axes.legend(ncols=5, handletextpad=0.5, columnspacing=1.6, **placed)


def draw_errors(axes: Axes, runs: dict[str, Run], best_linear: float) -> None:
    """Validation error over training time, each line led to its name and test error on the right."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=10))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter("{x:g}")
    curves = {model: curve(runs[model.experiment]) for model in MODELS}
    edge = 1.04 * max(seconds[-1] for seconds, _ in curves.values())
    for model, (seconds, errors) in curves.items():
        axes.plot(seconds, errors, color=model.colour, marker="o", markersize=3)
        axes.plot([seconds[-1], edge], [errors[-1]] * 2, color=model.colour, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    axes.set_xlim(0, edge)
    axes.set_ylim(top=3.0)
    marks = [
        (errors[-1], f"{model.label}  {runs[model.experiment].summary['test']['mse']:.2g}", model.colour)
        for model, (_, errors) in curves.items()
    ]
    figures.labels_right(axes, marks, size=9)
    axes.axhline(best_linear, color=figures.MUTED, linewidth=0.9, linestyle=(0, (5, 3)), zorder=1)
    at_the_edge = {"xytext": (-2, 4), "textcoords": "offset points", "ha": "right", "color": figures.MUTED, "fontsize": 8}
    axes.annotate("no linear model gets below", (1.0, best_linear), xycoords=("axes fraction", "data"), **at_the_edge)
    axes.set_title("Validation MSE against training time; on the right the test MSE")
    axes.set_xlabel("seconds of training")


@mpl.rc_context(figures.STYLE)
def picture(runs: dict[str, Run]) -> Figure:
    """The task above, the errors of all models below."""
    config = OmegaConf.create(runs["mamba2"].config)
    datamodule = assembly.build_data(config)
    figure = Figure(figsize=(figures.WIDTH, 6.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    draw_task(above, datamodule, runs)
    draw_errors(below, runs, best_linear_error(config.data.marker_rate, config.data.window))
    return figure


def results(runs: dict[str, Run], *, judge: bool) -> Table:
    """What every run reached; `judge` says whether the bars mean anything."""
    table = Table("model", "parameters", "steps", "seconds", "test MSE", "bar", "ok", title="data=sample_and_hold")
    for model in MODELS:
        summary = runs[model.experiment].summary
        mse = summary["test"]["mse"]
        bars = [f"> {model.above:g}"] if model.above else []
        bars += [f"< {model.below:g}"] if model.below < float("inf") else []
        ok = ("yes" if model.above < mse < model.below else "NO") if bars and judge else "-"
        table.add_row(
            model.label, f"{summary['parameters']:,}", f"{summary['steps']:,}", f"{summary['seconds']['fit']:.0f}",
            number(mse), ", ".join(bars) or "-", ok,
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for seconds on little data, below a minute")
    parser.add_argument("--folder", type=Path, help="where the runs are or go: outputs/selection, with --quick a temporary one")
    parser.add_argument("--figure", type=Path, help="where the figure goes: docs/selection.png, with --quick into the folder")
    arguments = parser.parse_args()
    if arguments.quick:
        folder = arguments.folder or Path(tempfile.mkdtemp(prefix="statewise-selection-"))
        figure = arguments.figure or folder / "selection.png"
    else:
        folder = arguments.folder or ROOT / "outputs" / "selection"
        figure = arguments.figure or ROOT / "docs" / "selection.png"
    runs = {model.experiment: trained(model, folder.resolve(), arguments.quick) for model in MODELS}
    figure.write_bytes(figures.png(picture(runs), dpi=140))
    Console(width=None if sys.stdout.isatty() else 120).print(results(runs, judge=not arguments.quick))
    print(f"drawn: {figure}")


if __name__ == "__main__":
    main()
