"""The loss that is logged is a rounded copy of the loss that is returned."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, LoggedLosses


def check(facts: Facts, logged: LoggedLosses) -> Iterator[Finding]:
    """A logged value differs from the returned float64 loss and equals its rounding exactly: that is no coincidence."""
    for one in logged.losses:
        yield Finding(
            KIND.id,
            Severity.WARNING,
            facts.step,
            (),
            f"`{one.name}` is logged as {one.value!r}, the {one.rounded} rounding of the returned loss "
            f"{one.returned!r}: improvements below 6e-8 of the loss are invisible in the log; log the returned tensor "
            'itself, without .float(). Intended: return {"intended": ("logged-loss-rounded",)} from the module\'s '
            "health_contract()",
            {"name": one.name, "logged": one.value, "returned": one.returned},
        )


KIND = Kind("logged-loss-rounded", ("N2",), Cause.NUMERICS)
RULES = (Rule(KIND, LoggedLosses, check),)
