"""A loss far above what it has been lately."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.observers.loss_spikes import LossSpike
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "loss-spike",
    (),
    Cause.BEHAVIOUR,
    (Severity.INFO,),
    meaning=(
        "A training loss lies more than six standard deviations above the mean of the last 128 that were read. A fact, said "
        "once: noisy data and rare batches do that too."
    ),
    remedy="look at that batch; clip gradients, or lower the learning rate, where it comes again",
    intended="none needed",
)


def check(facts: Facts, spike: LossSpike) -> Iterator[Finding]:
    """Only the first is told."""
    if spike.value == spike.value:
        yield KIND.finding(
            Severity.INFO,
            facts,
            (),
            what=f"the training loss is {spike.value:.4g} after {facts.step} steps, where it was {spike.mean:.4g} on average "
            f"(standard deviation {spike.deviation:.2g})",
            why="a batch far from the others, or a step that was too long",
            remedy="look at that batch; clip gradients or lower the learning rate where it comes again",
            intended="nothing needs to be declared",
            evidence={"value": spike.value, "mean": spike.mean, "deviation": spike.deviation},
        )


RULES = (Rule(KIND, LossSpike, check),)
