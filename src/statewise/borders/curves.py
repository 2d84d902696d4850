"""The losses around the borders of epochs, as a run folder keeps them: epoch_borders.parquet, one row for each loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from statewise import runs

FILE = "epoch_borders.parquet"


class Curve(NamedTuple):
    """The losses around one border: `place` counts batches from the first one of the epoch that begins, 0, -1, 1, ..."""

    epoch: int
    place: np.ndarray
    loss: np.ndarray


def write_curves(folder: Path | str, around: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> None:
    """Write (epoch that begins, losses before, losses after) of some borders; nothing where there are none."""
    if not around:
        return
    frame = pl.DataFrame(
        {
            "epoch": np.concatenate([np.full(len(before) + len(after), epoch) for epoch, before, after in around]),
            "place": np.concatenate([np.arange(-len(before), len(after)) for _, before, after in around]),
            "loss": np.concatenate([np.concatenate([before, after]) for _, before, after in around]),
        }
    )
    with runs.atomic_file(Path(folder) / FILE) as file:
        frame.write_parquet(file)


def read_curves(folder: Path | str) -> list[Curve]:
    """The borders in the order of the run; empty where the run has left none."""
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    parts = pl.read_parquet(path).partition_by("epoch", maintain_order=True)
    return [Curve(part["epoch"][0], part["place"].to_numpy(), part["loss"].to_numpy()) for part in parts]
