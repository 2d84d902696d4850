"""The loss that is differentiated has lost its way to every parameter."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward


def check(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Backward ran over a graph without a single parameter, registered or hidden."""
    if first.backwards == 0 or not first.complete or not first.held:
        return
    if first.reached or first.with_gradient or any(leaf.hidden or leaf.is_parameter for leaf in first.aliens):
        return
    # Where the modules show the place of a cut, graph-cut names it.
    if any(call.in_reached or call.out_reached for call in first.calls):
        return
    yield Finding(
        KIND.id,
        Severity.ERROR,
        facts.step,
        tuple(sorted(first.held)),
        "backward ran, but the loss's graph holds no parameter: the loss was rebuilt as a new tensor (detach, item, "
        "torch.tensor) after it was computed, or computed without autograd; return the original tensor. "
        "There is no way to declare this intended: health.policy=warn lets it run",
        {"leaves": [list(leaf.shape) for leaf in first.aliens]},
    )


KIND = Kind("loss-detached", ("G3",), Cause.LOOP)
RULES = (Rule(KIND, FirstBackward, check),)
