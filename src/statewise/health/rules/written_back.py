"""Updates that are undone outside the optimizer."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps

_STEPS = 3
# A single number held at its bound (a clamped temperature) looks the same for a while.
_STEPS_SCALAR = 20


def check(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Each step starts from the very values of the step before, although that step had changed them."""
    undone = [t for t in steps.tracks if t.written_back_run >= (_STEPS if t.size > 1 else _STEPS_SCALAR)]
    undone = [track for track in undone if track.name not in facts.declared.frozen]
    if not undone:
        return
    names = tuple(track.name for track in undone)
    scalar = all(track.size == 1 for track in undone)
    yield Finding(
        KIND.id,
        Severity.WARNING if scalar else Severity.ERROR,
        facts.step,
        names,
        f"the optimizer moves {listed(names)}, then the old value is written back outside the optimizer: "
        f"{undone[0].written_back_run} steps running began with exactly the same values; look for copy_, .data = or load "
        "in hooks, callbacks and forward. Held on purpose: requires_grad_(False), and "
        f"health.frozen=[{names[0]}]",
        {"run": undone[0].written_back_run},
    )


KIND = Kind("written-back", ("O13", "O14"), Cause.WIRING)
RULES = (Rule(KIND, Steps, check),)
