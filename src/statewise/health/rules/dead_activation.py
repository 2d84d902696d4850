"""Hidden units that let no gradient through."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.graph.signals import DeadActivation, DeadActivations
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "dead-activation",
    ("B1",),
    Cause.GRAPH,
    (Severity.ERROR, Severity.WARNING),
    meaning="At least 95 % of the elements of an activation between two layers are off (ReLU and its kin: the same units for "
    "every sample) or saturated (tanh, sigmoid) in three batches running. Read from what the graph saved, so that functions "
    "count as well as modules. Error where parameters have no other way to the loss and, for five steps, gradients of "
    "exactly zero. "
    "Sparse units, gates that choose, and the last activation of a network are left alone.",
    remedy="Look at the bias and the scale of what is fed in; lower the learning rate; normalise before the activation.",
    intended='`return {"intended": ("dead-activation",)}` from the module\'s `health_contract()`.',
    example="h = torch.relu(layer(x) - 100.0)  # never above 0",
)
_FULL_NAMES = {"Relu": "ReLU", "Gelu": "GELU", "Silu": "SiLU", "Elu": "ELU"}


def check(facts: Facts, signal: DeadActivations) -> Iterator[Finding]:
    """One finding for each activation."""
    for dead in signal.dead:
        names = tuple(dict.fromkeys((*dead.fed_by, *dead.lost)))
        kind = _FULL_NAMES.get(dead.name, dead.name.lower())
        where = f" in `{dead.place}`" if dead.place else ""
        fed = f" (fed by {listed(dead.fed_by)})" if dead.fed_by else ""
        yield KIND.finding(
            Severity.ERROR if dead.lost else Severity.WARNING,
            facts,
            names or ((dead.place,) if dead.place else ()),
            what=f"{dead.share:.1%} of the elements of a {kind}{where}{fed} are {_state(dead)} in {dead.looks} batches running",
            why="next to no gradient passes through it"
            + (f", and the gradient of {listed(dead.lost)} is exactly zero" if dead.lost else ""),
            remedy="look at the bias and the scale of what is fed in, and normalise before the activation",
            intended='return {"intended": ("dead-activation",)} from the module\'s health_contract()',
            evidence={
                "module": dead.place,
                "operation": dead.name,
                "share": dead.share,
                "looks": dead.looks,
                "consequences": list(dead.starved),
            },
        )


def _state(dead: DeadActivation) -> str:
    return "saturated" if dead.two_sided else "off"


RULES = (Rule(KIND, DeadActivations, check),)
