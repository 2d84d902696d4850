"""Training and validation losses that look at different time steps."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Supervision, SupervisionPair


def check(facts: Facts, supervision: SupervisionPair) -> Iterator[Finding]:
    """Windows of the same shape, but the loss's gradient reaches another number of positions of the prediction."""
    train, validation = supervision.train, supervision.validation
    # Longer validation windows are supervised at more steps by rights.
    if train.inputs != validation.inputs or train.positions == validation.positions:
        return
    if not train.positions or not validation.positions:
        return
    yield Finding(
        KIND.id,
        Severity.WARNING,
        facts.step,
        (),
        f"the training loss is computed on {_described(train)}, the validation loss ({validation.loss}) on "
        f"{_described(validation)}, from windows of the same shape: the two cannot be compared; select the same time steps in "
        'both. Intended: return {"intended": ("supervision-mismatch",)} from the module\'s health_contract()',
        {
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


KIND = Kind("supervision-mismatch", (), Cause.BEHAVIOUR)
RULES = (Rule(KIND, SupervisionPair, check),)
