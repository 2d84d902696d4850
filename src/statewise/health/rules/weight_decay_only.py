"""Parameters that move, but only because weight decay shrinks them."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.rules.zero_gradient import decays, zero_tracks
from statewise.health.signals import Facts, Steps

KIND = Kind(
    "weight-decay-only",
    ("O6",),
    Cause.GRADIENT,
    (Severity.ERROR,),
    meaning=(
        "The gradient is exactly zero over the window of `zero-gradient`, weight decay is on, and the value moves by just "
        'that: "does it change" would pass. Momentum that carries on after the last gradient is told from it.'
    ),
    remedy="look for a mask, a factor of zero or a dead unit behind it in forward",
    intended="`health.conditional`",
)


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Zero gradient over the window, weight decay on, and the value moves: "did it change" would pass."""
    tracks = [track for track in zero_tracks(facts, steps) if decays(track)]
    if not tracks:
        return
    names = tuple(track.name for track in tracks)
    run = min(track.zero_run for track in tracks)
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"{listed(names)} moves only by weight decay ({tracks[0].weight_decay:g}): its gradient is exactly zero in {run} "
        "steps running",
        why="the loss does not change with it and it shrinks to zero",
        remedy="look for a mask, a factor of zero or a dead unit behind it in forward",
        intended=f"used only sometimes: health.conditional=[{names[0]}]",
        evidence={"run": run, "weight_decay": tracks[0].weight_decay, "lr": tracks[0].lr},
    )


RULES = (Rule(KIND, Steps, check),)
