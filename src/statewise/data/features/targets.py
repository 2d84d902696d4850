"""What may be predicted: a column as it is, or what one of its functions will be over the rows that follow.

    feature  log_return(close, 5)  at row r    log(close[r] / close[r - 5])        the past five rows
    target   log_return(close, 5)  at row r    log(close[r + 4] / close[r - 1])    the next five rows after row r - 1

A target row r is predicted from the rows up to r - 1, so both are the same function: the target is the feature of n - 1
rows later. Over one row they are the same column; over more, the target is a column of its own, `next log_return(close, 5)`,
which is no input, and windows must end n - 1 rows earlier (Source.reach).
"""

from collections.abc import Sequence
from dataclasses import replace

from statewise.data.features.derive import computed
from statewise.data.features.formula import Formula, base_columns, formulas
from statewise.data.features.functions import FUNCTIONS
from statewise.data.source import Source
from statewise.data.tables.table import Table

FEATURES, TARGETS = "data.features", "data.targets"
_NAMES = [name for name, function in FUNCTIONS.items() if function.target]
_MAY_BE = f"a target is a column, or {', '.join(_NAMES[:-1])} or {_NAMES[-1]} of one"


def select(
    table: Table, features: Sequence[str] | None, targets: Sequence[str] | None, *, timezone: str | None = None
) -> Source:
    """Features and targets of a table, by the names of its columns and by expressions.

    Args:
        features: None means all columns.
        targets: None means the features.
        timezone: of the clock that `hour()` and `weekday()` read (derive.py).

    Raises:
        ValueError: a name that means nothing, a target that is none, or levels and changes among the targets.
    """
    inputs = formulas(table.columns if features is None else features, table.columns, FEATURES)
    if targets is None:
        outputs = [_target(formula, f"{TARGETS} is not set, so that the features are predicted, too") for formula in inputs]
    else:
        outputs = [_target(formula, TARGETS) for formula in formulas(targets, table.columns, TARGETS)]
    changes = [formula for formula in outputs if _is_change(formula)]
    if 0 < len(changes) < len(outputs):
        level = next(formula for formula in outputs if formula not in changes)
        raise ValueError(
            f"{TARGETS} mixes changes ({changes[0].name}) and levels ({level.name}), whose simplest forecasts differ (zero, "
            "the last value): predict them in two runs"
        )
    wanted = [*inputs, *outputs]
    if any(formula.steps for formula in wanted):
        table = computed(table, wanted, timezone=timezone, key=f"{FEATURES} or {TARGETS}")
    return Source(
        table,
        features=tuple(formula.name for formula in inputs),
        targets=tuple(formula.name for formula in outputs),
        targets_are_levels=not changes,
        reach=max((formula.ahead for formula in outputs), default=0),
        reaches=tuple(formula.ahead for formula in outputs),
    )


def needed_columns(features: Sequence[str], targets: Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """The columns of a file that features and targets are made of, each once; `columns` are all that it has."""
    needed = [*base_columns(features, columns, FEATURES), *base_columns(targets or (), columns, TARGETS)]
    return list(dict.fromkeys(needed))


def _target(formula: Formula, key: str) -> Formula:
    if not formula.steps:
        return formula
    last = formula.steps[-1]
    if not last.function.target:
        raise ValueError(f"{key}: {formula.name} cannot be predicted: {_MAY_BE}; name others in {TARGETS}")
    return replace(formula, ahead=last.rows - 1)


def _is_change(formula: Formula) -> bool:
    return bool(formula.steps) and formula.steps[-1].function.change
