"""The table: for each fault and family, whether it applies, which finding is right, where, and how late it may come.

Fixed from the catalogue before any rule is tuned. A fault that begins before the first update and can be known from the
structure must be found at step 0, one that shows in values within 5 optimizer steps of its onset, an unused part within 20
batches. Three rows allow more, because the catalogue itself asks the rule to wait: skipped steps (ten in a row, as a loss
scale may need the first ones), and parameters pinned at a bound (twenty steps).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from torch import nn

from health_cases.families import FAMILIES, Task
from health_cases.faults import FAULTS
from health_cases.faults.fault import first_parameter

# Patterns (fnmatch) of full names of parameters and modules.
Names = set[str]
LATE_ONSET = 10
# Begin at step 10 as well: one of the graph, one of registration, four of the loop, two of values and behaviour.
LATE = ("G1", "R5", "O4", "O7", "O12", "O13", "N4", "B2")


@dataclass(frozen=True)
class Row:
    """What is expected of health where a fault applies."""

    ids: tuple[str, ...]
    # What may be named, and something of it must be; None where a fault concerns the whole run and nothing in particular.
    affected: Callable[[Task], Names] | None = None
    # Optimizer steps after the onset.
    step: int = 0
    severity: str = "warning"
    # Wrong by its structure, whatever the weights do: the twin's weights may be equal.
    structural: bool = True
    # Needs what the user or the layer declares.
    contract: bool = False


def block(place: str) -> Callable[[Task], Names]:
    """The block at this place of the model, and all in it."""

    def names(task: Task) -> Names:
        path = f"net.{getattr(task.places, place)}"
        return {path, f"{path}.*"}

    return names


def aux(task: Task) -> Names:
    return {"net.aux", "net.aux.*", "aux", "aux.*"}


def layers(task: Task) -> Names:
    return {"net.forecaster.ssm_?", "net.forecaster.ssm_?.*"}


def any_name(task: Task) -> Names:
    return {"*"}


def first_of(place: str) -> Callable[[Task], Names]:
    """The first parameter of the block."""

    def names(task: Task) -> Names:
        owner, name = first_parameter(getattr(task, place))
        parameter = getattr(owner, name)
        return {path for path, each in task.named_parameters() if each is parameter}

    return names


def in_core(*locals_: str) -> Callable[[Task], Names]:
    """Attributes of the core block, and all that they hold."""
    return lambda task: {f"net.{task.places.core}.{name}{end}" for name in locals_ for end in ("", ".*", "[[]*")}


def upstream(task: Task) -> Names:
    """All before the core, and the core itself as the place of a cut. Parameters are registered in the data's order."""
    inner = {id(parameter) for parameter in task.core.parameters()}
    before = []
    for name, parameter in task.named_parameters():
        if id(parameter) in inner:
            break
        before.append(name)
    return {*before, *_only(task, before), f"net.{task.places.core}"}


def into_core(task: Task) -> Names:
    """All before the core, and the core with all in it."""
    return upstream(task) | block("core")(task)


def but_weights(task: Task) -> Names:
    return {name for name, _ in task.named_parameters() if not name.endswith("weight")}


def _only(task: nn.Module, names: Collection[str]) -> Names:
    """The modules all of whose parameters are among these names."""
    found = set()
    for path, module in task.named_modules():
        below = {f"{path}.{name}" for name, _ in module.named_parameters()}
        if path and below and below <= set(names):
            found.add(path)
    return found


ROWS: dict[str, Row] = {
    "G1": Row(("graph-cut",), upstream),
    "G2": Row(("graph-cut",), into_core),
    "G3": Row(("loss-detached",)),
    "G4": Row(("graph-cut",), into_core),
    # An epoch has 16 batches; 20 is the catalogue's limit.
    "G5": Row(("unused",), aux, step=20),
    "G6": Row(("autograd-off",)),
    "G7": Row(("constant-loss",), step=5, structural=False),
    "R1": Row(("hidden-module",), in_core("layers", "extra")),
    "R2": Row(("plain-tensor",), in_core("A", "A_log", "delta")),
    "R3": Row(("plain-tensor", "hidden-module"), in_core("s")),
    "R4": Row(("plain-tensor",), in_core("delta", "C", "dt", "B")),
    "R5": Row(("frozen-by-mistake",), first_of("core")),
    "R6": Row(("not-in-optimizer", "nothing-trainable"), any_name),
    "R7": Row(("frozen-but-trains",), block("inp"), step=1, contract=True),
    "O1": Row(("not-in-optimizer",), block("core")),
    "O2": Row(("stale-optimizer",), block("head")),
    "O3": Row(("stale-optimizer",), any_name),
    "O4": Row(("zero-learning-rate",), block("core")),
    "O5": Row(("zero-learning-rate",), step=5, structural=False),
    "O6": Row(("weight-decay-only",), into_core, step=5, structural=False),
    "O7": Row(("gradients-not-cleared",), step=5, structural=False),
    # A batch without a loss is allowed (a step that returns None skips it): one alone proves nothing.
    "O8": Row(("gradients-not-applied",), step=5, structural=False),
    "O9": Row(("no-optimizer-step",), step=5, structural=False),
    "O10": Row(("gradients-cleared",), step=5, structural=False),
    "O11": Row(("clipped-to-nothing",), step=5, structural=False),
    "O12": Row(("steps-skipped",), step=10, structural=False),
    "O13": Row(("written-back", "step-without-effect"), first_of("core"), step=5, structural=False),
    "O14": Row(("written-back",), first_of("core"), step=5, structural=False),
    "O15": Row(("parameter-recreated",), first_of("core"), step=5, structural=False),
    "N1": Row(("update-lost-to-rounding",), any_name, step=5, structural=False),
    "N2": Row(("dtype-round-trip",)),
    "N3": Row(("mixed-dtypes", "dtype-round-trip"), block("core")),
    "N4": Row(("non-finite-gradient",), into_core, step=5, structural=False),
    "N5": Row(("dead-state",), block("core")),
    "B1": Row(("dead-activation",), into_core, step=5, structural=False),
    "B2": Row(("evaluation-mode",), structural=False),
    "B3": Row(("random-in-evaluation",)),
    "B4": Row(("double-softmax",)),
    "B5": Row(("broadcast-loss",)),
    "B6": Row(("ignored-input",), step=5, structural=False),
    "B7": Row(("repeated-batch",), step=5, structural=False),
    "B8": Row(("mixed-rows",)),
    "B9": Row(("not-causal",), block("core"), contract=True),
    "B10": Row(("fixed-batch-size",)),
    "B11": Row(("leaking-state",)),
    # One prediction for all rows is also a prediction that depends on other rows.
    "B12": Row(("collapsed-batch", "mixed-rows")),
    "B13": Row(("lost-initialisation",), layers),
    "B14": Row(("ignored-hint",), first_of("core")),
}

