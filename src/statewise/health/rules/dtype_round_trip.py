"""float64 numbers that pass through a narrower type on their way to the loss."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward


def check(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Casts inside the loss's graph from float64 to less."""
    for loss in dict.fromkeys(first.precision):
        where = f"inside `{loss.place}`" if loss.place else "on the way from the model's output to the returned loss"
        back = f" and back to {loss.source}" if loss.comes_back else ""
        yield Finding(
            KIND.id,
            Severity.WARNING,
            facts.step,
            (),
            f"a {loss.source} tensor is cast to {loss.result}{back} {where}: about 9 of 16 digits are lost, small improvements "
            "become invisible; remove .float() / .to(...) there and let everything follow the model's dtype. Intended: "
            'return {"intended": ("dtype-round-trip",)} from the module\'s health_contract()',
            {"from": loss.source, "to": loss.result, "place": loss.place, "comes_back": loss.comes_back},
        )


KIND = Kind("dtype-round-trip", ("N2", "N3"), Cause.NUMERICS)
RULES = (Rule(KIND, FirstBackward, check),)
