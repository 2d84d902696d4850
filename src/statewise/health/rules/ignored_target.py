"""Targets that the loss does not depend on, and targets that are all alike."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.probes.dependence import AlikeTargets, Ignored
from statewise.health.probes.naming import intend
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "ignored-target",
    ("B6",),
    Cause.BEHAVIOUR,
    (Severity.WARNING, Severity.INFO),
    meaning="What the loss compares the prediction with is made of the targets, yet with one row of them in place of all rows "
    "the loss is the same to the last bit, at three steps after the first update. Or the targets are one and the same "
    "value in every row of five batches and more (200 rows, where they are classes). A tensor of the batch that the loss never "
    "meets is not concerned.",
    remedy="Look at what stands in the loss: zeros in place of labels, a wrong key, a mask over everything; and at the data.",
    intended='`{"intended": ("ignored-target",)}` in the health_contract() of the module.',
    example="""
def training_step(self, batch, batch_idx):
    x, y = batch
    y = torch.zeros_like(y)  # left over from a test
    return F.mse_loss(self(x), y)
""",
)


def check_loss(facts: Facts, seen: Ignored) -> Iterator[Finding]:
    """The same loss for other targets."""
    if not seen.targets:
        return
    yield KIND.finding(
        Severity.WARNING,
        facts,
        (),
        what=f"the loss is the same to the last bit ({seen.loss:.6g}) with one row of {listed(seen.targets)} in place of all "
        f"rows, at steps {', '.join(map(str, seen.steps))}, although the loss uses it",
        why="what is learnt has nothing to do with the targets",
        remedy="look at what the loss is given: zeros in place of labels, a wrong key, a mask over everything",
        intended=intend(KIND.id),
        evidence={
            "place": ", ".join(seen.targets),
            "targets": list(seen.targets),
            "steps": list(seen.steps),
            "loss": seen.loss,
        },
    )


def check_data(facts: Facts, seen: AlikeTargets) -> Iterator[Finding]:
    """One value in every row."""
    if not seen.targets:
        return
    certain = seen.continuous or (seen.rows >= 200 and seen.shuffled is not False)
    yield KIND.finding(
        Severity.WARNING if certain else Severity.INFO,
        facts,
        (),
        what=f"{listed(seen.targets)} is {seen.value:.6g} in all {seen.rows} rows of the first {seen.batches} batches",
        why="a constant answer is the best one, and nothing else can be learnt",
        remedy="look at how the data set makes its targets: a wrong column or key, zeros in place of missing values",
        intended=intend(KIND.id),
        evidence={
            "place": ", ".join(seen.targets),
            "targets": list(seen.targets),
            "rows": seen.rows,
            "batches": seen.batches,
            "value": seen.value,
        },
    )


RULES = (Rule(KIND, Ignored, check_loss), Rule(KIND, AlikeTargets, check_data))
