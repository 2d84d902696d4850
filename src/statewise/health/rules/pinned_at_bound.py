"""A bound that holds a whole tensor."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps

KIND = Kind(
    "pinned-at-bound",
    ("O13",),
    Cause.WIRING,
    (Severity.ERROR, Severity.WARNING),
    meaning=(
        "In twenty steps running the optimizer moves a tensor, and 98 % of its elements on average (never less than 95 %) are "
        "back at the largest or smallest value when the next step begins: a clamp or projection that lets nothing through. A "
        "warning below that average, and for a tensor of fewer than eight elements. A clamp that holds some of the elements is "
        "its purpose and is left alone."
    ),
    remedy="widen the bound, or scale the initial values into it",
    intended="`health.frozen`",
    spreads=True,
)

_STEPS = 20
_FEW = 8
_NEARLY_ALL = 0.98


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Values at an end of their range at the beginning of each step, although each step moves them."""
    held = [track for track in steps.tracks if track.held_run >= _STEPS and track.name not in facts.declared.frozen]
    for severity, tracks in (
        (Severity.ERROR, [track for track in held if track.size >= _FEW and track.share_held >= _NEARLY_ALL]),
        (Severity.WARNING, [track for track in held if track.size < _FEW or track.share_held < _NEARLY_ALL]),
    ):
        if not tracks:
            continue
        names = tuple(track.name for track in tracks)
        share = min(track.share_held for track in tracks)
        yield KIND.finding(
            severity,
            facts,
            names,
            what=f"{share:.0%} of {listed(names)} begins each step at a bound, {tracks[0].held_run} steps running, although "
            "the optimizer moves it every time",
            why="a clamp or projection outside the optimizer takes every update back, it cannot learn",
            remedy="widen the bound, or start inside it",
            intended=f"requires_grad_(False), and health.frozen=[{names[0]}]",
            evidence={"run": tracks[0].held_run, "share": share},
        )


RULES = (Rule(KIND, Steps, check),)
