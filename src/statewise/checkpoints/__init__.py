"""The checkpoint file: written whole or not at all, read without running code, refused with a reason.

A checkpoint holds tensors and plain values only, so that plain ``torch.load(path)`` reads it. Beside what Lightning keeps
(weights, optimiser, schedule, loops, callbacks, the data module's scaler and position) it carries one entry, `ENTRY`: the
schema version, the version of Statewise and the run's whole configuration; and, written inside an epoch of
data.sampling=contiguous, the state of every stream (task.py).
"""

from typing import TYPE_CHECKING, Any

from statewise.checkpoints.entry import ENTRY, MODEL_PREFIX, SCHEMA_VERSION, describe
from statewise.checkpoints.file import find_checkpoint, read_checkpoint
from statewise.checkpoints.fit import refuse_other_shapes

if TYPE_CHECKING:
    from statewise.checkpoints.atomic import AtomicCheckpointIO

__all__ = [
    "ENTRY",
    "MODEL_PREFIX",
    "SCHEMA_VERSION",
    "AtomicCheckpointIO",
    "describe",
    "find_checkpoint",
    "read_checkpoint",
    "refuse_other_shapes",
]


def __getattr__(name: str) -> Any:
    if name == "AtomicCheckpointIO":  # Lightning takes seconds to import, and most commands on checkpoints need none of it
        from statewise.checkpoints.atomic import AtomicCheckpointIO

        return AtomicCheckpointIO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
