"""Updates that leave the values as they were: below the resolution of the type, or not applied at all."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps, Track

_STEPS = 3


def check_rounding(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Elements with a gradient, lr above 0, and less than 5 % of them change in three steps running."""
    tracks = [track for track in _swallowed(facts, steps) if not _large(track)]
    if not tracks:
        return
    names = tuple(track.name for track in tracks)
    worst = min(tracks, key=lambda track: track.share_changed)
    asked = f"the update asked for is about {worst.expected_update:.1e}" if worst.expected_update else f"lr is {worst.lr:g}"
    resolution = f"{worst.resolution:.1e}" if worst.resolution is not None else "unknown"
    yield Finding(
        KIND_ROUNDING.id,
        Severity.ERROR,
        facts.step,
        names,
        f"{worst.share_changed:.0%} of the elements of {listed(names)} that have a gradient change at a step ({_STEPS} "
        f"running): updates are lost to rounding: {worst.dtype} resolves {resolution} at |p| = {worst.magnitude:.1g}, "
        f"{asked}; keep float32 (or float64) master weights or raise optimizer.lr. Meant to stand still: "
        f"health.frozen=[{names[0]}] and requires_grad_(False)",
        {
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
    yield Finding(
        KIND_EFFECT.id,
        Severity.ERROR,
        facts.step,
        names,
        f"{listed(names)} has a gradient and lr {first.lr:g}, yet {first.share_changed:.0%} of its elements change at a step "
        f"({_STEPS} running), although an update of about {first.expected_update:.1e} is far above the resolution "
        f"{first.resolution:.1e}: the optimizer's step leaves it out or takes it back; handle all parameters in one loop "
        "over param_groups. Meant to stand still: requires_grad_(False), and "
        f"health.frozen=[{names[0]}]",
        {"share_changed": first.share_changed, "expected_update": first.expected_update, "lr": first.lr},
    )


def _swallowed(facts: Facts, steps: Steps) -> list[Track]:
    return [track for track in steps.tracks if track.swallowed_run >= _STEPS and track.name not in facts.declared.frozen]


def _large(track: Track) -> bool:
    return track.expected_update is not None and track.resolution is not None and track.expected_update > 4 * track.resolution


KIND_ROUNDING = Kind("update-lost-to-rounding", ("N1",), Cause.NUMERICS)
KIND_EFFECT = Kind("step-without-effect", ("O13",), Cause.WIRING)
RULES = (
    Rule(KIND_ROUNDING, Steps, check_rounding),
    Rule(KIND_EFFECT, Steps, check_effect),
)
