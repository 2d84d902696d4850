"""Updates that leave the values as they were: below the resolution of the type, or not applied at all."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps, Track

KIND_ROUNDING = Kind(
    "update-lost-to-rounding",
    ("N1",),
    Cause.NUMERICS,
    (Severity.ERROR,),
    meaning=(
        "Of the elements that have a gradient less than 5 % change in three steps running, and never more did, because the "
        "update is smaller than the distance to the next number of their type. The message gives both. It must matter: the "
        "update is at least a millionth of the value, or half of the group's tensors fare alike. A warm-up, gradients that "
        "are rounding noise beside the others, and a tensor that has moved and stands now (a fitted model) do not count."
    ),
    remedy="keep float32 (or float64) master weights, or raise the learning rate",
    intended="`health.frozen` and `requires_grad_(False)`",
    example="model = model.to(torch.bfloat16)  # resolves 0.8 % of a value\noptimizer = SGD(model.parameters(), lr=1e-4)",
    spreads=True,
)
KIND_EFFECT = Kind(
    "step-without-effect",
    ("O13",),
    Cause.WIRING,
    (Severity.ERROR,),
    meaning=(
        "A parameter has a gradient, a learning rate and an update far above its type's resolution, yet the optimizer's own "
        "step leaves it as it was, three steps running."
    ),
    remedy="handle all parameters in one loop over `param_groups` in the optimizer's step",
    intended="`health.frozen` and `requires_grad_(False)`",
    spreads=True,
)

_STEPS = 3
# A smaller part of the value is not missed before a million steps are made.
_MATTERS = 1e-6
_HALF = 0.5


def check_rounding(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Elements with a gradient, lr above 0, and less than 5 % of them change in three steps running."""
    tracks = [track for track in _swallowed(facts, steps) if not _large(track) and _matters(track)]
    if not tracks:
        return
    names = tuple(track.name for track in tracks)
    worst = min(tracks, key=lambda track: track.share_changed)
    asked = f"the update asked for is about {worst.expected_update:.1e}" if worst.expected_update else f"lr is {worst.lr:g}"
    resolution = f"{worst.resolution:.1e}" if worst.resolution is not None else "unknown"
    yield KIND_ROUNDING.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"{worst.share_changed:.0%} of the elements of {listed(names)} that have a gradient change at a step ({_STEPS} "
        "running)",
        why=f"updates are lost to rounding: {worst.dtype} resolves {resolution} at |p| = {worst.magnitude:.1g}, {asked}",
        remedy="keep float32 (or float64) master weights or raise optimizer.lr",
        intended=f"requires_grad_(False), and health.frozen=[{names[0]}]",
        evidence={
            "share_changed": worst.share_changed,
            "expected_update": worst.expected_update,
            "resolution": worst.resolution,
            "lr": worst.lr,
            "dtype": worst.dtype,
        },
    )


def check_effect(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """The same standstill where rounding cannot explain it."""
    tracks = [track for track in _swallowed(facts, steps) if _large(track)]
    if not tracks:
        return
    names = tuple(track.name for track in tracks)
    first = tracks[0]
    yield KIND_EFFECT.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"{listed(names)} has a gradient and lr {first.lr:g}, yet {first.share_changed:.0%} of its elements change at a "
        f"step ({_STEPS} running), although an update of about {first.expected_update:.1e} is far above the resolution "
        f"{first.resolution:.1e}",
        why="the optimizer's step leaves it out or takes it back",
        remedy="handle all parameters in one loop over param_groups",
        intended=f"requires_grad_(False), and health.frozen=[{names[0]}]",
        evidence={"share_changed": first.share_changed, "expected_update": first.expected_update, "lr": first.lr},
    )


def _swallowed(facts: Facts, steps: Steps) -> list[Track]:
    return [track for track in steps.tracks if track.swallowed_run >= _STEPS and track.name not in facts.declared.frozen]


def _matters(track: Track) -> bool:
    """One that moved before has come to rest; of single tensors only an update that would add up is missed."""
    adds_up = track.expected_update is not None and track.expected_update >= _MATTERS * track.magnitude
    return not track.followed_before and (adds_up or track.group_share >= _HALF)


def _large(track: Track) -> bool:
    return track.expected_update is not None and track.resolution is not None and track.expected_update > 4 * track.resolution


RULES = (
    Rule(KIND_ROUNDING, Steps, check_rounding),
    Rule(KIND_EFFECT, Steps, check_effect),
)
