"""Backward passes that no update follows."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Loop

KIND = Kind(
    "no-optimizer-step",
    ("O9",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning=(
        "Backward passes run and no optimizer step follows in the whole run: after three of them, or twice the configured "
        "accumulation; twenty in a loop of the user's own, which may accumulate over as many, or the end of its first epoch. "
        "Or ten batches pass without a backward pass and without a step. Steps that stop later are `steps-skipped`."
    ),
    remedy="call `optimizer.step()`; in an `optimizer_step` override `optimizer.step(closure=optimizer_closure)`",
    intended="`health.policy=warn`",
)

_BACKWARDS = 3
# A manual loop may accumulate over as many batches.
_BACKWARDS_MANUAL = 20
# Batches without anything.
_IDLE = 10


def check(facts: Facts, loop: Loop) -> Iterator[Finding]:
    """Counted over the run; updates that were announced and not made are another matter (steps-skipped)."""
    if loop.attempts == 0 and loop.updates == 0:
        limit = _BACKWARDS_MANUAL if loop.manual else max(_BACKWARDS, 2 * loop.accumulate)
        whole_epoch = loop.epoch_ended and loop.backwards > loop.accumulate
        if loop.backwards >= limit or (whole_epoch and loop.backwards >= _BACKWARDS):
            yield _finding(
                facts, f"{loop.backwards} backward passes and not one optimizer step", "the gradients are computed and dropped"
            )
        elif not loop.manual and loop.backwards == 0 and loop.batches >= _IDLE:
            yield _finding(facts, f"{loop.batches} batches without a backward pass and without a step", "nothing trains")


def _finding(facts: Facts, what: str, why: str) -> Finding:
    names = tuple(fact.name for fact in facts.inventory.trainable if fact.group is not None)
    return KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=what,
        why=why,
        remedy="call optimizer.step() (in an optimizer_step override: optimizer.step(closure=optimizer_closure))",
        intended="health.policy=warn lets it run",
        evidence={"parameters": len(names)},
    )


RULES = (Rule(KIND, Loop, check),)
