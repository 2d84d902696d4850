"""How Lightning writes our checkpoints: whole or not at all."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from statewise.runs import atomic_file, partial_name


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to the disk, then renames: a reader sees the old file or the new one, never half."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            OSError: the disk is full or the folder cannot be written; nothing is left behind and an older file stays.
        """
        with atomic_file(Path(path)) as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch finds its archive unfinished and says that instead of why
                behind: BaseException | None = error
                while behind is not None and not isinstance(behind, OSError):
                    behind = behind.__context__
                if behind is None:
                    raise
                raise behind from error


def same_file_as(source: Path, target: Path) -> None:
    """Let `target` be the file that `source` is now: a second name for it, or a copy where the file system knows no such.

    Checkpoints are replaced and never changed, so that two names of one file do not disturb each other.

    Raises:
        OSError: it cannot be written; an older `target` stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    name = partial_name(target)
    name.unlink(missing_ok=True)
    try:
        try:
            os.link(source, name)
        except OSError:
            with atomic_file(target) as file, source.open("rb") as original:
                shutil.copyfileobj(original, file)
        else:
            os.replace(name, target)
    finally:
        name.unlink(missing_ok=True)  # still there where both were one file already
