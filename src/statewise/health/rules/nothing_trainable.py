"""Nothing can train at all."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """No parameter asks for a gradient, or none of those that an optimizer holds does."""
    inventory = facts.inventory
    if not inventory.parameters:
        if any(tensor.kind == "module" for tensor in facts.hidden):
            return  # hidden-module says what is wrong
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            (),
            "the module has no registered parameter: nothing can be trained, saved or moved; hold layers as attributes "
            "of the module (nn.ModuleList for lists) and tensors as nn.Parameter. Nothing to train on purpose: "
            "health.policy=off",
        )
        return
    names = tuple(fact.name for fact in inventory.parameters)
    if not inventory.trainable:
        if facts.declared.frozen.issuperset(names):
            return
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            names,
            f"all {len(names)} parameters have requires_grad=False: no gradient will exist, nothing can learn; call "
            "requires_grad_(True) on what should train. Intended: list them in health.frozen",
        )


KIND = Kind("nothing-trainable", ("P3",), Cause.WIRING)
RULES = (Rule(KIND, Wiring, check),)
