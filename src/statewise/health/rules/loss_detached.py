"""The loss that is differentiated has lost its way to every parameter."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.graph.signals import Reach, WithoutGraph
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward

KIND = Kind(
    "loss-detached",
    ("G3",),
    Cause.LOOP,
    (Severity.ERROR,),
    meaning="The loss that is differentiated has no graph, or one without a single parameter, although the modules ran with "
    "autograd on. Seen before the first update; later in a run after three steps without any gradient.",
    remedy="Return the loss as it was computed: without detach(), item(), numpy() or torch.tensor(...) on the way.",
    intended="There is no way: `health.policy=warn` lets the run go on.",
    example="loss = criterion(model(x), y)\nloss = loss.detach().requires_grad_()  # or torch.tensor(loss.item(), ...)\n"
    "loss.backward()",
)
# A batch without anything to learn from may give such a loss now and then.
_STEPS = 3
_REMEDY = "return the original tensor"
_INTENDED = "there is no way to declare it; health.policy=warn lets it run"


def check_first(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Backward ran over a graph without a single parameter, registered or hidden."""
    if first.backwards == 0 or not first.complete or not first.held:
        return
    if first.reached or first.with_gradient or any(leaf.hidden or leaf.is_parameter for leaf in first.aliens):
        return
    # Where the modules show the place of a cut, graph-cut names it.
    if any(call.in_reached or call.out_reached for call in first.calls):
        return
    yield _finding(facts, sorted(first.held), "", {"leaves": [list(leaf.shape) for leaf in first.aliens]})


def check_later(facts: Facts, reach: Reach) -> Iterator[Finding]:
    """Every parameter had gradients, and now the graph holds none of them."""
    if not reach.empty or not reach.stopped or any(call.in_reached or call.out_reached for call in reach.calls):
        return
    run = min(reach.stopped.values())
    if run >= _STEPS:
        yield _finding(facts, sorted(reach.stopped), f" since step {reach.steps + 1 - run}", {"run": run})


def check_graph(facts: Facts, graph: WithoutGraph) -> Iterator[Finding]:
    """The loss has no graph at all, and autograd is not what was off."""
    if graph.missing and not graph.disabled:
        names = [fact.name for fact in facts.inventory.trainable if fact.group is not None]
        yield _finding(facts, names, "", {"leaves": []})


def _finding(facts: Facts, names: list[str], since: str, evidence: dict[str, object]) -> Finding:
    return KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"the graph of the loss that is differentiated holds no parameter{since}",
        why="the loss was rebuilt as a new tensor (detach, item, torch.tensor) after it was computed, or computed without "
        "autograd, and nothing can learn from it",
        remedy=_REMEDY,
        intended=_INTENDED,
        evidence=evidence,
    )


RULES = (
    Rule(KIND, FirstBackward, check_first),
    Rule(KIND, Reach, check_later),
    Rule(KIND, WithoutGraph, check_graph),
)
