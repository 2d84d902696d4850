"""A gradient that exists and is exactly zero, step after step."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.ledger import SHORTEST_RUN
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps, Track


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Whole tensors, over a window: a zero-initialised layer or a masked batch makes one such step, not many."""
    zero = [track for track in zero_tracks(facts, steps) if not decays(track)]
    if not zero:
        return
    modules = {fact.name: fact.module for fact in facts.inventory.trainable if fact.group is not None}
    zeros = {track.name for track in zero_tracks(facts, steps)}
    whole = {m for m in set(modules.values()) if all(name in zeros for name, owner in modules.items() if owner == m)}
    blocks = [track for track in zero if modules.get(track.name) in whole]
    single = [track for track in zero if track not in blocks]
    for severity, tracks in ((Severity.ERROR, blocks), (Severity.WARNING, single)):
        if not tracks:
            continue
        names = tuple(track.name for track in tracks)
        run = min(track.zero_run for track in tracks)
        everything = len(zeros) == len(modules)
        why = (
            "no parameter has any gradient left: the loss is a constant (one class, all masked or clamped)"
            if everything
            else "the loss does not change with them: a dead or saturated unit, a factor of zero or a mask on their way"
        )
        yield Finding(
            KIND.id,
            severity,
            facts.step,
            names,
            f"the gradient of {listed(names)} is exactly zero, every element, in {run} steps running (since step "
            f"{max(track.steps - track.zero_run for track in tracks)}): {why}; look at what follows in forward. Used only "
            f"sometimes: health.conditional=[{names[0]}]",
            {"run": run, "all": everything},
        )


def zero_tracks(facts: Facts, steps: Steps) -> list[Track]:
    """Tracks with an unusual run of zeros that nothing excuses."""
    excused = facts.declared.conditional | facts.declared.frozen
    return [
        track
        for track in steps.tracks
        if track.zero_unusual
        and track.zero_run >= SHORTEST_RUN
        and track.name not in excused
        and not track.bias_before_norm
        and not track.removed
    ]


def decays(track: Track) -> bool:
    """Whether weight decay moved it meanwhile."""
    return track.weight_decay != 0 and track.lr > 0 and track.moved_without_gradient


KIND = Kind("zero-gradient", ("B1", "G7"), Cause.GRADIENT)
RULES = (Rule(KIND, Steps, check),)
