"""Updates that are announced and not made."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Loop

KIND = Kind(
    "steps-skipped",
    ("O12",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning=(
        "The gradients are complete and the step is not made: a loss scaler finds infinities, or the step is called and the "
        "optimizer's own count of steps does not advance. Ten in a row, or more than half of the last fifty (of at least "
        "twenty); the first few of a scaled run are usual and are left alone. Or steps were made and have stopped: for ten "
        "backward passes (or batches), and four times as many as there ever were between two steps."
    ),
    remedy="look for gradients that are not finite; lower the loss scale, or the threshold at which steps are skipped",
    intended="`health.policy=warn`",
)

_RUN = 10
_SHARE, _ENOUGH = 0.5, 20
# Where nothing is announced the run itself shows its rhythm.
_TIMES, _UPDATES = 4, 5


def check(facts: Facts, loop: Loop) -> Iterator[Finding]:
    """Per optimizer, over the whole run."""
    many = loop.skipped_share > _SHARE and loop.announced >= _ENOUGH
    if loop.skipped_run >= _RUN or many:
        run = f"the last {loop.skipped_run} in a row" if loop.skipped_run >= _RUN else "more than half"
        who = (
            "a GradScaler that finds infinities in every backward pass does that" if loop.scaler else "something returns early"
        )
        yield _finding(
            facts,
            loop.skipping,
            f"{round(loop.skipped_share * loop.announced)} of the last {loop.announced} optimizer steps were announced and not "
            f"made, {run}",
            f"the parameters do not move at such a step ({who})",
            {"run": loop.skipped_run, "share": loop.skipped_share},
        )
    elif loop.declined_run >= _RUN:
        yield _finding(
            facts,
            loop.declining,
            f"{loop.declined_run} calls running of step() of {facts.inventory.optimizers[loop.declining]} made no step",
            "the optimizer's own count of steps does not advance, it declines each of them",
            {"run": loop.declined_run},
        )
    elif loop.updates >= _UPDATES:
        yield from _stopped(facts, loop)


def _stopped(facts: Facts, loop: Loop) -> Iterator[Finding]:
    """Steps were made, and then no more, without a word."""
    usual = max(_TIMES * loop.usual_backwards, 2 * loop.accumulate)
    if loop.since_update >= max(_RUN, usual):
        yield _finding(
            facts,
            None,
            f"{loop.since_update} backward passes ran since the last optimizer step, where there were at most "
            f"{loop.usual_backwards} before",
            "steps were made and have stopped, the gradients are dropped",
            {"run": loop.since_update, "usual": loop.usual_backwards},
        )
    elif not loop.manual and loop.idle_batches >= max(_RUN, _TIMES * loop.usual_idle):
        yield _finding(
            facts,
            None,
            f"{loop.idle_batches} batches running had no backward pass and no optimizer step",
            "steps were made and have stopped",
            {"run": loop.idle_batches, "usual": loop.usual_idle},
        )


def _finding(facts: Facts, optimizer: int | None, what: str, why: str, evidence: dict[str, int | float]) -> Finding:
    inventory = facts.inventory
    held = inventory.trainable if optimizer is None else inventory.of_optimizer(optimizer)
    names = tuple(fact.name for fact in held if fact.requires_grad and fact.group is not None)
    return KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=what,
        why=why,
        remedy="look for gradients that are not finite, for a threshold that skips steps, and at what optimizer_step does",
        intended="health.policy=warn lets it run",
        evidence=evidence,
    )


RULES = (Rule(KIND, Loop, check),)
