"""The leak audit: values that must not matter are changed, and what must not notice is compared byte for byte.

    train | val | test           train must not notice      what is compared
            ### | ####           rows outside training      training batches, scaler, features and targets of training rows
                | ####           rows outside both          validation batches
    . . . t # # # # #            rows after the moment t    inputs up to t, of all series, and which rows are usable
    x x x t # # #                inputs after the step t    outputs of a model up to t

How values are changed: changed.py. What a change leaves alone is not audited. Where rows train after an evaluation block
(data.folds.mode=surrounding) all is compared but for rounding: a running mean over later rows keeps that of earlier ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from statewise.data.datamodule import WindowsDataModule
from statewise.data.datasets import File
from statewise.data.doctor.changed import CHANGES, changed, held
from statewise.data.preparation.prepared import Prepared
from statewise.data.segments.cut import cut
from statewise.data.segments.regular import on_grid
from statewise.data.tables.table import Table
from statewise.data.windows.splits import rows_in

Make = Callable[[Table], WindowsDataModule]
Same = Callable[[np.ndarray, np.ndarray], bool]


@dataclass(frozen=True)
class Finding:
    """What one question of the audit found.

    Attributes:
        name: of the question: `training`, `validation`, `inputs` or `model`.
        passed: whether nothing noticed.
        message: one sentence: what was changed, and what differed first.
    """

    name: str
    passed: bool
    message: str


class FileOf(File):
    """The data set of conf/data/file.yaml, over a table that has been read already (and may have been changed since)."""

    def __init__(self, table: Table, **keys: Any) -> None:
        super().__init__(**{**keys, "cache": "off"})
        self._table = table

    def table(self) -> Table:
        return self._table


def audit(table: Table, make: Make, *, seed: int = 0, moments: int = 4) -> list[Finding]:
    """Changes later values of a table, and asks whether what comes of the earlier ones stays the same.

    Args:
        table: before anything is derived from it.
        make: the data module over such a table, not set up: `lambda table: FileOf(table, path=..., window=...)`.
        moments: for how many moments t rows after it are changed.

    Raises:
        ValueError: the data module refuses the table.
    """
    table = held(table)
    return [
        _after_the_split(table, make, ("train",), seed),
        _after_the_split(table, make, ("train", "val"), seed),
        _after_a_moment(table, make, seed, moments),
    ]


def model_audit(
    model: Callable[[Tensor], Tensor], inputs: Float[Tensor, "b t f"], *, seed: int = 0, moments: int = 4
) -> Finding:
    """Whether outputs `[b, t, ...]` up to a time step stay the same when later inputs change, but for rounding.

    A module is asked in evaluation mode, without gradients, and left as it was.
    """
    steps = inputs.shape[1]
    training = isinstance(model, torch.nn.Module) and model.training
    if training:
        model.eval()  # type: ignore[attr-defined]  # a module, as its flag has just shown
    random = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            expected = model(inputs)
            for step in _spread(steps - 1, moments):
                other = inputs.clone()
                noise = torch.randn(other[:, step + 1 :].shape, generator=random, dtype=torch.float64)
                other[:, step + 1 :] = 3.0 * noise.to(inputs)
                difference = (model(other)[:, : step + 1] - expected[:, : step + 1]).abs()
                # A scan in parallel may add in another order: rounding is no leak.
                allowed = 256 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
                # Not `>`: an output that is not a number any more has noticed, too.
                if noticed := (~(difference <= allowed)).nonzero().tolist():
                    first = min(place[1] for place in noticed)
                    return Finding(
                        "model",
                        False,
                        f"inputs after time step {step} were changed: the output at step {first} differs by up to "
                        f"{float(difference[:, first].max()):.3g}; the model sees the future",
                    )
    finally:
        if training:
            model.train()  # type: ignore[attr-defined]
    return Finding("model", True, f"outputs do not depend on later inputs ({steps:,} time steps)")


def _after_the_split(table: Table, make: Make, protected: Sequence[str], seed: int) -> Finding:
    name = "training" if protected[-1] == "train" else "validation"
    rows = "rows outside the training blocks" if len(protected) == 1 else "rows outside the training and validation blocks"
    before = make(table)
    before.setup()
    changed_rows = _source_rows(before.prepared, table, _outside(before.prepared, protected))
    if not changed_rows.any():
        return Finding(name, True, f"there are no {rows}")
    for change in CHANGES:
        after = make(changed(table, changed_rows, change, seed))
        after.setup()
        if difference := _first_difference(before, after, name):
            return Finding(name, False, f"{rows} were changed ({change}): {difference}")
    around = before.prepared.part("train").blocks.shape[1] > 1
    same = f"the {name} data are the same but for rounding" if around else f"no byte of the {name} data differs"
    return Finding(name, True, f"{int(changed_rows.sum()):,} {rows} were changed: {same}")


def _outside(prepared: Prepared, protected: Sequence[str]) -> Bool[np.ndarray, " r"]:
    """The rows of the other parts, and all behind the last one that is protected.

    Rows of an embargo stay: a feature may look back on them, that is what they are for.
    """
    count, stop = len(prepared.rows), prepared.rows.offsets[:-1]
    inside: np.ndarray = np.zeros(count, dtype=bool)
    outside: np.ndarray = np.zeros(count, dtype=bool)
    for name, part in prepared.parts.items():
        if name in protected:
            inside |= rows_in(part.blocks, count)
            stop = np.maximum(stop, part.blocks[..., 1].max(axis=1))
        else:
            outside |= rows_in(part.blocks, count)
    return np.asarray((outside | (np.arange(count) >= stop[prepared.rows.codes])) & ~inside)


def _source_rows(prepared: Prepared, table: Table, flags: Bool[np.ndarray, " r"]) -> Bool[np.ndarray, " s"]:
    """Flags of prepared rows as flags of the table's rows, which know no inserted row."""
    inserted = prepared.source.table.inserted
    flags = flags if inserted is None or table.inserted is not None else flags[~inserted]
    if len(flags) != len(table.rows):
        raise ValueError(f"the data set made {len(flags):,} rows of {len(table.rows):,}: it cannot be audited row by row")
    return flags


