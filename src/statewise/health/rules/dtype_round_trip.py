"""A float64 run whose loss passes through a narrower type."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.graph.signals import Types
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "dtype-round-trip",
    ("N2", "N3"),
    Cause.NUMERICS,
    (Severity.WARNING,),
    meaning="In a run whose parameters are float64 the loss, or what it is computed from, is cast to a narrower float outside "
    "of the model's blocks. The evidence is the cast in the loss's graph.",
    remedy="Remove `.float()` or `.to(...)` there and let everything follow the model's dtype.",
    intended='`return {"intended": ("dtype-round-trip",)}` from the module\'s `health_contract()`.',
    example="loss = criterion(model(x), y)  # float64\nloss = loss.float().double()  # 9 of 16 digits are gone",
)


def check(facts: Facts, types: Types) -> Iterator[Finding]:
    """Casts between the model's output and the loss (a whole block's output is mixed-dtypes)."""
    if not types.double:
        return
    casts = [c for c in types.changes if not c.implicit and (c.scalar or not c.place)]
    for cast in dict.fromkeys(casts):
        where = f"inside `{cast.place}`" if cast.place else "on the way from the model's output to the returned loss"
        back = f" and back to {cast.source}" if cast.comes_back else ""
        yield KIND.finding(
            Severity.WARNING,
            facts,
            (),
            what=f"a {cast.source} tensor is cast to {cast.result}{back} {where}",
            why="about 9 of 16 digits are lost, small improvements become invisible",
            remedy="remove .float() / .to(...) there and let everything follow the model's dtype",
            intended='return {"intended": ("dtype-round-trip",)} from the module\'s health_contract()',
            evidence={"from": cast.source, "to": cast.result, "place": cast.place, "comes_back": cast.comes_back},
        )


RULES = (Rule(KIND, Types, check),)
