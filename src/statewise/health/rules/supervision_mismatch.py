"""Training and validation losses that look at different time steps."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.probes.naming import intend
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Supervision, SupervisionPair

KIND = Kind(
    "supervision-mismatch",
    (),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning="The gradients of the training loss and of the validation loss reach different numbers of positions of the "
    "prediction, for windows of one shape: they are losses of different things. What a mask leaves out is not meant.",
    remedy="Select the same time steps in both steps.",
    intended='`{"intended": ("supervision-mismatch",)}` in the health_contract() of the module.',
)


def check(facts: Facts, supervision: SupervisionPair) -> Iterator[Finding]:
    """Windows of the same shape, but the loss's gradient reaches another number of positions of the prediction."""
    train, validation = supervision.train, supervision.validation
    # Longer validation windows are supervised at more steps by rights.
    if train.inputs != validation.inputs or train.positions == validation.positions:
        return
    if not train.positions or not validation.positions:
        return
    # An auxiliary head, or a critic, is no counterpart of a prediction.
    if train.module != validation.module:
        return
    yield KIND.finding(
        Severity.WARNING,
        facts,
        (),
        what=f"the training loss is computed on {_described(train)}, the validation loss ({validation.loss}) on "
        f"{_described(validation)}, from windows of the same shape",
        why="the two cannot be compared",
        remedy="select the same time steps in both",
        intended=intend(KIND.id),
        evidence={
            "train_positions": train.positions,
            "validation_positions": validation.positions,
            "train_prediction": list(train.prediction),
            "validation_prediction": list(validation.prediction),
        },
    )


def _described(side: Supervision) -> str:
    if side.times is not None and side.length is not None:
        steps = f"{side.times} of {side.length} time steps"
    else:
        steps = f"{side.positions} value{'s' if side.positions > 1 else ''} per window"
    return f"{steps} (prediction {list(side.prediction)})"


RULES = (Rule(KIND, SupervisionPair, check),)
