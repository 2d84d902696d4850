"""The checkpoint file: written whole or not at all, read without running code, refused with a reason.

A checkpoint holds tensors and plain values only, so that plain ``torch.load(path)`` reads it. Beside what Lightning keeps
(weights, optimiser, schedule, loops, callbacks, the data module's scaler and position) it carries one entry, `ENTRY`: the
schema version, the version of Statewise and the run's whole configuration; and, written inside an epoch of
data.sampling=contiguous, the state of every stream (task.py).
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from statewise import __version__

ENTRY = "statewise"
SCHEMA_VERSION = 1
MODEL_PREFIX = "model."  # the task holds the model under this name


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to the disk, then renames: a reader sees the old file or the new one, never half."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            OSError: the disk is full or the folder cannot be written; nothing is left behind and an older file stays.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def describe(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The entry that makes a checkpoint ours: the resolved configuration as plain values, and the overrides behind it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "config": dict(config),
        "overrides": list(overrides),
    }


def find_checkpoint(place: str, folder: Path) -> Path:
    """The checkpoint meant by a run folder (its last one) or by a checkpoint file; relative paths mean `folder`.

    Raises:
        FileNotFoundError: neither a checkpoint nor a run folder that holds one.
    """
    path = (folder / place).resolve()
    if path.is_file():
        return path
    if not path.exists():
        raise FileNotFoundError(f"resume: there is no {path}; give a run folder (outputs/<date>/<time>) or a .ckpt file")
    last = path / "checkpoints" / "last.ckpt"
    if not last.is_file():
        raise FileNotFoundError(
            f"resume: {path} holds no checkpoints/last.ckpt: the run stopped before its first checkpoint; start it anew"
        )
    return last


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project without unpickling code.

    Raises:
        ValueError: the file is damaged, not a checkpoint, not ours, or of a schema version this release does not know.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises half a dozen types for a damaged or foreign file
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({reason[:120]}); it may be damaged or hold pickled objects: "
            "use another checkpoint of that run, best.ckpt or last.ckpt"
        ) from error
    if not isinstance(checkpoint, dict) or ENTRY not in checkpoint or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is not a checkpoint of statewise (it has no entry '{ENTRY}'); resume needs one it wrote")
    version = checkpoint[ENTRY].get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has checkpoint schema version {version}, this release ({__version__}) reads version {SCHEMA_VERSION}; "
            f"use the release that wrote it ({checkpoint[ENTRY].get('version', 'unknown')})"
        )
    return checkpoint


def refuse_other_shapes(path: Path, saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Compare the parameters of a checkpoint with those of the model that is to take them: all names, all shapes.

    Raises:
        ValueError: one line that names the first parameters that differ, with both shapes.
    """
    faults = [
        f"{name} is {list(saved[name].shape)} in the checkpoint and {list(tensor.shape)} in the model"
        for name, tensor in wanted.items()
        if name in saved and saved[name].shape != tensor.shape
    ]
    faults += [f"{name} is missing in the checkpoint" for name in wanted if name not in saved]
    faults += [f"{name} is in the checkpoint but not in the model" for name in saved if name not in wanted]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        shown = "; ".join(fault.replace(MODEL_PREFIX, "", 1) for fault in faults[:3])
        raise ValueError(
            f"{path} does not fit this model: {shown}{more}; resume without the overrides that change the model or the data's "
            "columns, or start a new run"
        )
