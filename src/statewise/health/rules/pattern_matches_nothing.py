"""A declared name that is no name in this module."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "pattern-matches-nothing",
    ("P9",),
    Cause.REGISTRATION,
    meaning=(
        "A pattern in `health.frozen`, `health.constants` or `health.conditional` fits no name of this module: it would "
        "protect nothing, or excuse nothing, in silence. The nearest name is shown."
    ),
    remedy="correct the pattern; the names stand in the parameter table of the log",
    intended="take the pattern out",
)


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """A pattern with a typo would otherwise protect nothing, or excuse nothing, in silence."""
    for miss in facts.declared.unmatched:
        hint = f", did you mean `{miss.nearest}`" if miss.nearest else ""
        yield KIND.finding(
            Severity.ERROR,
            facts,
            (),
            what=f"{miss.key}: `{miss.pattern}` matches nothing in this module{hint}",
            why="what it should name is treated like everything else",
            remedy="correct the pattern (names stand in the parameter table of the log)",
            intended=f"remove it from {miss.key}",
            evidence={"key": miss.key, "pattern": miss.pattern, "nearest": miss.nearest},
        )


RULES = (Rule(KIND, Wiring, check),)
