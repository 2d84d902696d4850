"""Parameters that move, but only because weight decay shrinks them."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.rules.zero_gradient import decays, zero_tracks
from statewise.health.signals import Facts, Steps


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Zero gradient over the window, weight decay on, and the value moves: "did it change" would pass."""
    tracks = [track for track in zero_tracks(facts, steps) if decays(track)]
    if not tracks:
        return
    names = tuple(track.name for track in tracks)
    run = min(track.zero_run for track in tracks)
    yield Finding(
        KIND.id,
        Severity.ERROR,
        facts.step,
        names,
        f"{listed(names)} moves only by weight decay ({tracks[0].weight_decay:g}): its gradient is exactly zero in {run} "
        "steps running, so the loss does not change with it and it shrinks to zero; look for a mask, a factor of zero or "
        f"a dead unit behind it in forward. Used only sometimes: health.conditional=[{names[0]}]",
        {"run": run, "weight_decay": tracks[0].weight_decay, "lr": tracks[0].lr},
    )


KIND = Kind("weight-decay-only", ("O6",), Cause.GRADIENT)
RULES = (Rule(KIND, Steps, check),)
