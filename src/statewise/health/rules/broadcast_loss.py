"""A loss over all pairs of predictions and targets, where one of each was meant."""

from collections.abc import Iterator
from math import prod

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.graph.signals import Patterns
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "broadcast-loss",
    ("B5",),
    Cause.BEHAVIOUR,
    (Severity.WARNING,),
    meaning="The loss averages b x b values for b predictions: a prediction [b, 1] met a target [b] (or the other way round), "
    "and broadcasting paired every prediction with every target. From the shapes in the loss's graph. Pairs of predictions, "
    "and axes that were added on purpose just before, are left alone.",
    remedy="Bring prediction and target to the same shape before the loss.",
    intended='`return {"intended": ("broadcast-loss",)}` from the module\'s `health_contract()`.',
    example="prediction = model(x)  # [32, 1]\nloss = ((prediction - y) ** 2).mean()  # y is [32]: averages 32 x 32 values",
)


def check(facts: Facts, patterns: Patterns) -> Iterator[Finding]:
    """One finding for each place."""
    for one in dict.fromkeys(patterns.broadcasts):
        size = "x".join(str(length) for length in one.result)
        count = prod(one.prediction)
        yield KIND.finding(
            Severity.WARNING,
            facts,
            one.parameters,
            what=f"the loss averages {size} values for {count} predictions: a prediction of shape {list(one.prediction)} met a "
            "target of another shape",
            why="every prediction is compared with every target, and the best answer is their mean, whatever the input",
            remedy="give prediction and target the same shape, with squeeze(-1) or unsqueeze(-1)",
            intended='return {"intended": ("broadcast-loss",)} from the module\'s health_contract()',
            evidence={"prediction": list(one.prediction), "values": list(one.result)},
        )


RULES = (Rule(KIND, Patterns, check),)
