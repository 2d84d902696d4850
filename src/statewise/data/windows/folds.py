"""Walk-forward folds: the same test of a model at several moments, each with a training block and a val block of its own.

Every fold has a test block of one size; the test blocks of all folds stand one after another at the end of the time axis.
Right before it lies its val block, and what trains is (t train, v val, T test, e embargo, . in no part):

    expanding             rolling               surrounding
    fold 0  ttttvTTT......    ttttvTTT......        ttttvTTTettttt      all that lies before, a stretch of constant
    fold 1  tttttttvTTT...    ...ttttvTTT...        tttttttvTTTett      length right before, or all before and, after
    fold 2  ttttttttttvTTT    ......ttttvTTT        ttttttttttvTTT      the embargo, all behind

A rolling fold trains on as many rows as fold 0. What trains never comes after the test of its fold, except under
`surrounding`: there the rows after the test block know its outcome, the more so the nearer they lie. The embargo keeps the
nearest of them out, and with them every window that would see a row of the val block, the test block or the embargo.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Shaped

from statewise.choices import at_least, one_of
from statewise.data.segments.gaps import nanoseconds
from statewise.data.windows.splits import Blocks

MODES = ("expanding", "rolling", "surrounding")


@dataclass(frozen=True)
class Folds:
    """Several test blocks, one after another.

    Attributes:
        n: how many; None has none, and data.split cuts.
        mode: what trains: all rows before (`expanding`), as many rows right before as in fold 0 (`rolling`), or all rows
            before and after (`surrounding`).
        test_size: of one test block: a share of the time axis such as 0.1, a number of rows of it, or a duration such as
            `30d`; None cuts the axis into n + 2 equal parts: fold 0's training, its val block and the n test blocks.
        val_size: of a val block, likewise; None is that of a test block.
    """

    n: int | None = None
    mode: str = "expanding"
    test_size: Any = None
    val_size: Any = None

    def __post_init__(self) -> None:
        one_of("data.folds.mode", self.mode, MODES)
        for key, size in (("data.folds.test_size", self.test_size), ("data.folds.val_size", self.val_size)):
            if size is not None:
                _check_size(key, size)
                if self.n is None:
                    raise ValueError(f"{key}={size} needs data.folds.n, the number of folds")
        if self.n is not None:
            at_least(1, data__folds__n=self.n)


def check_fold(folds: Folds, fold: int, *, default_split: bool) -> None:
    """Whether the keys go together.

    Raises:
        ValueError: there is no such fold, or folds and a data.split are both asked for.
    """
    if folds.n is None:
        if fold != 0:
            raise ValueError(f"data.fold={fold} needs data.folds.n, the number of folds")
        return
    if not 0 <= fold < folds.n:
        raise ValueError(f"data.fold must be from 0 to {folds.n - 1}, because data.folds.n={folds.n}, got {fold}")
    if not default_split:
        raise ValueError("data.split and data.folds.n exclude each other: leave data.split out, or set data.folds.n=null")


def check_embargo(embargo: int | str | None) -> None:
    """Raises ValueError for what is no number of rows and no duration."""
    if isinstance(embargo, bool) or (isinstance(embargo, int) and embargo < 0):
        raise ValueError(f"data.embargo must be a number of rows, a duration such as 2h, or null, got {embargo}")
    if isinstance(embargo, str):
        nanoseconds(embargo, "data.embargo")


def fold_blocks(folds: Folds, fold: int, axis: Shaped[np.ndarray, " n"], embargo: int | str | None = None) -> Blocks:
    """The blocks of a fold, as positions on the axis that all series share.

    Args:
        axis: the sorted distinct times of the table, or row numbers where there is no time column.
        embargo: rows of the axis, or a duration, after the test block that train nothing.

    Raises:
        ValueError: the sizes do not fit into the axis, or are durations where there is no time column.
    """
    assert folds.n is not None
    tests = _test_borders(folds, axis)
    size = folds.test_size if folds.val_size is None else folds.val_size
    vals = [_start_before(size, "data.folds.val_size", tests, number, axis) for number in range(folds.n)]
    short = [number for number in range(folds.n) if tests[number + 1] <= tests[number] or tests[number] <= vals[number]]
    if vals[0] < 1 or short:
        of_size = "of equal size" if folds.test_size is None else f"of {folds.test_size}"
        what = f"the blocks of fold {short[0]} would be empty" if short and vals[0] >= 1 else "no row is left to train on"
        raise ValueError(
            f"data.folds: {folds.n} test blocks {of_size}, and a val block before each, do not fit into the {len(axis):,} rows "
            f"of the time axis: {what}; choose fewer or other folds, another data.folds.test_size or data.folds.val_size"
        )
    start, stop, val = tests[fold], tests[fold + 1], vals[fold]
    train = [(max(0, val - vals[0]) if folds.mode == "rolling" else 0, val)]
    if folds.mode == "surrounding" and (again := after_embargo(embargo, stop, axis)) < len(axis):
        train.append((again, len(axis)))
    return {"train": tuple(train), "val": ((val, start),), "test": ((start, stop),)}


def after_embargo(embargo: int | str | None, stop: int, axis: Shaped[np.ndarray, " n"]) -> int:
    """The first position that trains again after an evaluation block that ends before `stop`.

    A duration counts from the first row after the block.
    """
    if embargo is None or stop >= len(axis):
        return stop
    if isinstance(embargo, int):
        return min(stop + embargo, len(axis))
    return int(np.searchsorted(axis, axis[stop] + _duration(embargo, "data.embargo", axis)))


def _test_borders(folds: Folds, axis: np.ndarray) -> list[int]:
    """Where each test block begins, and where the last one ends: at the end of the axis."""
    n, last = folds.n or 0, len(axis)
    if isinstance(folds.test_size, str):
        # Open at the left, so that with one row an hour a day has 24 of them, and the last row is in the last block.
        length = _duration(folds.test_size, "data.folds.test_size", axis)
        edges = [axis[-1] - (n - number) * length for number in range(n)] if last else [0] * n
        return [*(int(np.searchsorted(axis, edge, side="right")) for edge in edges), last]
    size = last // (n + 2) if folds.test_size is None else _rows(folds.test_size, last)
    return [last - (n - number) * size for number in range(n)] + [last]


def _start_before(size: Any, key: str, tests: list[int], number: int, axis: np.ndarray) -> int:
    """Where the val block of a fold begins, which ends where its test block begins."""
    stop = tests[number]
    if size is None:
        return stop - (tests[1] - tests[0])
    if isinstance(size, str):
        return int(np.searchsorted(axis, axis[stop - 1] - _duration(size, key, axis), side="right")) if stop > 0 else -1
    return stop - _rows(size, len(axis))


def _rows(size: int | float, count: int) -> int:
    return int(size) if size >= 1 else math.floor(Fraction(str(size)) * count)


def _duration(text: str, key: str, axis: np.ndarray) -> np.timedelta64:
    if axis.dtype.kind != "M":
        raise ValueError(f"{key}={text} is a duration, but there is no time column: name it in data.time, or give rows")
    return np.timedelta64(nanoseconds(text, key), "ns")


def _check_size(key: str, size: Any) -> None:
    if isinstance(size, str):
        nanoseconds(size, key)
    elif isinstance(size, bool) or not isinstance(size, int | float) or not (0 < size < 1 or (size >= 1 and size == int(size))):
        raise ValueError(f"{key} must be a share such as 0.1, a number of rows, or a duration such as 30d, got {size}")
