"""Nothing can train at all."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "nothing-trainable",
    ("P3",),
    Cause.WIRING,
    meaning="The module has no registered parameter, or none of them has requires_grad.",
    remedy="hold layers as attributes, call `requires_grad_(True)` on what should train",
    intended='`health.frozen=["*"]`',
)


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """No parameter asks for a gradient, or none of those that an optimizer holds does."""
    inventory = facts.inventory
    if not inventory.parameters:
        if any(tensor.kind == "module" for tensor in facts.hidden):
            return  # hidden-module says what is wrong
        yield KIND.finding(
            Severity.ERROR,
            facts,
            (),
            what="the module has no registered parameter",
            why="nothing can be trained, saved or moved",
            remedy="hold layers as attributes of the module (nn.ModuleList for lists) and tensors as nn.Parameter",
            intended="health.policy=off",
        )
        return
    names = tuple(fact.name for fact in inventory.parameters)
    if inventory.trainable or facts.declared.frozen.issuperset(names):
        return
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"all {len(names)} parameters have requires_grad=False",
        why="no gradient will exist, nothing can learn",
        remedy="call requires_grad_(True) on what should train",
        intended="list them in health.frozen",
    )


RULES = (Rule(KIND, Wiring, check),)
