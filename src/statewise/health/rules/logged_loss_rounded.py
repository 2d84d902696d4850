"""The loss that is logged is a rounded copy of the loss that is returned."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, LoggedLosses

KIND = Kind(
    "logged-loss-rounded",
    ("N2",),
    Cause.NUMERICS,
    (Severity.WARNING,),
    meaning="A logged value differs from the returned float64 loss and equals its float32 rounding exactly.",
    remedy="Log the returned tensor itself, without `.float()`.",
    intended='`return {"intended": ("logged-loss-rounded",)}` from the module\'s `health_contract()`.',
    example='self.log("train/loss", loss.float())  # the returned loss is float64',
)


def check(facts: Facts, logged: LoggedLosses) -> Iterator[Finding]:
    """A logged value differs from the returned float64 loss and equals its rounding exactly: that is no coincidence."""
    for one in logged.losses:
        yield KIND.finding(
            Severity.WARNING,
            facts,
            (),
            what=f"`{one.name}` is logged as {one.value!r}, the {one.rounded} rounding of the returned loss {one.returned!r}",
            why="improvements below 6e-8 of the loss are invisible in the log",
            remedy="log the returned tensor itself, without .float()",
            intended='return {"intended": ("logged-loss-rounded",)} from the module\'s health_contract()',
            evidence={"name": one.name, "logged": one.value, "returned": one.returned},
        )


RULES = (Rule(KIND, LoggedLosses, check),)
