"""What is known of one series while its bars come: the state of the model, and what features and fills need of the past.

The rules are those of whole files (gaps.py, regular.py, missing.py, segments.py), which look at a row and the rows before
it: here they are asked of one row after another.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from statewise.data.features.derive import Derived
from statewise.data.features.formula import Formula
from statewise.data.segments.gaps import length_of, nanoseconds
from statewise.data.tables.numeric import InMemory
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table
from statewise.predicting.asked import Asked


@dataclass(frozen=True)
class Ready:
    """The features of one row, filled.

    Attributes:
        features: in original units; None where the row cannot be used, because a value is missing that cannot be filled.
        fresh: the state begins anew with this row.
        why: what ended the rows before, in a few words.
        inserted: a row that did not come.
    """

    features: Float[np.ndarray, " f"] | None
    fresh: bool
    why: str
    inserted: bool


class Features:
    """The columns of formulas, for the last of a few rows.

    Attributes:
        rows: how many rows the last one's features are made of.
    """

    def __init__(self, formulas: Sequence[Formula], columns: Sequence[str], timezone: str | None) -> None:
        self._formulas, self._columns, self._timezone = tuple(formulas), tuple(columns), timezone
        self.rows = 1 + max(formula.warm_up for formula in formulas)
        self._plain = all(not formula.steps for formula in formulas)
        self._places = [self._columns.index(f.column) for f in formulas if f.column is not None] if self._plain else []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(formula.name for formula in self._formulas)

    def of(self, times: Sequence[int | None], values: Sequence[Float[np.ndarray, " c"]]) -> Float[np.ndarray, " f"]:
        """Raises ValueError where a function does not take a value."""
        if self._plain:
            return values[-1][self._places]
        count = len(values)
        clock = None if times[0] is None else np.array(times, dtype=np.int64).view("datetime64[ns]")
        stacked = np.stack(values)
        numbers: Mapping[str, np.ndarray] = {name: stacked[:, k] for k, name in enumerate(self._columns)}
        table = Table(Rows(("",), np.array([0, count]), clock), InMemory(numbers))
        derived = Derived(table, {formula.name: formula for formula in self._formulas}, self._timezone)
        return np.array([derived.read(formula.name)[-1] for formula in self._formulas])


class SeriesMemory:
    """One series.

    Attributes:
        state: of the model, None before the first row of a segment.
        rows_seen: rows that are in the state.
    """

    def __init__(self, asked: Asked, features: Features, step: int | None) -> None:
        self._asked, self._features, self._step = asked, features, step
        self._longest = None if asked.max_gap is None else nanoseconds(asked.max_gap, "data.max_gap")
        self._times: deque[int | None] = deque(maxlen=features.rows)
        self._values: deque[np.ndarray] = deque(maxlen=features.rows)
        count = len(features.names)
        # Rows since the latest value of each column, and that value.
        self._since = np.full(count, math.inf)
        self._latest = np.zeros(count)
        self._blocked = self._begun = False
        self.state: Any = None
        self.rows_seen = 0

    @property
    def latest_time(self) -> int | None:
        return self._times[-1] if self._times else None

    def rows(self, time: int | None, values: Float[np.ndarray, " c"]) -> Iterator[Ready]:
        """What the model is to see because of a bar: rows that are absent before it, if any, then the bar.

        Raises:
            ValueError: a gap or a missing value under the policy `error`, or a value that a function does not take.
        """
        jump, absent = self._before(time)
        if absent:
            latest, step = self.latest_time, self._step
            assert latest is not None
            assert step is not None
            for moment in range(latest + step, latest + (absent + 1) * step, step):
                yield self._row(moment, self._values[-1], "", inserted=True)
        yield self._row(time, values, jump, inserted=False)

    def _before(self, time: int | None) -> tuple[str, int]:
        """A sentence about the jump before a bar, or how many absent rows are inserted there."""
        gap, before = self._asked.gap, self.latest_time
        if before is None or time is None or self._step is None or gap.policy == "ignore":
            return "", 0
        difference = time - before
        if gap.policy == "forward_fill":
            if difference % self._step:
                raise ValueError(
                    f"{length_of(difference)} after the bar before, no multiple of the step {length_of(self._step)}: "
                    "data.gap.policy=forward_fill needs a regular grid"
                )
            if 0 < difference // self._step - 1 <= gap.max_fill:
                return "", difference // self._step - 1
        jumps = 2 * difference >= 3 * self._step if self._longest is None else difference > self._longest
        if not jumps:
            return "", 0
        what = f"{length_of(difference)} after the bar before, where the step is {length_of(self._step)}"
        if gap.policy == "error":
            raise ValueError(f"{what}, and data.gap.policy=error")
        return what, 0

    def _row(self, time: int | None, values: np.ndarray, jump: str, *, inserted: bool) -> Ready:
        self._times.append(time)
        self._values.append(values)
        found = self._features.of(list(self._times), list(self._values))
        there = ~np.isnan(found)
        if jump:
            self._since[:] = math.inf
        self._since = np.where(there, 0.0, self._since + 1.0)
        self._refuse_missing(there)
        over = self._since > (self._asked.missing.max_fill if self._asked.missing.policy == "fill" else 0)
        if over.any():
            self._blocked = True
        elif there.all():
            self._blocked = False
        self._latest = np.where(there, found, self._latest)
        if self._blocked:
            why = self._gone(over) if self.rows_seen else ""
            return Ready(None, True, why, inserted)
        fresh = bool(jump) or self.rows_seen == 0
        self._begun = True
        return Ready(self._latest, fresh, jump if self.rows_seen else "", inserted)

    def _refuse_missing(self, there: Bool[np.ndarray, " f"]) -> None:
        if self._asked.missing.policy == "error" and self._begun and not there.all():
            name = self._features.names[int(np.argmin(there))]
            raise ValueError(f"no value of {name}, and data.missing.policy=error")

    def _gone(self, over: Bool[np.ndarray, " f"]) -> str:
        names = ", ".join(name for name, gone in zip(self._features.names, over, strict=True) if gone)
        missing = self._asked.missing
        rule = f"for more than data.missing.max_fill={missing.max_fill} rows" if missing.policy == "fill" else "in this row"
        return f"no value of {names} {rule}"
