"""How the keys of the configuration divide the time axis: data.split, or one of the folds, and an embargo."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Shaped

from statewise.data.windows.folds import Folds, check_embargo, check_fold, fold_blocks
from statewise.data.windows.splits import Blocks, axis_borders, in_turn, refuse_local_moments

DEFAULT_SPLIT: list[Any] = [0.7, 0.1, 0.2]
NO_FOLDS = Folds()


@dataclass(frozen=True)
class Division:
    """Where train, val and test lie.

    Attributes:
        split: fractions, row counts or dates (splits.py); stands back where there are folds.
        folds, fold: walk-forward folds, and which of them (folds.py).
        embargo: rows of the time axis, or a duration, after an evaluation block that train nothing.
    """

    split: Sequence[Any] = tuple(DEFAULT_SPLIT)
    folds: Folds = NO_FOLDS
    fold: int = 0
    embargo: int | str | None = None

    def __post_init__(self) -> None:
        check_fold(self.folds, self.fold, default_split=list(self.split) == DEFAULT_SPLIT)
        check_embargo(self.embargo)

    def blocks(self, axis: Shaped[np.ndarray, " n"], *, naive: bool = False) -> Blocks:
        """The blocks of each part, as positions on the axis that all series share.

        Args:
            naive: whether the times carry no time zone, and none was given.

        Raises:
            ValueError: the axis has no such blocks.
        """
        if self.folds.n is not None:
            return fold_blocks(self.folds, self.fold, axis, self.embargo)
        if naive:
            refuse_local_moments(self.split, axis)
        return in_turn(axis_borders(self.split, axis))

    def notes(self, blocks: Blocks) -> list[str]:
        """Sentences about what is not seen in the parts themselves."""
        notes = []
        if self.folds.n is not None:
            notes.append(f"fold {self.fold} of {self.folds.n} (counted from 0), {self.folds.mode}")
        if self.embargo:
            trained_after = len(blocks["train"]) > 1
            effect = f"no row within {self.embargo} after the test block trains" if trained_after else "nothing to keep apart"
            why = "" if trained_after else ", because no training row lies after an evaluation block"
            notes.append(f"data.embargo={self.embargo}: {effect}{why}")
        return notes
