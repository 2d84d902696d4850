"""A loss that does not depend on any parameter, although its graph reaches them."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.observers.loss_values import ConstantLoss
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "constant-loss",
    ("G7",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning="In five steps running the loss is the same to the bit and every gradient exactly zero, although the graph is "
    "whole. A loss that has fallen to 0 by itself (a hinge) is left alone, and so is one masked batch.",
    remedy="Look at what the loss is computed from: a softmax over one class, everything masked, everything clamped.",
    intended="There is no way: nothing learns.",
    example="logits = head(h)  # [32, 1]: one class\nloss = F.cross_entropy(logits, torch.zeros(32).long())  # always 0",
)


def check(facts: Facts, constant: ConstantLoss) -> Iterator[Finding]:
    """Equal numbers alone may be chance, zero gradients alone a dead layer."""
    if constant.run:
        yield KIND.finding(
            Severity.ERROR,
            facts,
            constant.parameters,
            what=f"the loss is exactly {constant.value:g} in {constant.run} steps running, and every gradient is exactly zero",
            why="the loss is a constant of the parameters, and nothing can be learnt from it",
            remedy="look for a softmax over one class, or for a mask or a clamp that leaves nothing",
            intended="there is no way to declare it; health.policy=warn lets it run",
            evidence={"loss": constant.value, "run": constant.run},
        )


RULES = (Rule(KIND, ConstantLoss, check),)
