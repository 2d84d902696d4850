"""Gradients that are there after the backward pass and gone when the optimizer uses them."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.rules.clipped_to_nothing import removed
from statewise.health.signals import Facts, FirstBackward, Loop, Steps

KIND = Kind(
    "gradients-cleared",
    ("O10",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning=(
        "The backward pass fills the gradients, and when the optimizer uses them they are None or exactly zero: they were "
        "cleared in between. Known at the first update where they are None, after three steps where they are zero or where "
        "it begins later."
    ),
    remedy="clear gradients before `backward()` or after `step()`, never in between",
    intended="`health.conditional`",
    example="loss.backward()\noptimizer.zero_grad()  # belongs above backward\noptimizer.step()",
)

_STEPS = 3


def check_first(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Before the first update: filled by the backward pass, and all None now."""
    gone = (first.held & first.after_backward) - first.with_gradient - facts.declared.conditional
    if gone and not first.held & first.with_gradient:
        yield _finding(
            facts, tuple(sorted(gone)), "backward filled the gradients, but all are None when the optimizer steps", 1
        )


def check_loop(facts: Facts, loop: Loop) -> Iterator[Finding]:
    """Updates that find no gradient although a backward pass ran since the one before."""
    if loop.empty_updates >= _STEPS and loop.backward_before_empty:
        names = tuple(fact.name for fact in facts.inventory.trainable if fact.group is not None)
        what = f"{loop.empty_updates} optimizer steps running found no gradient at all, although backward ran"
        yield _finding(facts, names, what, loop.empty_updates)


def check_steps(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Non-zero after backward, or before clipping, and gone at the update; not by a factor of 0, which keeps its sign."""
    excused = facts.declared.conditional | facts.declared.frozen
    chosen = removed(steps)
    if any(track.scaled_to_zero for track in chosen):
        return
    names = tuple(track.name for track in chosen if track.name not in excused)
    if names:
        run = min(max(track.removed_run, track.cleared_run) for track in chosen)
        what = f"the gradient of {listed(names)} is there after backward and gone when the optimizer steps, {run} steps running"
        yield _finding(facts, names, what, run)


def _finding(facts: Facts, names: tuple[str, ...], what: str, run: int) -> Finding:
    single = f"health.conditional=[{names[0]}]" if len(names) == 1 else "health.policy=warn lets it run"
    return KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=what,
        why="something between the backward pass and the step clears it, so nothing learns from this loss",
        remedy="move zero_grad() before backward() or after step()",
        intended=single,
        evidence={"parameters": len(names), "run": run},
    )


RULES = (
    Rule(KIND, FirstBackward, check_first),
    Rule(KIND, Loop, check_loop),
    Rule(KIND, Steps, check_steps),
)
