"""Inputs that the loss does not depend on."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.probes.dependence import Ignored
from statewise.health.probes.naming import intend
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "ignored-input",
    ("B6",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning="With one row of the inputs in place of all rows the loss is the same to the last bit, at three different steps "
    "after the first update: the prediction does not depend on the inputs. Asked of all in the batch that goes into modules; "
    "reported only if none of it matters.",
    remedy="Follow the input through the forward pass: a product with zero, a mask that covers everything, a wrong variable.",
    intended='`{"intended": ("ignored-input",)}` in the health_contract() of the module.',
)


def check(facts: Facts, seen: Ignored) -> Iterator[Finding]:
    """The same loss for other inputs."""
    if not seen.inputs:
        return
    yield KIND.finding(
        Severity.WARNING,
        facts,
        (),
        what=f"the loss is the same to the last bit ({seen.loss:.6g}) with one row of {listed(seen.inputs)} in place of all "
        f"rows, at steps {', '.join(map(str, seen.steps))}",
        why="the prediction does not depend on the inputs, so there is nothing to learn from them",
        remedy="follow the input through forward: a product with zero, a mask over everything, a wrong variable",
        intended=intend(KIND.id),
        evidence={"place": ", ".join(seen.inputs), "inputs": list(seen.inputs), "steps": list(seen.steps), "loss": seen.loss},
    )


RULES = (Rule(KIND, Ignored, check),)