def _first_difference(before: WindowsDataModule, after: WindowsDataModule, name: str) -> str:
    """The first thing of the training or validation data that is not the same, in words; empty where all is."""
    one, other = before.prepared, after.prepared
    same = _same_bytes if one.part("train").blocks.shape[1] == 1 else _same_but_for_rounding
    if name == "training":
        if difference := _of_scalers(one, other, same) or _of_rows(one, other, same):
            return difference
        return _of_batches(before.train_dataloader(), after.train_dataloader(), before, "training", same)
    return _of_batches(before.val_dataloader(), after.val_dataloader(), before, "validation", same)


def _same_bytes(mine: np.ndarray, theirs: np.ndarray) -> bool:
    return mine.tobytes() == theirs.tobytes()


def _same_but_for_rounding(mine: np.ndarray, theirs: np.ndarray) -> bool:
    largest = float(np.abs(mine[np.isfinite(mine)]).max(initial=0.0))
    return np.allclose(mine, theirs, rtol=0.0, atol=1e-6 * largest, equal_nan=True)


def _of_scalers(one: Prepared, other: Prepared, same: Same) -> str:
    for what in ("mean", "scale"):
        mine, theirs = getattr(one.scaler, what), getattr(other.scaler, what)
        if mine.shape != theirs.shape:
            return f"the scaler knows other series: {mine.shape[0]:,} became {theirs.shape[0]:,}"
        if not same(mine, theirs):
            group, column = np.argwhere(mine != theirs)[0].tolist()
            column_name = one.scaler.names[column]
            return f"the scaler's {what} of {column_name} was {mine[group, column]:.6g} and is {theirs[group, column]:.6g}"
    return ""


def _of_rows(one: Prepared, other: Prepared, same: Same) -> str:
    """Features and targets of training rows, in original units; of targets those rows whose reach trains as well."""
    blocks, source = one.part("train").blocks, one.source
    for names, short, what in ((source.features, 0, "feature"), (source.targets, source.reach, "target")):
        rows = np.flatnonzero(rows_in(blocks, len(one.rows), short=short))
        for name in names:
            mine, theirs = (prepared.source.table.read(name)[rows] for prepared in (one, other))
            if not same(mine, theirs):
                row = int(rows[_place(mine, theirs)])
                return f"the {what} {name} differs at the training row {one.rows.at(row)}{one.rows.of_series(row)}"
    return ""


def _of_batches(mine: Any, theirs: Any, module: WindowsDataModule, what: str, same: Same) -> str:
    if len(mine.dataset) != len(theirs.dataset):
        return f"{len(mine.dataset):,} {what} windows became {len(theirs.dataset):,}"
    columns = {"inputs": module.feature_names, "targets": module.target_names, "observed": module.target_names}
    for number, (batch, other) in enumerate(zip(mine, theirs, strict=True)):
        for part, values, others in zip(batch._fields, batch, other, strict=True):
            a, b = values.contiguous().numpy(), others.contiguous().numpy()
            if not same(a, b):
                place = np.unravel_index(_place(a.ravel(), b.ravel()), a.shape)
                of = f" of {columns[part][int(place[-1])]}" if part in columns else ""
                return f"{part}{of} differ in {what} batch {number}, window {int(place[0])}"
    return ""


def _after_a_moment(table: Table, make: Make, seed: int, moments: int) -> Finding:
    clock = table.rows.clock
    axis = np.unique(clock)
    expected = list(_inputs(make(table)))
    for number, place in enumerate(_spread(len(axis) - 1, moments)):
        moment = axis[place]
        change = CHANGES[number % len(CHANGES)]
        module = make(changed(table, clock > moment, change, seed + number))
        for (name, values, rows), (_, others, _) in zip(expected, _inputs(module), strict=True):
            until = np.flatnonzero(rows.clock <= moment)
            mine, theirs = values[until], others[until]
            if mine.tobytes() != theirs.tobytes():
                row, last = int(until[_place(mine, theirs)]), int(until[np.argmax(rows.clock[until])])
                return Finding(
                    "inputs",
                    False,
                    f"rows after {rows.at(last)} were changed ({change}): {name} differs at {rows.at(row)}"
                    f"{rows.of_series(row)}",
                )
    return Finding("inputs", True, f"inputs do not depend on later rows ({moments} moments)")


def _inputs(module: WindowsDataModule) -> Iterator[tuple[str, np.ndarray, Any]]:
    """What a model may see of each row, in original units: which rows are usable, then each feature as it is filled."""
    source = module.source()
    table, _ = on_grid(source.table, module.gap)
    segments = cut(table, module.gap, module.missing, source.features, max_gap=module.max_gap)
    yield "which rows are usable", segments.usable, table.rows
    for column, name in enumerate(source.features):
        yield name, segments.filled(column, table.read(name)), table.rows


def _spread(count: int, moments: int) -> list[int]:
    """So many places among `count`, evenly; each once."""
    return sorted({int(place) for place in np.linspace(0, count - 1, moments + 2)[1:-1]}) if count > 0 else []


def _place(mine: np.ndarray, theirs: np.ndarray) -> int:
    """The first place whose bytes differ (NaN equals itself)."""
    both_missing = (mine != mine) & (theirs != theirs)
    return int(np.argmax((mine != theirs) & ~both_missing))
