"""Gradients that exist, or should, and never reach the optimizer's step; steps that never come."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward, Loop, Steps

# training_step may return None for a batch without targets now and then.
_EMPTY_AT_START = 3
_EMPTY_LATER = 20
_BACKWARDS = 3
# A manual loop may accumulate over as many batches.
_BACKWARDS_MANUAL = 20
_SKIPPED = 10


def check_first(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """The first update is about to run and not one of its parameters has a gradient."""
    if not first.held or first.with_gradient:
        return
    names = tuple(sorted(first.held - facts.declared.conditional))
    if first.manual and first.backwards == 0:
        yield _finding(
            facts,
            names,
            "the optimizer steps, but no backward pass ran and no parameter has a .grad: gradients were not computed, or "
            "the result of autograd.grad was dropped; call self.manual_backward(loss) before optimizer.step(), or assign "
            "what autograd.grad returns to .grad",
        )
    elif first.held & first.after_backward:
        yield _finding(
            facts,
            names,
            "backward filled the gradients, but all are None when the optimizer steps: they were cleared in between; move "
            "zero_grad() before backward()",
        )
    elif first.held & first.reached:
        yield _finding(
            facts,
            names,
            "the loss reaches the parameters, but none has a .grad when the optimizer steps: backward did not run on them "
            "before the step; call backward(), then optimizer.step(), then zero_grad()",
        )


def check_loop(facts: Facts, loop: Loop) -> Iterator[Finding]:
    """Counted over the run: updates without gradients, and backward passes without updates."""
    started = loop.updates > loop.empty_updates
    if loop.empty_updates >= (_EMPTY_LATER if started else _EMPTY_AT_START):
        if loop.backward_before_empty:
            why = "although backward ran: the gradients were cleared, or never assigned"
        elif loop.manual:
            why = "and no backward pass ran: gradients were not computed, or the result of autograd.grad was dropped"
        else:
            why = "and no backward pass ran: training_step returned None"
        yield _finding(
            facts,
            _trained(facts),
            f"{loop.empty_updates} optimizer steps running found no gradient at all, {why}; return the loss (or call "
            "self.manual_backward(loss)) before each step",
        )
    if loop.updates == 0 and not loop.scaler and loop.attempts == 0:
        limit = _BACKWARDS_MANUAL if loop.manual else max(_BACKWARDS, 2 * loop.accumulate)
        whole_epoch = loop.epoch_ended and loop.backwards > loop.accumulate
        if loop.backwards >= limit or (whole_epoch and loop.backwards >= _BACKWARDS):
            yield _finding(
                facts,
                _trained(facts),
                f"{loop.backwards} backward passes and not one optimizer step: the gradients are computed and dropped; call "
                "optimizer.step() (in an optimizer_step override: optimizer.step(closure=optimizer_closure))",
            )
    elif loop.attempts - loop.updates >= _SKIPPED and loop.updates == 0:
        yield _finding(
            facts,
            _trained(facts),
            f"{loop.attempts} optimizer steps were announced and none was made: each was skipped (a GradScaler that finds "
            "infinities, or an optimizer that declines); look for non-finite gradients",
        )


def check_removed(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Non-zero after backward, exactly zero at the update."""
    names = tuple(track.name for track in steps.tracks if track.removed)
    if names:
        yield _finding(
            facts,
            names,
            "gradients are non-zero after backward and exactly zero when the optimizer uses them: clipping (a limit of 0) "
            "or zero_grad() in between removes them; correct the limit or the order",
        )


def _trained(facts: Facts) -> tuple[str, ...]:
    return tuple(fact.name for fact in facts.inventory.trainable if fact.group is not None)


def _finding(facts: Facts, names: tuple[str, ...], text: str) -> Finding:
    how = "health.policy=warn lets it run" if len(names) != 1 else f"health.conditional=[{names[0]}]"
    return Finding(KIND.id, Severity.ERROR, facts.step, names, f"{text}. Intended: {how}", {"parameters": len(names)})


KIND = Kind("gradients-not-applied", ("O10", "O11", "O12", "O8", "O9"), Cause.LOOP)
RULES = (
    Rule(KIND, FirstBackward, check_first),
    Rule(KIND, Loop, check_loop),
    Rule(KIND, Steps, check_removed),
)
