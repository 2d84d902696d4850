"""A group whose learning rate is 0 and stays there."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.parameters import GroupFact
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, LearningRates, Wiring

# A hand-made warm-up may begin at 0; without a scheduler object three steps at 0 are one too many.
_STEPS_ALONE = 3
# A scheduler may hold 0 for a while.
_STEPS_SCHEDULED = 20


def check_start(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """Before the first step: one group at 0, no scheduler, and other groups above 0."""
    groups = facts.inventory.groups
    if not any(group.lr > 0 for group in groups):
        return
    for index, group in enumerate(groups):
        if group.lr == 0.0 and group.initial_lr is None and facts.step == 0:
            yield from _finding(facts, index, group, "and no scheduler touches it")


def check_steps(facts: Facts, rates: LearningRates) -> Iterator[Finding]:
    """During the run: rows of steps at 0."""
    for rate in rates.rates:
        group = facts.inventory.groups[rate.group]
        limit = _STEPS_SCHEDULED if rate.scheduled or rate.ever_positive else _STEPS_ALONE
        if rate.zero_run >= limit:
            how = "under its scheduler" if rate.scheduled else "and no scheduler touches it"
            yield from _finding(facts, rate.group, group, f"for {rate.zero_run} steps {how}")


def _finding(facts: Facts, index: int, group: GroupFact, since: str) -> Iterator[Finding]:
    names = tuple(f.name for f in facts.inventory.trainable if f.group == index and f.name not in facts.declared.frozen)
    if names:
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            names,
            f"{group.label} of {group.kind} has lr 0 {since}: {listed(names)} cannot move; give the group a learning rate "
            "above 0 (a schedule counted in steps needs interval: step). Meant not to train: requires_grad_(False), or "
            f"health.frozen=[{names[0]}]",
            {"group": group.index, "optimizer": group.optimizer, "initial_lr": group.initial_lr},
        )


KIND = Kind("zero-learning-rate", ("O4", "O5"), Cause.WIRING)
RULES = (
    Rule(KIND, Wiring, check_start),
    Rule(KIND, LearningRates, check_steps),
)
