"""Checkpoint files found and read, without running code; what cannot be read is refused with a reason."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints.entry import ENTRY
from statewise.checkpoints.inert import names_in
from statewise.checkpoints.schema import upgraded
from statewise.runs import CHECKPOINTS, Run, load_run

NAMES_SHOWN = 3


def find_checkpoint(place: str, folder: Path) -> Path:
    """The checkpoint meant by a run folder (its last one, else its best) or by a checkpoint file; relative paths mean `folder`.

    Raises:
        FileNotFoundError: neither a checkpoint nor a run folder that holds one.
    """
    path = (folder / place).resolve()
    if path.is_file():
        return path
    if not path.exists():
        raise FileNotFoundError(f"resume: there is no {path}; give a run folder (outputs/<date>/<time>) or a .ckpt file")
    for name in ("last.ckpt", "best.ckpt"):
        if (found := path / CHECKPOINTS / name).is_file():
            return found
    raise FileNotFoundError(
        f"resume: {path} holds no checkpoints/last.ckpt: the run stopped before its first checkpoint; start it anew"
    )


def checkpoint_of(run: Run) -> Path:
    """The best checkpoint of a run, else its last one.

    Raises:
        FileNotFoundError: it has none.
    """
    path = run.best or run.last
    if path is None:
        raise FileNotFoundError(
            f"{run.folder} holds no checkpoint, so no trained model: the run stopped before its first one; train it anew, or "
            "name another run folder"
        )
    return path


def file_at(place: Path | str) -> Path:
    """The file itself, or for a run folder its best checkpoint, else its last one.

    Raises:
        FileNotFoundError: there is neither, or the run has no checkpoint.
    """
    path = Path(place).expanduser().absolute()
    if path.is_file():
        return path
    if path.suffix and not path.is_dir():
        raise FileNotFoundError(f"there is no file {path}; give a checkpoint or a run folder (outputs/<date>/<time>)")
    return checkpoint_of(load_run(path))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project without unpickling code, in the version of this release.

    Raises:
        ValueError: the file is damaged, not a checkpoint, not ours, or of a schema version this release does not know.
    """
    checkpoint = read_plain(path)
    if not isinstance(checkpoint, dict) or ENTRY not in checkpoint or "state_dict" not in checkpoint:
        raise ValueError(
            f"{path} is not a checkpoint of statewise (it has no entry '{ENTRY}'); where its weights are of such a model, make "
            f"one of it: statewise checkpoint migrate {path} --run RUN"
        )
    return upgraded(checkpoint, str(path))


def read_plain(path: Path, *, in_memory: bool = True) -> Any:
    """What a file of torch.save holds, where that is tensors and plain values only.

    in_memory: False maps the tensors: they are read where they are used.

    Raises:
        ValueError: it is damaged, of another kind, or holds pickled objects, which are named.
    """
    try:
        mapped = not in_memory and zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:  # torch raises half a dozen types for a damaged or foreign file
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ValueError:
    """Why a file was not read: damaged, of another kind, or with objects in it."""
    if names := pickled_in(path):
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        return ValueError(
            f"{path} holds pickled objects ({', '.join(names[:NAMES_SHOWN])}{more}), and loading these would run code: make a "
            f"plain copy, which runs none, with statewise checkpoint migrate {path}"
        )
    return ValueError(
        f"{path} cannot be read as a checkpoint ({reason_of(error)}); it is damaged or of another kind: use another checkpoint "
        "of that run, best.ckpt or last.ckpt"
    )


def reason_of(error: Exception) -> str:
    """What torch objects to, without what it advises: its first line is often the least telling."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("Can only", "Trying to", "Unsupported"))] or lines[:1]
    return telling[0].partition(". ")[0].rstrip(".")[:120] if telling else type(error).__name__


def pickled_in(path: Path) -> tuple[str, ...]:
    """The classes and functions that a file names and plain torch.load does not take; none where it cannot be looked into."""
    try:
        return names_in(path)
    except Exception:  # of half a dozen types, as above
        return ()


def is_ours(checkpoint: Any) -> bool:
    """Whether it carries our entry."""
    return isinstance(checkpoint, Mapping) and ENTRY in checkpoint
