"""Parameters that become other objects while the run is under way."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts
from statewise.health.steps.signals import Recreated

KIND = Kind(
    "parameter-recreated",
    ("O15",),
    # Deeper than the optimizer that is stale because of it.
    Cause.REGISTRATION,
    (Severity.ERROR,),
    meaning=(
        "A parameter is another object than before, in the middle of the run, and the optimizer still holds the old one: it "
        "moves a tensor that the loss does not use any more. Identity is compared at every batch and before the first update."
    ),
    remedy="change values in place (`parameter.data.copy_(...)`), or give the optimizer the new parameter",
    intended="`health.frozen`, and `requires_grad_(False)`",
)


def check(facts: Facts, recreated: Recreated) -> Iterator[Finding]:
    """Replaced after the first forward pass began."""
    names = tuple(name for name in recreated.names if name not in facts.declared.frozen)
    if names:
        again = f", the {recreated.times}. time that this happens" if recreated.times > 1 else ""
        yield KIND.finding(
            Severity.ERROR,
            facts,
            names,
            what=f"{listed(names)} became another nn.Parameter in batch {recreated.batch}{again}",
            why="the optimizer still holds and moves the old one, which the loss no longer uses",
            remedy="assign values in place instead of a new nn.Parameter, in forward, hooks and callbacks",
            intended=f"give the optimizer the new one, or health.frozen=[{names[0]}] and requires_grad_(False)",
            evidence={"batch": recreated.batch, "times": recreated.times},
        )


RULES = (Rule(KIND, Recreated, check),)
