"""The state of a state-space layer that never changes, or forgets everything, to the last digit."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.observers.laws import StateMemory
from statewise.health.observers.saturation import SaturatedExponential
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "dead-state",
    ("N5",),
    Cause.NUMERICS,
    (Severity.WARNING,),
    meaning=(
        "What a step leaves of the state rounds to all of it (exp(dt A) = 1: it never changes) or to nothing (exp(dt A) = 0: "
        "it forgets everything) for at least 99 % of the states. Our layers tell, before the first step and now and then "
        "later. In other modules the evidence is an exponential in the loss's graph whose results are all 1, or all 0, to "
        "rounding, together with gradients beside it that have vanished in three updates running."
    ),
    remedy="begin with steps dt whose products with A lie well within 1e-4 and 10",
    intended='`{"intended": ("dead-state",)}` from `health_contract()`',
    example="self.log_dt = nn.Parameter(torch.full((d,), -20.0))  # exp(-20 A) is 1 in float32",
)

_SHARE = 0.99
_REMEDY = "choose a step and rates whose product dt A lies well within 1e-4 and 10 (dt from 0.001 to 0.1 is usual)"
_INTENDED = 'return {"intended": ("dead-state",)} from health_contract() of the module'


def check_layers(facts: Facts, memory: StateMemory) -> Iterator[Finding]:
    """What the layers themselves say."""
    for layer in memory.layers:
        # Each state is one or the other: both kinds together are dead as well.
        if layer.frozen_share + layer.forgotten_share < _SHARE:
            continue
        still = layer.frozen_share >= layer.forgotten_share
        share = layer.frozen_share + layer.forgotten_share
        yield KIND.finding(
            Severity.WARNING,
            facts,
            layer.parameters,
            what=f"the state of `{layer.path}` {'never changes' if still else 'forgets everything within a step'}: "
            f"{share:.0%} of it {'keeps 1' if still else 'keeps 0'} of its value to rounding (from {layer.least:.3g} to "
            f"{layer.largest:.3g})",
            why="the layer has no memory to train, and hardly a gradient for its rates and steps",
            remedy=_REMEDY,
            intended=_INTENDED,
            evidence={"module": layer.path, "least": layer.least, "largest": layer.largest, "share": share},
        )


def check_graph(facts: Facts, saturated: SaturatedExponential) -> Iterator[Finding]:
    """What the graph of a loss and the gradients show."""
    value = "1" if saturated.one else "0"
    yield KIND.finding(
        Severity.WARNING,
        facts,
        saturated.vanished,
        what=f"{listed(saturated.vanished)}: an exponential beside {'them' if len(saturated.vanished) > 1 else 'it'} is "
        f"{value} to rounding in {saturated.share:.0%} of its elements, and the gradient is below rounding beside the largest "
        f"({saturated.largest:.2g}) in {saturated.steps} updates running",
        why="a function that has rounded to a constant cannot be trained",
        remedy=_REMEDY,
        intended=_INTENDED,
        evidence={"value": value, "share": saturated.share, "steps": saturated.steps},
    )


RULES = (Rule(KIND, StateMemory, check_layers), Rule(KIND, SaturatedExponential, check_graph))
