"""The values that a layer chose to begin with are gone before the first step."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.observers.laws import BrokenLaw, InitialLaws
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "lost-initialisation",
    ("B13",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning=(
        "A layer declares the law of its initial values (bounds, or exact values, of rates, steps and spectra), and before the "
        "first step they do not obey it. In layers with a method `initial_laws()`, as ours have, and not where values were "
        "loaded from a checkpoint or trained before."
    ),
    remedy="keep a generic initialisation away from these parameters: apply it to `nn.Linear` and the like only",
    intended='`{"intended": ("lost-initialisation",)}` from `health_contract()`',
    example="for parameter in model.parameters():\n    nn.init.normal_(parameter, std=0.02)  # A_log and dt_bias too",
)


def check(facts: Facts, laws: InitialLaws) -> Iterator[Finding]:
    """All parameters of which something is no longer as their layer put it."""
    if not laws.broken:
        return
    shown = "; ".join(_sentence(law) for law in laws.broken[:2])
    more = f" and {len(laws.broken) - 2} more" if len(laws.broken) > 2 else ""
    yield KIND.finding(
        Severity.WARNING,
        facts,
        dict.fromkeys(law.parameter for law in laws.broken),
        what=f"{shown}{more}",
        why="something initialised it again, and the memory that the layer begins with is lost",
        remedy="keep a generic initialisation away from it (apply it to nn.Linear and the like only)",
        intended='return {"intended": ("lost-initialisation",)} from health_contract() of the module',
        evidence={"laws": [[law.parameter, law.quantity, law.low, law.high, law.least, law.largest] for law in laws.broken]},
    )


def _sentence(law: BrokenLaw) -> str:
    local = law.parameter.rpartition(".")[2]
    quantity = "" if law.quantity == local else f" ({law.quantity})"
    expected = f"{law.low:.4g}" if law.low == law.high else f"{law.low:.4g} to {law.high:.4g}"
    return f"`{law.parameter}`{quantity} begins at {law.least:.4g} to {law.largest:.4g} where its layer puts {expected}"


RULES = (Rule(KIND, InitialLaws, check),)
