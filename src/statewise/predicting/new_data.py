"""All rows of a new file as a data module, so that whatever measures a run on its test rows measures on these."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from jaxtyping import Shaped

from statewise.assembly import DTYPES
from statewise.data.datamodule import WindowsDataModule
from statewise.data.features.targets import select
from statewise.data.preparation.prepared import Prepared
from statewise.data.segments.regular import on_grid
from statewise.data.source import Source
from statewise.data.tables.table import read_table
from statewise.data.windows.division import Division
from statewise.data.windows.splits import PARTS, Blocks
from statewise.predicting.asked import Asked
from statewise.predicting.checks import far_values, form_warnings
from statewise.restore import Trained


@dataclasses.dataclass(frozen=True)
class Undivided(Division):
    """Every part is everything: nothing is learnt here."""

    def blocks(self, axis: Shaped[np.ndarray, " n"], *, naive: bool = False) -> Blocks:
        """One block for each part, from the first place of the axis to the last."""
        return {name: ((0, len(axis)),) for name in PARTS}


class NewData(WindowsDataModule):
    """A new file, scaled by the checkpoint of a run.

    Attributes:
        warnings: sentences about what is odd, known after `setup`.
    """

    def __init__(self, trained: Trained, asked: Asked, path: str) -> None:
        run: WindowsDataModule = instantiate(trained.config.data, _convert_="object")
        super().__init__(
            window=asked.window,
            horizon=trained.form.horizon,
            stride=run.stride,
            gap=asked.gap,
            max_gap=asked.max_gap,
            missing=asked.missing,
            batch_size=asked.batch_size,
            supervision=asked.supervision,
        )
        self.dtype = DTYPES.get(trained.config.hardware.precision, torch.float32)
        self.trained, self.asked, self.path = trained, asked, path
        self.warnings: list[str] = []

    def source(self) -> Source:
        """The table of the file with the features and targets of the run.

        Raises:
            ValueError: a column is missing, or the file has another frequency.
        """
        asked, form = self.asked, self.trained.form
        table = read_table(self.path, folder=Path.cwd(), columns=self._columns, reading=asked.reading)
        self.warnings += form_warnings(table, form, asked.gap, self.trained.scaler, self.path)
        table, _ = on_grid(table, asked.gap)
        source = select(table, asked.features, asked.targets, timezone=asked.reading.timezone)
        return dataclasses.replace(source, targets_are_levels=form.targets_are_levels)

    def setup(self, stage: str | None = None) -> None:
        """Reads and scales everything, once."""
        if self._prepared is not None:
            return
        self._prepared = Prepared(
            self.source,
            window=self.window,
            horizon=self.horizon,
            stride=self.stride,
            division=Undivided(),
            gap=self.gap,
            max_gap=self.max_gap,
            missing=self.missing,
            scale=None,
            streams=None,
            dtype=self.dtype,
            scaler=self.trained.scaler,
        )
        prepared = self._prepared
        for column, name in enumerate(prepared.segments.names):
            far = far_values(prepared.scaled[:, column], prepared.segments.usable, name, prepared.rows, prepared.scaler)
            self.warnings += [f"{self.path}: {far}"] if far else []

    def _columns(self, names: Sequence[str]) -> list[str]:
        needed = self.asked.columns(names, self.path)
        if lacking := [text for text in self.asked.targets if text not in self.asked.targets_in(names)]:
            raise ValueError(f"{self.path} lacks what the target {lacking[0]} is made of, so there is nothing to compare with")
        return needed
