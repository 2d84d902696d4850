"""Gradients that nobody computes, or that are computed and dropped, before the optimizer steps."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward, Loop

KIND = Kind(
    "gradients-not-applied",
    ("O8",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning=(
        "The optimizer steps and not one of its parameters has a `.grad`, because no backward pass ran on them: the loss was "
        "not returned, `backward()` was not called, or what `autograd.grad` returned was dropped. Known before the first "
        "update in a loop of the user's own; three updates running where `training_step` returns nothing."
    ),
    remedy="return the loss from `training_step`, or call `backward()` before `step()`",
    intended="a batch without a loss now and then is left alone; `health.policy=warn` lets a whole run go on",
    example="gradients = torch.autograd.grad(loss, parameters)  # never assigned to .grad\noptimizer.step()",
)

# training_step may return None for a batch without targets now and then.
_EMPTY_AT_START = 3
_EMPTY_LATER = 20


def check_first(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """The first update is about to run, not one of its parameters has a gradient, and none was there before."""
    if not first.held or first.with_gradient or first.held & first.after_backward:
        return
    names = tuple(sorted(first.held - facts.declared.conditional))
    if first.manual and first.backwards == 0:
        yield KIND.finding(
            Severity.ERROR,
            facts,
            names,
            what="the optimizer is about to step, but no backward pass ran and no parameter has a .grad",
            why="gradients were not computed, or the result of autograd.grad was dropped, so nothing moves",
            remedy="call self.manual_backward(loss) before optimizer.step(), or assign what autograd.grad returns to .grad",
            intended=_intended(names),
            evidence={"parameters": len(names), "backwards": 0},
        )
    elif first.held & first.reached:
        yield KIND.finding(
            Severity.ERROR,
            facts,
            names,
            what="the loss reaches the parameters, but none has a .grad when the optimizer steps",
            why="backward did not run on them before the step, so nothing moves",
            remedy="call backward(), then optimizer.step(), then zero_grad()",
            intended=_intended(names),
            evidence={"parameters": len(names), "backwards": first.backwards},
        )


def check_loop(facts: Facts, loop: Loop) -> Iterator[Finding]:
    """Counted over the run: updates without any gradient, and without a backward pass before them."""
    started = loop.updates > loop.empty_updates
    if loop.empty_updates < (_EMPTY_LATER if started else _EMPTY_AT_START) or loop.backward_before_empty:
        return
    names = tuple(fact.name for fact in facts.inventory.trainable if fact.group is not None)
    cause = "gradients were not computed, or the result of autograd.grad was dropped" if loop.manual else "no loss was returned"
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"{loop.empty_updates} optimizer steps running found no gradient at all, and no backward pass ran before them",
        why=f"{cause}, so nothing moves",
        remedy="return the loss from training_step (or call self.manual_backward(loss)) before each step",
        intended=_intended(names),
        evidence={"parameters": len(names), "empty_updates": loop.empty_updates},
    )


def _intended(names: tuple[str, ...]) -> str:
    return "health.policy=warn lets it run" if len(names) != 1 else f"health.conditional=[{names[0]}]"


RULES = (
    Rule(KIND, FirstBackward, check_first),
    Rule(KIND, Loop, check_loop),
)
