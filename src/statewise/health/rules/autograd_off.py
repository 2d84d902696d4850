"""A whole step that ran with autograd switched off."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.graph.signals import WithoutGraph
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "autograd-off",
    ("G6",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning="The loss has no graph, and no module's call of this step ran with autograd on (or it is off at the moment of the "
    "backward pass). Said before the backward pass, which cannot work.",
    remedy="Take the step out of no_grad or inference_mode; switch autograd on again after a validation.",
    intended="There is no way: leave out the backward pass and the update of such a step.",
    example="torch.set_grad_enabled(False)  # for a validation, and never switched on again\nloss = criterion(model(x), y)\n"
    "loss.backward()",
)


def check(facts: Facts, graph: WithoutGraph) -> Iterator[Finding]:
    """Nothing of this step was recorded."""
    if not graph.missing or not graph.disabled:
        return
    names = tuple(fact.name for fact in facts.inventory.trainable if fact.group is not None)
    calls = f"all {graph.calls} calls of modules ran with autograd off" if graph.calls else "autograd is off"
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"the loss of the step after {facts.step} updates has no graph, and {calls}",
        why="no parameter can get a gradient from it",
        remedy="take the step out of torch.no_grad() or inference_mode, or call torch.set_grad_enabled(True) after validation",
        intended="leave out backward and step where nothing is to be learnt",
        evidence={"calls": graph.calls},
    )


RULES = (Rule(KIND, WithoutGraph, check),)
