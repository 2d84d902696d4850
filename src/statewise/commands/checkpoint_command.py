"""`statewise checkpoint ...`: what the five commands do and print.

Exit codes: 0 done; 1 the answer is bad news (below, at each command), or nothing could be written; 2 refused.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from statewise.checkpoints.contents import contents, not_finite
from statewise.checkpoints.difference import difference
from statewise.checkpoints.file import file_at
from statewise.checkpoints.weights import Weights, read_weights
from statewise.choices import one_of
from statewise.commands.checkpoint_tables import line, print_contents, print_difference
from statewise.config import CONFIG_ERRORS
from statewise.console import console
from statewise.launch import FULL_ERROR
from statewise.summary import plain

NAMES = ("origin",)
EXPECTED = ("moved", "equal")


def exit_code(command: Callable[[], int]) -> int:
    """That of a command; whatever goes wrong is one line on standard error."""
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, *CONFIG_ERRORS) as failure:
        if os.environ.get(FULL_ERROR):
            raise
        wrapped = isinstance(failure, InstantiationException) and failure.__cause__ is not None
        error = failure.__cause__ if wrapped else failure
        refused = not isinstance(error, OSError) or isinstance(error, FileNotFoundError)
        line = " ".join(str(error).split("\n"))
        sys.stderr.write(f"{line}\n" if refused else f"a file could not be read or written: {line}\n")
        return 2 if refused else 1


def inspect(place: Path, *, as_json: bool) -> int:
    """Print what a file holds; 1 where entries are not finite."""
    found = contents(file_at(place))
    broken = list(not_finite(found))
    if as_json:
        _print_json(found)
    else:
        print_contents(console(), found, broken)
    return 1 if broken else 0


def diff(a: Path, b: Path | None, *, expect: str, constants: Sequence[str], every: bool, as_json: bool) -> int:
    """Print what differs between two files, or since the beginning of a run; 1 where that is not what was expected."""
    one_of("--expect", expect, EXPECTED)
    after = file_at(a if b is None else b)
    if b is not None and file_at(a) == after:
        raise ValueError(f"{after} was given twice; a run folder means its best checkpoint")
    before = _beginning(a) if b is None else read_weights(file_at(a))
    titles = before.kind if b is None else str(before.path), str(after)
    found = difference(before, read_weights(after), constants)
    good = found.all_moved if expect == "moved" else found.all_equal
    if as_json:
        _print_json({**dict(zip("ab", titles, strict=True)), **found.as_dict()})
    else:
        print_difference(console(), titles, found, good=good, every=every)
    return 0 if good else 1


def migrate(path: Path, out: Path | None, run: Path | None, overrides: Sequence[str], *, overwrite: bool) -> int:
    """Write a file in the form of this release, and print what was changed."""
    from statewise.checkpoints.migrate import migrate as migrated

    result = migrated(path, out, run=run, overrides=overrides, overwrite=overwrite)
    to = console()
    line(to, "migrated" if result.written else "looked at", str(path))
    for note in result.notes:
        line(to, "", note)
    if result.written is not None:
        line(to, "written to", str(result.written))
    return 0


def export(place: Path, to: Path, names: str) -> int:
    """Write the model of a run for another program, and print what was written."""
    from statewise.checkpoints.exchange import export_origin
    from statewise.restore import load_trained

    one_of("--names", names, NAMES)
    one_of("the end of --to", to.suffix, (".safetensors",))
    trained = load_trained(place)
    tensors = trained.model.state_dict()
    config: Any = OmegaConf.to_container(trained.config, resolve=True)
    export_origin(tensors, config=config, overrides=trained.run.overrides, scaler=trained.scaler, form=trained.form, to=to)
    kind = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    shown = console()
    line(shown, "exported", f"{len(tensors)} parameters, {sum(t.numel() for t in tensors.values()):,} entries, {kind}")
    line(shown, "names", "those of the original: " + ", ".join(list(tensors)[:4]) + ", ...")
    line(shown, "written to", str(to))
    return 0


def bring_in(path: Path, folder: Path, run: Path | None) -> int:
    """Make a run folder of a file of another program, and print what to do with it."""
    from statewise.checkpoints.exchange import import_origin
    from statewise.checkpoints.recipe import recipe_of

    like = None
    if run is not None:
        recipe = recipe_of(run)
        config: Any = OmegaConf.to_container(recipe.config, resolve=True)
        like = (config, recipe.scaler, recipe.form)
    written = import_origin(path, folder, like)
    shown = console()
    line(shown, "imported", str(path))
    line(shown, "written to", str(written))
    line(shown, "predict with", f"statewise predict {folder} --data FILE")
    return 0


def _beginning(place: Path) -> Weights:
    from statewise.checkpoints.beginning import beginning_of

    return beginning_of(place)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")
