"""`resume=auto`: one job that may take several attempts, each with the same command: what a job that is requeued types.

The folder that ``hydra.run.dir=F`` names is the first attempt's; further ones have F-2, F-3 and so on.
"""

import re
from collections.abc import Sequence
from pathlib import Path

KEY, AUTO = "resume", "auto"
FOLDER = "hydra.run.dir"


class Complete(Exception):
    """The newest attempt has ended well; the message says where."""


def wanted(arguments: Sequence[str]) -> bool:
    """Whether this command is one attempt of several."""
    return f"{KEY}={AUTO}" in arguments


def next_attempt(arguments: Sequence[str], folder: Path) -> tuple[list[str], str]:
    """The command line of the next attempt, whose folder is made here, and a line that says what it goes on from.

    Args:
        arguments: of this command, with ``resume=auto`` and ``hydra.run.dir=F``.
        folder: what a relative F means.

    Raises:
        ValueError: there is no F, or it holds something else than attempts.
        OSError: the folder cannot be made.
        Complete: the newest attempt has ended well.
    """
    places = [value for key, _, value in (argument.partition("=") for argument in arguments) if key == FOLDER]
    if not places or not places[-1]:
        raise ValueError(f"resume=auto needs {FOLDER}=FOLDER: the folder of the job, the same each time that it is started")
    first = (folder / places[-1]).absolute()
    made = attempts(first)
    if made:
        _refuse_other_things(made[-1][1])
        if ended_well(made[-1][1]):
            raise Complete(f"{made[-1][1]} has ended well: nothing is left to do")
        _clear_away([path for _, path in made])
    parent = next((path for _, path in reversed(made) if (path / "checkpoints" / "last.ckpt").is_file()), None)
    number, own = _make(first, made[-1][0] + 1 if made else 1)
    others = [argument for argument in arguments if argument.partition("=")[0] not in {KEY, FOLDER}]
    go_on = [] if parent is None else [f"{KEY}={parent}"]
    line = f"resume=auto: attempt {number} in {own}"
    if parent is not None:
        line += f" continues {parent}"
    elif made:
        line += " starts anew: no attempt before it has come to a checkpoint"
    return [*others, *go_on, f"{FOLDER}={own}"], line


def attempts(first: Path) -> list[tuple[int, Path]]:
    """Number and folder of every attempt so far, oldest first."""
    found = [(1, first)] if first.is_dir() else []
    beside = first.parent.iterdir() if first.parent.is_dir() else ()
    numbered = ((re.fullmatch(rf"{re.escape(first.name)}-(\d+)", path.name), path) for path in beside)
    return sorted(found + [(int(match[1]), path) for match, path in numbered if match and path.is_dir()])


def ended_well(folder: Path) -> bool:
    """Whether the run of this folder came to its planned end: not to that of trainer.stop_after_steps."""
    from statewise.runs import Run  # reads tables, and takes longer to import than --help may

    summary = Run(folder).summary or {}
    return summary.get("status") == "ok" and "stopped" not in summary


def _clear_away(folders: Sequence[Path]) -> None:
    from statewise.runs import remove_partial_files

    for folder in folders:
        remove_partial_files(folder)


def _make(first: Path, number: int) -> tuple[int, Path]:
    first.parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return number, path


def _refuse_other_things(folder: Path) -> None:
    # A run that was killed at once has an empty folder, or one with what a sweep has written about it.
    if not (folder / ".hydra").exists() and any(not path.name.startswith("job") for path in folder.iterdir()):
        raise ValueError(f"{folder} holds no run and is not empty: resume=auto needs a {FOLDER} of its own")
