"""Clipping that leaves nothing of a gradient."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Steps, Track
from statewise.health.steps.signals import Clipping

KIND = Kind(
    "clipped-to-nothing",
    ("O11",),
    Cause.LOOP,
    (Severity.ERROR, Severity.WARNING),
    meaning=(
        "Between the backward pass and the step the gradient is multiplied by 0 (error), or cut to less than a ten-thousandth "
        "of its norm and to a limit below 1e-4, three steps running: error, or a warning under an optimizer that divides by "
        "the gradient's own size. A warning too where huge gradients are cut so far in twenty steps running. The message has "
        "the norm before and after, estimated from a part of the elements."
    ),
    remedy="raise the limit: `gradient_clip_val`, or the argument of `clip_grad_norm_`",
    intended="`health.policy=warn`",
)

_STEPS = 3
# A limit this small is no limit against explosions.
_LIMIT = 1e-4
# Gradients that are huge for a while are what clipping is for.
_STEPS_HUGE = 20


def check_zero(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Multiplied by 0: zeros that have kept their sign."""
    chosen = removed(steps)
    # A zero of a positive number has no sign to tell by, but the rest of the optimizer's gradient has.
    if not any(track.scaled_to_zero for track in chosen):
        return
    names = tuple(track.name for track in chosen if track.name not in facts.declared.frozen)
    if names:
        run = min(max(track.removed_run, track.cleared_run) for track in chosen)
        yield _finding(
            facts,
            Severity.ERROR,
            names,
            f"the gradient of {listed(names)} is non-zero after backward and multiplied by 0 before the optimizer uses it, "
            f"{run} steps running",
            "clipping to a limit of 0 leaves nothing to learn from",
            {"run": run, "after": 0.0},
        )


def removed(steps: Steps) -> list[Track]:
    """Tracks whose gradient is there after the backward pass and gone at the update, often enough."""
    return [track for track in steps.tracks if max(track.removed_run, track.cleared_run) >= _STEPS]


def check_norm(facts: Facts, clipping: Clipping) -> Iterator[Finding]:
    """Cut to next to nothing."""
    tiny = clipping.after < _LIMIT
    # To an optimizer that divides by the gradient's size, a large gradient and its clipped self are the same.
    if clipping.steps < (_STEPS if tiny else _STEPS_HUGE) or (clipping.adaptive and not tiny):
        return
    names = tuple(fact.name for fact in facts.inventory.of_optimizer(clipping.optimizer) if fact.requires_grad)
    share = clipping.after / clipping.before
    why = (
        "the optimizer divides by the gradient's size, so that it may still learn, down to its eps"
        if clipping.adaptive and tiny
        else "the steps are so many times smaller than the learning rate says"
    )
    yield _finding(
        facts,
        Severity.WARNING if clipping.adaptive or not tiny else Severity.ERROR,
        names,
        f"clipping leaves {share:.0e} of the gradient's norm (about {clipping.before:.2g} before, {clipping.after:.2g} after), "
        f"{clipping.steps} steps running",
        why,
        {"run": clipping.steps, "before": clipping.before, "after": clipping.after},
    )


def _finding(
    facts: Facts, severity: Severity, names: tuple[str, ...], what: str, why: str, evidence: dict[str, int | float]
) -> Finding:
    return KIND.finding(
        severity,
        facts,
        names,
        what=what,
        why=why,
        remedy="raise the limit (gradient_clip_val, or the argument of clip_grad_norm_) to the size of usual gradients",
        intended="health.policy=warn lets it run",
        evidence=evidence,
    )


RULES = (
    Rule(KIND, Steps, check_zero),
    Rule(KIND, Clipping, check_norm),
)
