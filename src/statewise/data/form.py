"""What a model was trained on: all that its shape, and the form of a new file, depend on, without the data themselves."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from statewise.data.segments.gaps import Gap, differences, nanoseconds
from statewise.data.source import Source
from statewise.data.tables.rows import Rows


@dataclass(frozen=True)
class Step:
    """The most frequent difference between two rows of a series, in nanoseconds.

    Attributes:
        usual: whether it is that of more than half of the rows; else the times are irregular.
    """

    length: int
    usual: bool


@dataclass(frozen=True)
class Form:
    """The form of training data, kept in the checkpoint as plain values.

    Attributes:
        features, targets: names of columns; expressions as they are called in the data.
        targets_are_levels: False for returns.
        horizon: rows predicted after each row.
        time, series: the columns of the file; None where it had none.
        step: between two rows; None without times.
        naive: whether the times carried no zone, and none was given; None where that is not known.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    targets_are_levels: bool
    horizon: int
    time: str | None = None
    series: str | None = None
    step: Step | None = None
    naive: bool | None = None

    @classmethod
    def of(cls, source: Source, rows: Rows, horizon: int, gap: Gap) -> "Form":
        """The form of data that are there."""
        table = source.table
        understood = getattr(table, "understood", None)
        return cls(
            source.features,
            source.targets,
            source.targets_are_levels,
            horizon,
            table.time,
            table.series,
            step_of(rows, gap),
            None if understood is None else understood.naive,
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Form":
        """The inverse of `state_dict`."""
        step = state["step"]
        values: dict[str, Any] = {**state, "step": None if step is None else Step(**step)}
        return cls(**{**values, "features": tuple(state["features"]), "targets": tuple(state["targets"])})

    def state_dict(self) -> dict[str, Any]:
        """Plain values, so that a checkpoint loads with weights_only."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def n_features(self) -> int:
        return len(self.features)

    @property
    def n_targets(self) -> int:
        return len(self.targets)

    @property
    def target_inputs(self) -> tuple[int, ...] | None:
        """The column of each target among the features; None if a target is no feature."""
        if not set(self.targets) <= set(self.features):
            return None
        return tuple(self.features.index(name) for name in self.targets)


def step_of(rows: Rows, gap: Gap) -> Step | None:
    """The step of the policy, else the most frequent one; None where no series has two rows with times."""
    if rows.times is None:
        return None
    if gap.step is not None:
        return Step(nanoseconds(gap.step), usual=True)
    difference, within = differences(rows)
    if not within.any():
        return None
    lengths, counts = np.unique(difference[within], return_counts=True)
    return Step(int(lengths[np.argmax(counts)]), usual=bool(2 * int(counts.max()) > int(counts.sum())))
