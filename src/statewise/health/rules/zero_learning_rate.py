"""A group whose learning rate is 0 and stays there, or will."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.observers.lookahead import GroupAhead, RatesAhead
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, LearningRate, LearningRates, Wiring

KIND = Kind(
    "zero-learning-rate",
    ("O4", "O5"),
    Cause.WIRING,
    (Severity.ERROR, Severity.WARNING, Severity.INFO),
    meaning=(
        "A group has learning rate 0. Before the first step: no scheduler touches it and others are above 0; or the schedule, "
        "evaluated on a copy over all planned steps, keeps it at 0 for more than half of them (error), for twenty steps at the "
        "start or a tenth of the run at the end (warning), or swings to 0 and back because it counts epochs and is stepped "
        "once a step (warning). While it runs: three steps at 0 without a scheduler, twenty under one. A warm-up that begins "
        "at 0, a schedule that ends at 0 and groups that join later (info) are left alone."
    ),
    remedy="give the group a learning rate; count the schedule in the unit it is stepped in (`interval: step`)",
    intended="`requires_grad_(False)`, `health.frozen`",
    example="LambdaLR(optimizer, lambda step: min(1, step / 1000))  # once an epoch: 0 for all of the first",
)

# A hand-made warm-up may begin at 0; without a scheduler object three steps at 0 are one too many.
_STEPS_ALONE = 3
# A scheduler may hold 0 for a while.
_STEPS_SCHEDULED = 20
# Parts of the planned steps at 0: a run that is mostly idle, and a run whose end is.
_MOST, _MUCH = 0.5, 0.1
# A run this short says nothing about the shape of its schedule.
_FEW = 5


def check_start(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """Before the first step: one group at 0, no scheduler, and other groups above 0."""
    groups = facts.inventory.groups
    if not any(group.lr > 0 for group in groups):
        return
    for index, group in enumerate(groups):
        if group.lr == 0.0 and group.initial_lr is None and facts.step == 0:
            yield from _finding(facts, index, Severity.ERROR, "has lr 0 and no scheduler touches it")


def check_ahead(facts: Facts, ahead: RatesAhead) -> Iterator[Finding]:
    """At the first batch: what the schedule will do in this run."""
    for group in ahead.groups:
        said = _said_ahead(group, ahead)
        if said is not None:
            yield from _finding(facts, group.group, *said)


def _said_ahead(group: GroupAhead, ahead: RatesAhead) -> tuple[Severity, str] | None:
    planned = ahead.planned
    per = f"{ahead.kind}, stepped once {'a step' if ahead.interval == 'step' else 'an epoch'}"
    if planned < _FEW:
        return None
    if group.leading >= planned:
        return Severity.ERROR, f"stays at lr 0 in all {planned} steps of this run ({per})"
    if group.leading > max(_MOST * planned, _FEW) and not group.others_first:
        return Severity.ERROR, f"stays at lr 0 until step {group.leading} of {planned} ({per})"
    if group.leading >= _STEPS_SCHEDULED:
        severity = Severity.INFO if group.others_first else Severity.WARNING
        return severity, f"stays at lr 0 until step {group.leading} of {planned} ({per})"
    if group.trailing >= max(_MUCH * planned, _STEPS_SCHEDULED):
        severity = Severity.ERROR if group.trailing >= _MOST * planned else Severity.WARNING
        return severity, f"reaches lr 0 at step {planned - group.trailing} of {planned} and stays there ({per})"
    if group.epochs_as_steps is not None:
        return (
            Severity.WARNING,
            f"swings to lr 0 and back every {group.epochs_as_steps} of {planned} steps ({per}; T_max is epochs)",
        )
    return None


def check_steps(facts: Facts, rates: LearningRates) -> Iterator[Finding]:
    """During the run: rows of steps at 0."""
    for rate in rates.rates:
        severity = _while_running(rate, facts.step)
        if severity is not None:
            how = "under its scheduler" if rate.scheduled else "and no scheduler touches it"
            yield from _finding(facts, rate.group, severity, f"has lr 0 for {rate.zero_run} steps {how}")


def _while_running(rate: LearningRate, step: int) -> Severity | None:
    if rate.scheduled and rate.foreseen:
        # Said at the start, or left alone there.
        return None
    if not rate.scheduled and not rate.ever_positive:
        return Severity.ERROR if rate.zero_run >= _STEPS_ALONE else None
    if not rate.scheduled and rate.others_positive and _STEPS_ALONE <= rate.zero_run < _STEPS_SCHEDULED:
        # Somebody set it by hand while the others go on.
        return Severity.WARNING
    if rate.zero_run < _STEPS_SCHEDULED:
        return None
    if rate.ever_positive and rate.remaining is not None and rate.remaining <= _MUCH * (rate.remaining + step):
        return None
    return Severity.ERROR


def _finding(facts: Facts, index: int, severity: Severity, what: str) -> Iterator[Finding]:
    group = facts.inventory.groups[index]
    names = tuple(f.name for f in facts.inventory.trainable if f.group == index and f.name not in facts.declared.frozen)
    if names:
        yield KIND.finding(
            severity,
            facts,
            names,
            what=f"{group.label} of {group.kind} {what}",
            why=f"{listed(names)} cannot move meanwhile",
            remedy="give the group a learning rate above 0 (a schedule counted in steps needs interval: step)",
            intended=f"requires_grad_(False), or health.frozen=[{names[0]}]",
            evidence={"group": group.index, "optimizer": group.optimizer, "initial_lr": group.initial_lr},
        )


RULES = (
    Rule(KIND, Wiring, check_start),
    Rule(KIND, RatesAhead, check_ahead),
    Rule(KIND, LearningRates, check_steps),
)
