"""The commands under `statewise checkpoint`, their arguments and their help."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Look into checkpoints, compare them, bring old ones up to date, exchange them with other programs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

FileOrRun = Annotated[
    Path, typer.Argument(metavar="FILE|RUN", help="A checkpoint, weights, safetensors; of a run folder its best checkpoint")
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON object on standard output")]


@app.command("inspect", short_help="What does this file hold?")
def inspect(place: FileOrRun, as_json: AsJson = False) -> None:
    """Show what a file holds: who wrote it and when in the training, optimiser and schedule, every parameter with its norm.

    Any file of torch.save with tensors under names (ours, Lightning's, a plain state_dict, a whole pickled module) and
    safetensors. No code of the file is run: what it would take to load it is named instead.

    \b
    Exit code  0  shown
               1  shown, and something in it is not finite
               2  there is no such file, or it cannot be read

    \b
    statewise checkpoint inspect outputs/2025-01-31/12-00-00
    statewise checkpoint inspect model.safetensors
    statewise checkpoint inspect theirs.pt --json
    """
    from statewise.commands import checkpoint_command

    raise typer.Exit(checkpoint_command.exit_code(lambda: checkpoint_command.inspect(place, as_json=as_json)))


@app.command("diff", short_help="Did the training do anything? Which parameters moved, and by how much")
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A file or a run folder, as for inspect: before")],
    b: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="The same: after. Without it A is compared with how its run began")
    ] = None,
    expect: Annotated[str, typer.Option(help="What is good news: moved, every parameter; or equal, every bit")] = "moved",
    constant: Annotated[
        list[str] | None, typer.Option(help="Pattern of names that are not meant to move; may be given again")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="A row for each parameter, however many there are")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the parameters of two files, and say on top whether training did anything.

    Any two files that `inspect` reads; prefixes of torch.compile, of data parallel wrappers and of whatever holds the model do
    not count. Equal to the bit is the mark of a parameter that no optimiser ever touched. Integers, which count steps and the
    like, are shown and not judged.

    \b
    Exit code  0  every parameter moved, to finite values (--expect equal: nothing differs)
               1  something did not move, is not finite, or is in one file only (--expect equal: something differs)
               2  a file cannot be read

    \b
    statewise checkpoint diff outputs/2025-01-31/12-00-00                     since its beginning, drawn again from the seed
    statewise checkpoint diff epoch_1.ckpt outputs/2025-01-31/12-00-00
    statewise checkpoint diff first.pt last.pt --constant '*.rope.*'          for the CI of any project
    statewise checkpoint diff run_a/checkpoints/last.ckpt run_b/checkpoints/last.ckpt --expect equal
    """
    from statewise.commands import checkpoint_command as command

    given = {"expect": expect, "constants": constant or [], "every": every, "as_json": as_json}
    raise typer.Exit(command.exit_code(lambda: command.diff(a, b, **given)))  # type: ignore[arg-type]


@app.command("migrate", short_help="An old or foreign checkpoint as one of this release")
def migrate(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The checkpoint, or weights alone")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OVERRIDE]...", help="Its configuration, as for train.py, where the file does not say it"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; by default NAME-migrated.ckpt beside it")] = None,
    run: Annotated[Path | None, typer.Option(help="Its configuration, scaler and data: those of this run")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace --out where it exists, at once or not at all")
    ] = False,
) -> None:
    """Write a checkpoint in the form of this release: plain values, our names, our schema version. The file stays as it is.

    Pickled objects in it (an OmegaConf configuration, a Path, a numpy number) become plain values without being loaded; what
    has none is left out and named. A file without our entry, of plain Lightning or weights alone, takes its configuration from
    --run or from overrides, and must fit it: every name, every shape.

    \b
    Exit code  0  written, or there was nothing to do
               1  it could not be written; nothing was left behind
               2  it cannot be read, is of a later version, or does not fit

    \b
    statewise checkpoint migrate old.ckpt
    statewise checkpoint migrate theirs.ckpt --run outputs/2025-01-31/12-00-00 --out ours.ckpt
    statewise checkpoint migrate weights.pt model.d_state=8 data=file data.path=bars.csv
    statewise predict ours.ckpt --data new.csv                              then
    """
    from statewise.commands import checkpoint_command as command

    raise typer.Exit(command.exit_code(lambda: command.migrate(path, out, run, overrides or [], overwrite=overwrite)))


@app.command("export", short_help="A dense SSM as safetensors, under the names of the Rust side")
def export(
    place: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="A run folder, or a checkpoint")],
    to: Annotated[Path, typer.Option(help="The file to write, .safetensors")],
    names: Annotated[str, typer.Option(help="Whose names: origin")] = "origin",
) -> None:
    """Write the trained model for another program: weights as they are, and all that a prediction needs in the metadata.

    Only what the original can compute: model=dense_ssm with discretization=direct and norm=layer, without residual, glu,
    activation, skip, linear_skip and anchor. The format is described in docs/checkpoints.md.

    \b
    Exit code  0  written
               1  it could not be written
               2  there is no such run, or the original cannot express it: the options are named

    \b
    statewise checkpoint export outputs/2025-01-31/12-00-00 --to model.safetensors --names origin
    """
    from statewise.commands import checkpoint_command as command

    raise typer.Exit(command.exit_code(lambda: command.export(place, to, names)))


@app.command("import", short_help="Such a file as a run folder that predicts")
def bring_in(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A .safetensors file with the original's names")],
    to: Annotated[Path, typer.Option(help="The run folder to make")],
    run: Annotated[
        Path | None, typer.Option(help="Configuration, scaler and data of this run instead of the metadata's")
    ] = None,
) -> None:
    """Make a run folder of a file that another program, or `export`, has written: it predicts the same to the bit.

    Every name and shape must be that of the original; a missing or superfluous one is named. Without the state of a training
    there is nothing to resume.

    \b
    Exit code  0  written
               1  it could not be written
               2  the file was refused: a name, a shape, the metadata

    \b
    statewise checkpoint import model.safetensors --to outputs/from_rust
    statewise predict outputs/from_rust --data new.csv
    """
    from statewise.commands import checkpoint_command as command

    raise typer.Exit(command.exit_code(lambda: command.bring_in(path, to, run)))
