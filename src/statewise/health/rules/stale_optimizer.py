"""The optimizer holds tensors that are no longer, or never were, the module's parameters."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.parameters import ParameterFact, Stranger
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "stale-optimizer",
    ("O2", "O3"),
    Cause.WIRING,
    meaning=(
        "The optimizer holds tensors that are not the module's, of the shape and type of parameters that no group holds: "
        "they were replaced, or made, after the optimizer was, or it was built over another copy of the model. Identity is "
        "checked at every batch."
    ),
    remedy="build all layers before `configure_optimizers`",
    intended="`requires_grad_(False)` on the new parameters, or `health.frozen`",
    example="optimizer = Adam(model.parameters())\nmodel.head = nn.Linear(16, 10)  # the optimizer keeps the old head",
)


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """A trainable parameter in no group, and a foreign tensor of its shape in one."""
    inventory = facts.inventory
    pairs = pair_stale(facts)
    if not pairs:
        return
    names = tuple(new.name for _, new in pairs)
    group = inventory.groups[pairs[0][0].group]
    own = [fact for fact in inventory.parameters if fact.group is not None]
    if own:
        why = "they were replaced, or made, after configure_optimizers ran"
    else:
        why = "it holds none of this module's own tensors, so it was built over another copy of the model"
    plural = len(names) > 1
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"the optimizer ({group.kind}, {group.label}) holds {len(pairs)} other tensor{'s' if plural else ''} of the shape"
        f" of {listed(names)} in {'their' if plural else 'its'} place",
        why=f"{why}, and every step moves tensors that the loss does not use",
        remedy="build the optimizer from the final module (create or replace layers before configure_optimizers)",
        intended=f"requires_grad_(False), or health.frozen=[{names[0]}]",
        evidence={"stale": len(pairs), "own": len(own), "shapes": [list(old.shape) for old, _ in pairs]},
    )


def pair_stale(facts: Facts) -> list[tuple[Stranger, ParameterFact]]:
    """Match tensors that only the optimizer knows with missing parameters of the same shape and type, in order.

    Tensors that the module holds outside its tree are not stale: they are hidden, and trained.
    """
    hidden = {tensor.key for tensor in facts.hidden}
    strangers = [stranger for stranger in facts.inventory.strangers if stranger.key not in hidden]
    pairs = []
    for fact in facts.inventory.trainable:
        if fact.group is not None or fact.name in facts.declared.frozen:
            continue
        for stranger in strangers:
            if (stranger.shape, stranger.dtype) == (fact.shape, fact.dtype):
                pairs.append((stranger, fact))
                strangers.remove(stranger)
                break
    return pairs


RULES = (Rule(KIND, Wiring, check),)
