"""The loss that is logged is a rounded copy of the loss that is returned."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Rule
from statewise.health.signals import Facts


def check(facts: Facts) -> Iterator[Finding]:
    """A logged value differs from the returned float64 loss and equals its rounding exactly: that is no coincidence."""
    for logged in facts.logged or ():
        yield Finding(
            RULE.id,
            Severity.WARNING,
            facts.step,
            (),
            f"`{logged.name}` is logged as {logged.value!r}, the {logged.rounded} rounding of the returned loss "
            f"{logged.returned!r}: improvements below 6e-8 of the loss are invisible in the log; log the returned tensor "
            'itself, without .float(). Intended: return {"intended": ("logged-loss-rounded",)} from the module\'s '
            "health_contract()",
            {"name": logged.name, "logged": logged.value, "returned": logged.returned},
        )


RULE = Rule("logged-loss-rounded", ("N2",), Cause.NUMERICS, "logged", check)
