"""Probabilities that are taken for logits."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.graph.signals import Patterns
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "double-softmax",
    ("B4",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning="In the loss's graph a softmax (or the log-softmax of a cross-entropy) works directly on the result of a softmax, "
    "or a binary cross-entropy with logits on the result of a sigmoid; only reshaping lies in between.",
    remedy="Give the loss the logits; apply softmax where probabilities are read.",
    intended='`return {"intended": ("double-softmax",)}` from the module\'s `health_contract()`.',
    example="probabilities = torch.softmax(model(x), dim=-1)\nloss = F.cross_entropy(probabilities, y)  # once more",
)


def check(facts: Facts, patterns: Patterns) -> Iterator[Finding]:
    """One finding for each place."""
    for one in dict.fromkeys(patterns.softmaxes):
        inner, outer = (
            ("sigmoid", "binary_cross_entropy_with_logits") if one.inner == "Sigmoid" else ("softmax", _word(one.outer))
        )
        where = f" of `{one.place}`" if one.place else ""
        yield KIND.finding(
            Severity.WARNING,
            facts,
            one.parameters,
            what=f"{outer} is applied to the result of a {inner}{where}",
            why="probabilities lie between 0 and 1, so that the second one is nearly flat: the loss cannot come near its "
            "minimum, and gradients are small",
            remedy=f"hand the loss the logits, without {inner}",
            intended='return {"intended": ("double-softmax",)} from the module\'s health_contract()',
            evidence={"outer": one.outer, "inner": one.inner, "place": one.place, "module": one.place},
        )


def _word(operation: str) -> str:
    return "log_softmax (cross_entropy)" if operation == "LogSoftmax" else "softmax"


RULES = (Rule(KIND, Patterns, check),)
