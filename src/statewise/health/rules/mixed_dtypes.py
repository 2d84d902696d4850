"""float32 and float64 in one model, mixed without a word."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.graph.signals import PlacedChange, Types
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "mixed-dtypes",
    ("N3",),
    Cause.NUMERICS,
    (Severity.WARNING, Severity.INFO),
    meaning="Within the model float64 and a narrower float meet: a block of a float64 run casts to less, or an operation is "
    "given a float32 parameter (or what was computed from it) and float64 numbers, and torch widens without a word. A float32 "
    "run that computes something in float64 by an explicit cast is left alone, and so are autocast and 16-bit types. Info "
    "where the types meet in the loss only, as with float64 targets.",
    remedy="Give parameters and data one type: `.to(dtype)` of the whole module, data of the same dtype.",
    intended='`return {"intended": ("mixed-dtypes",)}` from the module\'s `health_contract()`.',
)
_INTENDED = 'return {"intended": ("mixed-dtypes",)} from the module\'s health_contract()'


def check(facts: Facts, types: Types) -> Iterator[Finding]:
    """Casts within a block of a float64 run, and silent widening in any run."""
    for change in dict.fromkeys(types.changes):
        if not change.implicit and types.double and change.place and not change.scalar:
            yield _narrowed(facts, change)
    implicit = [change for change in types.changes if change.implicit]
    # One block widens, and everything after it follows: the first is the one nearest to the parameters.
    for change in [c for c in implicit if c.place][-1:] or implicit[-1:]:
        yield _widened(facts, change, types)


def _narrowed(facts: Facts, change: PlacedChange) -> Finding:
    return KIND.finding(
        Severity.WARNING,
        facts,
        change.parameters,
        what=f"`{change.place}` casts {change.source} to {change.result} in a run whose parameters are float64",
        why="about 9 of 16 digits are lost there, in the result and in the gradient",
        remedy="remove .float() / .to(...) there and let everything follow the model's dtype",
        intended=_INTENDED,
        evidence={"from": change.source, "to": change.result, "place": change.place, "module": change.place},
    )


def _widened(facts: Facts, change: PlacedChange, types: Types) -> Finding:
    narrow = types.parameters.get(change.source, ())
    odd = change.parameters
    if types.double and narrow:
        # The few that are not like the others.
        odd = narrow
    # A loss may be a module too, but it holds no parameters.
    block = change.place and any(fact.name.startswith(f"{change.place}.") for fact in facts.inventory.parameters)
    inside = (block and not change.scalar) or (types.double and narrow)
    census = ", ".join(f"{len(names)} {dtype}" for dtype, names in sorted(types.parameters.items()))
    where = f"in `{change.place}`" if change.place else "outside of the model's blocks"
    return KIND.finding(
        Severity.WARNING if inside else Severity.INFO,
        facts,
        odd,
        what=f"{change.source} ({listed(odd) if odd else 'a computed tensor'}) meets {change.result} {where}, and the result "
        f"is {change.result} (parameters reached: {census})",
        why=f"torch widens without a word: the {change.source} side has 7 of 16 digits, the rest of the step takes twice the "
        "memory",
        remedy="give parameters, inputs and targets one dtype",
        intended=_INTENDED,
        evidence={"from": change.source, "to": change.result, "place": change.place, "module": change.place},
    )


RULES = (Rule(KIND, Types, check),)
