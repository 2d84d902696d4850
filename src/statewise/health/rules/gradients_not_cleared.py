"""Gradients that pile up, because nobody clears them between two updates."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps

KIND = Kind(
    "gradients-not-cleared",
    ("O7",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning=(
        "A backward pass begins, the gradients are still those that the last update used, bit for bit, and they are not "
        "cleared before the next update either, three updates running: every step repeats all that came before it. "
        "Accumulation over several backward passes is no such thing, nor are gradients that another loss fills and that are "
        "cleared before their own."
    ),
    remedy="call `zero_grad()` after each step",
    intended="`health.policy=warn`",
    example="loss = model(x).mean()\nloss.backward()\noptimizer.step()  # and no optimizer.zero_grad() anywhere",
)

_STEPS = 3


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Per parameter: a group may have been forgotten."""
    stale = [track for track in steps.tracks if track.stale_run >= _STEPS]
    names = tuple(track.name for track in stale)
    if names:
        run = min(track.stale_run for track in stale)
        yield KIND.finding(
            Severity.ERROR,
            facts,
            names,
            what=f"the gradient of {listed(names)} is not cleared between updates: {run} running began with the gradient that "
            "the update before had used",
            why="it adds up over the run, as if the learning rate grew at every step",
            remedy="call zero_grad() after each step (in Lightning: let optimizer_zero_grad do it)",
            intended="health.policy=warn lets it run",
            evidence={"run": run, "parameters": len(names)},
        )


RULES = (Rule(KIND, Steps, check),)
