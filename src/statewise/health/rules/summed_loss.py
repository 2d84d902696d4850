"""Losses whose size follows the number of rows, and losses divided twice."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.probes.naming import intend
from statewise.health.probes.reduction import Halves
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "summed-loss",
    ("B12",),
    Cause.BEHAVIOUR,
    (Severity.WARNING, Severity.INFO),
    meaning="The loss of a batch is the sum of the losses of its two halves, where a mean would be the mean of them: it sums "
    "over the rows. A warning where that matters: the last batch of an epoch is smaller and weighs less, or gradients of "
    "several batches are accumulated; else a fact, and so for autoencoders, whose loss is a sum by habit. Also reported: a "
    "step that divides its mean loss by the number of accumulated batches, which the framework does once more.",
    remedy='`reduction="mean"`, or divide by the number of rows; leave the division by accumulated batches to the framework.',
    intended='`{"intended": ("summed-loss",)}` in the health_contract() of the module.',
    example="""
# The last, smaller batch of an epoch counts less.
loss = F.mse_loss(prediction, target, reduction="sum")
""",
)


def check(facts: Facts, seen: Halves) -> Iterator[Finding]:
    """A sum, or divided once too often."""
    if seen.divided:
        yield KIND.finding(
            Severity.WARNING,
            facts,
            (),
            what=f"the step divides its mean loss by {seen.divided}, the number of batches that are accumulated, and the "
            "framework divides every loss by it as well",
            why=f"gradients are {seen.divided} times smaller than those of one batch of all rows",
            remedy="return the loss undivided",
            intended=intend(KIND.id),
            evidence={"key": "divided", "divided": seen.divided},
        )
    if not seen.summed:
        return
    reasons = [f"the last batch of an epoch has {seen.last} rows, not {seen.rows}"] if seen.last else []
    reasons += [f"{seen.accumulate} batches are accumulated"] if seen.accumulate > 1 else []
    matters = bool(reasons) and not seen.reconstruction
    parts = " and ".join(f"{part:.6g}" for part in seen.parts)
    yield KIND.finding(
        Severity.WARNING if matters else Severity.INFO,
        facts,
        (),
        what=f"the loss is a sum over the rows, not a mean: {seen.whole:.6g} for the batch, {parts} for its halves"
        + (f"; {', and '.join(reasons)}" if reasons else ""),
        why="the size of the gradient, and with it the learning rate that suits, follows the number of rows",
        remedy='use reduction="mean", or divide by the number of rows',
        intended=intend(KIND.id),
        evidence={"key": "summed", "loss": seen.whole, "halves": list(seen.parts), "rows": seen.rows, "last": seen.last},
    )


RULES = (Rule(KIND, Halves, check),)
