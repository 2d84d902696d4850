"""The `statewise` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from statewise.commands import checkpoint_cli

app = typer.Typer(
    help="Train state-space models on windows of a time series, with proof that the training trains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # brackets are Hydra's here
)

app.add_typer(checkpoint_cli.app, name="checkpoint", short_help="Look into checkpoints, compare, migrate, exchange them")


@app.command("train", context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
def train(arguments: Annotated[list[str] | None, typer.Argument(help="As for `python train.py`")] = None) -> None:
    """Train a model: the same program as `python train.py` (statewise train --help lists groups and overrides)."""
    from statewise.train import main

    raise typer.Exit(main(arguments or []))


@app.command(
    "check", context_settings={"ignore_unknown_options": True}, short_help="Can this run learn? 20 steps and a verdict, for CI."
)
def check(
    overrides: Annotated[list[str] | None, typer.Argument(help="As for `python train.py`: GROUP=OPTION, KEY=VALUE")] = None,
) -> None:
    """Look at the first 20 steps of a run and say whether it can learn; for the CI of a project. Nothing is kept.

    The preflight and 20 optimiser steps of exactly the run that `statewise train` would do, then two validation batches, and
    a table of what training health found: what is true, why it matters, what to do, how to declare it intended.

    \b
    Exit code  0  healthy
               1  a warning or an error
               2  it could not run: configuration or data refused, or a step failed

    \b
    statewise check                                  the default run
    statewise check model=mamba2 data=file data.path=bars.csv
    statewise check --config-dir=conf model=mine     your model: conf/model/mine.yaml
    statewise check 'health.frozen=[input_proj.*]'   what is meant to stand still
    statewise check fault=detach_input               what a broken run looks like
    """
    from statewise.commands.check import main

    raise typer.Exit(main(overrides or []))


@app.command(
    "data",
    context_settings={"ignore_unknown_options": True},
    short_help="What is in these files, what is odd, and would training begin?",
)
def data(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH|KEY=VALUE", help="Files, folders or patterns; KEY=VALUE as for `python train.py`"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object on standard output")] = False,
    leak_audit: Annotated[
        bool, typer.Option("--leak-audit", help="Change later values, and see whether what trains notices; takes a while")
    ] = False,
) -> None:
    """Look at files as a run would read them, and say what a run would do with them; nothing is trained and nothing is kept.

    What was understood (columns, time zone, frequency, series), what is odd, how many windows train, val and test would get
    and why windows are lost. Everything is read with the configuration of `statewise train data=file data.path=PATH`.

    \b
    Exit code  0  training would begin
               1  the leak audit found a leak
               2  training would refuse: the last line says why, and which key helps

    \b
    statewise data bars.csv
    statewise data 'bars/*.parquet' data.window=96 data.horizon=96
    statewise data bars.csv data.timezone=Europe/Berlin data.day_first=true
    statewise data bars.csv --json                        for a program
    statewise data bars.csv --leak-audit model=mamba2     does anything see the future?
    """
    from statewise.commands.examine import main

    raise typer.Exit(main(arguments or [], as_json=as_json, leak_audit=leak_audit))


@app.command("predict", short_help="A trained model on a new file, or on bars as they come")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: outputs/<date>/<time>; or a checkpoint file")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[data.KEY=VALUE]...", help="How the file is written, where that is not as in the run's own"),
    ] = None,
    data: Annotated[str | None, typer.Option(help="The new file, a folder of files or a pattern")] = None,
    out: Annotated[Path, typer.Option(help="The file to write, .parquet or .csv")] = Path("predictions.parquet"),
    stream: Annotated[bool, typer.Option("--stream", help="Bars from standard input, predictions to standard output")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what else is warned of")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object on standard output")] = False,
) -> None:
    """Predict with the best checkpoint of a run; the data of the run are not needed.

    The run's own scaler, features and rules for gaps and missing values on a file of the same form: a prediction for every row
    that has a whole window before it, the last one included, whose target is still to come. Where the file has the target,
    too, its value stands beside the prediction, and the errors are printed.

    With --stream the model remembers what it has seen (all of it, not a window): CSV with a header comes in on standard
    input, and after each line its predictions go out.

    \b
    Exit code  0  predicted
               1  a prediction is not finite, or nothing could be written
               2  the run or the file was refused: a missing column, another frequency, too few rows

    \b
    statewise predict outputs/2025-01-31/12-00-00 --data new.csv
    statewise predict outputs/2025-01-31/12-00-00 --data 'new/*.parquet' --out new.csv
    statewise predict outputs/2025-01-31/12-00-00 --data new.csv data.timezone=Europe/Berlin
    tail -f bars.csv | statewise predict outputs/2025-01-31/12-00-00 --stream
    """
    from statewise.commands.predict import main

    raise typer.Exit(main(folder, data, out, options or [], stream=stream, strict=strict, as_json=as_json))


@app.command("evaluate", short_help="The table of a run again, or on a new file")
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: outputs/<date>/<time>; or a checkpoint file")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[data.KEY=VALUE]...", help="How the file of --data is written"),
    ] = None,
    split: Annotated[str, typer.Option(help="The rows to evaluate on: test or val")] = "test",
    data: Annotated[str | None, typer.Option(help="A new file instead, all of it")] = None,
    hardware: Annotated[str | None, typer.Option(help="As hardware= of a run; ddp_cpu, ddp: by several processes")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object on standard output")] = False,
) -> None:
    """Compute the table of a run again, from its best checkpoint and its data; nothing is written.

    Errors of the model and of the baselines on the same rows; for returns also information coefficient, directional accuracy
    and what trading would have earned. With --data on all rows of a new file, without the linear baseline, which needs the
    training data.

    \b
    Exit code  0  evaluated
               1  it failed
               2  the run or the data were refused

    \b
    statewise evaluate outputs/2025-01-31/12-00-00
    statewise evaluate outputs/2025-01-31/12-00-00 --split val
    statewise evaluate outputs/2025-01-31/12-00-00 --data next_year.csv --json
    statewise evaluate outputs/2025-01-31/12-00-00 --hardware ddp
    """
    from statewise.commands.evaluate import main

    raise typer.Exit(main(folder, split, data, options or [], as_json=as_json, hardware=hardware))


@app.command("runs", short_help="The runs of a folder or of a sweep: sorted, filtered, compared")
def overview(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Of runs or of a sweep; without one, outputs")
    ] = None,
    sort: Annotated[str | None, typer.Option(help="By a column or a configuration key; -NAME: largest first")] = None,
    where: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, or != < <= > >=; several: all of them")] = None,
    best: Annotated[int | None, typer.Option(help="Only the first so many of those that ended ok")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: an array of objects on standard output")] = False,
    page: Annotated[Path | None, typer.Option(help="Write a page that compares them, an HTML file")] = None,
) -> None:
    """Show every run in some folders: what it was asked for, how it ended and how good it is; nothing in them is changed.

    By default the best objective comes first (of runs on several data sets, in each of them), and what did not end ok comes
    last, with its reason. Names are those of the columns of --json, or any configuration key: test_mse, status, skill, seconds,
    model, seed, optimizer.lr, data.window. A value may have * in it.

    \b
    Exit code  0  shown
               1  no run passes --where or --best
               2  refused: no folder, no run in it, an unknown name, no comparison

    \b
    statewise runs outputs/2025-01-31                          the runs of a day
    statewise runs outputs/2025-01-31/12-00-00 --sort test_mse
    statewise runs --where status=ok --where 'test_mse<0.03' --where model=gru --best 5
    statewise runs --where status!=ok                          what went wrong?
    statewise runs outputs/2025-01-31 --page compared.html     curves over each other, in a browser
    """
    from statewise.commands.overview import main

    raise typer.Exit(main(folders or [Path("outputs")], sort, where or [], best, as_json=as_json, page=page))


@app.command(
    "resume-check",
    context_settings={"ignore_unknown_options": True},
    short_help="Is a run that was stopped and resumed the run that never stopped?",
)
def resume_check(
    overrides: Annotated[list[str] | None, typer.Argument(help="As for `python train.py`: GROUP=OPTION, KEY=VALUE")] = None,
    steps: Annotated[int | None, typer.Option(help="The first steps of the run as it is planned, not a shortened one")] = None,
    stop_at: Annotated[int | None, typer.Option(help="One checkpoint, taken after this step")] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Also with accumulated gradients, and with 2 workers")] = False,
) -> None:
    """Prove on your own configuration that resuming is exact: no number may differ, not in its last digit. Nothing is kept.

    A shortened run (3 epochs of 8 batches, unless the overrides say otherwise) goes to its end, and for each place where a
    checkpoint is taken another one is stopped there and resumed. Weights, optimizer, schedule, the memories of all callbacks,
    every logged number, predictions and findings are compared; a row says equal, or the first difference with both values.

    Random numbers from the global generators of torch, numpy and Python are repeated; what a model or a callback draws
    elsewhere, or remembers without a state_dict, shows here.

    \b
    Exit code  0  equal
               1  different
               2  it could not run: configuration or data refused, or a run failed

    \b
    statewise resume-check                                 the default run
    statewise resume-check model=mamba2 data=file data.path=bars.csv
    statewise resume-check --matrix scheduler=onecycle model.dropout=0.1
    statewise resume-check --steps 200 --stop-at 130       200 steps of the run as it is
    """
    from statewise.commands.resume_check import main

    raise typer.Exit(main(overrides or [], steps=steps, stop_at=stop_at, matrix=matrix))


@app.command("market")
def market(
    path: Annotated[Path, typer.Argument(help="The file to write: .csv, .parquet, .dbn or .dbn.zst")],
    ic: Annotated[float, typer.Option(help="Information coefficient of the planted signal")] = 0.05,
    bars: Annotated[int, typer.Option(help="One-minute bars for each instrument")] = 200_000,
    instruments: Annotated[int, typer.Option(help="How many instruments")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the generator")] = 0,
) -> None:
    """Write synthetic one-minute bars with a planted signal, as data=market makes them."""
    from statewise.data.generators.market import market_bars, write_bars

    try:
        write_bars(market_bars(seed, ic, bars=bars, instruments=instruments).frame, path)
    except (ValueError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    typer.echo(f"wrote {bars * instruments:,} bars to {path}")


def main() -> None:
    """Entry point of the console script."""
    sys.exit(app())
