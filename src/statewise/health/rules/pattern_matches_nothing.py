"""A declared name that is no name in this module."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """A pattern with a typo would otherwise protect nothing, or excuse nothing, in silence."""
    for miss in facts.declared.unmatched:
        hint = f", did you mean `{miss.nearest}`" if miss.nearest else ""
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            (),
            f"{miss.key}: `{miss.pattern}` matches nothing in this module{hint}; correct the pattern or remove it (names "
            "stand in the parameter table of the log)",
            {"key": miss.key, "pattern": miss.pattern, "nearest": miss.nearest},
        )


KIND = Kind("pattern-matches-nothing", ("P9",), Cause.REGISTRATION)
RULES = (Rule(KIND, Wiring, check),)
