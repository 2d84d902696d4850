"""The `statewise` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Train state-space models on windows of a time series, with proof that the training trains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # brackets are Hydra's here
)


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
    from statewise.check import main

    raise typer.Exit(main(overrides or []))


@app.command("market")
def market(
    path: Annotated[Path, typer.Argument(help="The file to write: .csv or .parquet")],
    ic: Annotated[float, typer.Option(help="Information coefficient of the planted signal")] = 0.05,
    bars: Annotated[int, typer.Option(help="One-minute bars for each instrument")] = 200_000,
    instruments: Annotated[int, typer.Option(help="How many instruments")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the generator")] = 0,
) -> None:
    """Write synthetic one-minute bars with a planted signal, as data=market makes them."""
    from statewise.data.market import market_bars, write_bars

    try:
        write_bars(market_bars(seed, ic, bars=bars, instruments=instruments).frame, path)
    except (ValueError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    typer.echo(f"wrote {bars * instruments:,} bars to {path}")


def main() -> None:
    """Entry point of the console script."""
    sys.exit(app())