# Where the second way to make a mistake differs from the first.
SECOND: dict[str, Row] = {
    # Cut right behind the first block.
    "G1": replace(ROWS["G1"], affected=block("inp")),
    "R5": replace(ROWS["R5"], affected=first_of("head")),
    "O1": replace(ROWS["O1"], affected=but_weights),
    "O4": replace(ROWS["O4"], affected=block("head")),
    "O6": replace(ROWS["O6"], affected=first_of("core")),
    # Here the user's own loop calls the step, with no gradient at all.
    "O8": replace(ROWS["O8"], step=0),
    # An optimizer_step that returns early cannot be told from a loop without a step.
    "O12": replace(ROWS["O12"], ids=("steps-skipped", "no-optimizer-step")),
    "O13": Row(("pinned-at-bound", "written-back"), first_of("core"), step=23, structural=False),
    "O14": replace(ROWS["O14"], affected=first_of("head")),
    "O15": replace(ROWS["O15"], affected=first_of("head")),
    "N2": Row(("logged-loss-rounded", "dtype-round-trip")),
    "N3": Row(("mixed-dtypes",), in_core("gain")),
    "B6": replace(ROWS["B6"], ids=("ignored-target",)),
    "B12": Row(("summed-loss",), structural=False),
}

# What is equally right in one family only.
ALSO: dict[tuple[str, str], tuple[str, ...]] = {
    # (1, m) against (b, m) is broadcast as well.
    ("B12", "mlp"): ("broadcast-loss",),
    ("B12", "ssm"): ("broadcast-loss",),
    # Our layers declare that their parameters train: that they are frozen is the other half of this fault.
    ("R6", "ssm"): ("frozen-by-mistake",),
}

_NO_STATE = "no state-space layer, so no law of one to break"
_NO_TIME = "no axis of time"
_NOT_DECLARED = "attends to both sides on purpose; nothing declares it causal"
_REGRESSION = "regression: no softmax anywhere in the model or the loss"
_CLASSES = "cross-entropy refuses shapes that do not match"

NOT_APPLICABLE: dict[tuple[str, str], str] = {
    ("N5", "mlp"): _NO_STATE,
    ("N5", "conv"): _NO_STATE,
    ("N5", "attention"): _NO_STATE,
    ("B2", "ssm"): "no dropout and no batch norm: evaluation mode changes nothing",
    ("B4", "mlp"): _REGRESSION,
    ("B4", "ssm"): _REGRESSION,
    ("B5", "conv"): _CLASSES,
    ("B5", "attention"): _CLASSES,
    ("B9", "mlp"): _NO_TIME,
    ("B9", "conv"): _NO_TIME,
    ("B9", "attention"): _NOT_DECLARED,
    ("B13", "mlp"): _NO_STATE,
    ("B13", "conv"): _NO_STATE,
    ("B13", "attention"): _NO_STATE,
}


def expected(fault: str, family: str, variant: int) -> Row | None:
    """The row of one cell; None where the fault does not apply (see `NOT_APPLICABLE`)."""
    if (fault, family) in NOT_APPLICABLE:
        return None
    if variant == 1 and fault in SECOND:
        return SECOND[fault]
    row = ROWS[fault]
    return replace(row, ids=row.ids + ALSO.get((fault, family), ()))


def cells() -> list[tuple[str, str]]:
    """All pairs of fault and family, in the order of the catalogue."""
    return [(fault, family) for fault in FAULTS for family in FAMILIES]
