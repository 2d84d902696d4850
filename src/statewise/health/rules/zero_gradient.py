"""A gradient that exists and is exactly zero, step after step."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps, Track
from statewise.health.steps.ledger import SHORTEST_RUN

KIND = Kind(
    "zero-gradient",
    ("B1", "G7"),
    Cause.GRADIENT,
    (Severity.ERROR, Severity.WARNING, Severity.INFO),
    meaning=(
        "The whole gradient of a tensor is exactly zero in five or more steps running, and more than chance explains beside "
        "its own past. Error: a whole module; warning: a single tensor; info: a bias beside a weight that has a gradient (the "
        "loss does not depend on a shift), and all tensors at once after they had gradients (nothing is left to learn). A bias "
        "in front of a batch or instance norm is exempt, and so are steps at which every learning rate is 0."
    ),
    remedy="look at what follows it in forward: a dead or saturated unit, a factor of zero, a mask",
    intended="`health.conditional`",
)


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
    everything = len(zeros) == len(modules)
    # A loss that has come down to its floor: what had gradients has none left, all at once.
    at_rest = all(t.zero_run >= SHORTEST_RUN and t.ever_alive for t in steps.tracks if t.name in modules)
    shapes = {fact.name: fact.shape for fact in facts.inventory.trainable}
    weights = {modules[name] for name, shape in shapes.items() if name in modules and name not in zeros and len(shape) > 1}
    shifts = [track for track in single if len(shapes.get(track.name, (0, 0))) == 1 and modules.get(track.name) in weights]
    single = [track for track in single if track not in shifts]
    for worst, tracks in ((Severity.ERROR, blocks), (Severity.WARNING, single), (Severity.INFO, shifts)):
        if not tracks:
            continue
        severity = Severity.INFO if at_rest else worst
        names = tuple(track.name for track in tracks)
        run = min(track.zero_run for track in tracks)
        why = (
            "no parameter has any gradient left: the loss is a constant (one class, all masked or clamped)"
            if everything
            else "the loss does not change with them: a dead or saturated unit, a factor of zero or a mask on their way"
        )
        yield KIND.finding(
            severity,
            facts,
            names,
            what=f"the gradient of {listed(names)} is exactly zero, every element, in {run} steps running",
            why=why,
            remedy="look at what follows in forward",
            intended=f"used only sometimes: health.conditional=[{names[0]}]",
            evidence={"run": run, "all": everything},
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


RULES = (Rule(KIND, Steps, check),)
