"""Trainable parameters that no optimizer holds."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.parameters import Inventory, ParameterFact
from statewise.health.rule import Kind, Rule
from statewise.health.rules.stale_optimizer import pair_stale
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "not-in-optimizer",
    ("O1", "R6"),
    Cause.WIRING,
    meaning="A parameter with requires_grad is in no group of any optimizer, by identity: no step can move it.",
    remedy="hand `self.parameters()` to the optimizer, or add a group",
    intended="`requires_grad_(False)`, or `health.frozen`",
    example='groups = [p for name, p in self.named_parameters() if name.endswith("weight")]\n'
    "optimizer = torch.optim.AdamW(groups)  # the biases are in no group",
)


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """Parameters with requires_grad whose identity is in no group, and no older copy of them either."""
    inventory = facts.inventory
    replaced = {new.name for _, new in pair_stale(facts)}
    missing = [f for f in missing_parameters(facts) if f.name not in replaced]
    if not missing:
        return
    names = tuple(fact.name for fact in missing)
    total = sum(fact.size for fact in inventory.parameters) or 1
    share = sum(fact.size for fact in missing) / total
    held = [fact for fact in inventory.parameters if fact.group is not None]
    if not inventory.optimizers:
        state = "no optimizer exists (configure_optimizers returned none)"
    elif not held and not inventory.strangers:
        state = "the optimizer holds no tensor at all"
    elif held and not any(fact.trainable for fact in held):
        state = f"the optimizer holds only frozen tensors ({len(held)} with requires_grad=False)"
    else:
        state = f"the optimizer holds {len(held)} of {len(inventory.parameters)} parameters"
    yield KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"{_described(inventory, missing)} ({len(missing)} trainable {'tensor' if len(missing) == 1 else 'tensors'}, "
        f"{share:.0%} of the weights) {'is' if len(missing) == 1 else 'are'} in no optimizer",
        why=f"{state}, so no step can move them",
        remedy="hand the optimizer self.parameters(), or add a group for them",
        intended=f"requires_grad_(False), or health.frozen=[{missing[0].name}]",
        evidence={"missing": list(names), "share": share, "held": len(held), "optimizers": list(inventory.optimizers)},
    )


def missing_parameters(facts: Facts) -> list[ParameterFact]:
    """Trainable, not declared frozen, in no group."""
    frozen = facts.declared.frozen
    return [fact for fact in facts.inventory.trainable if fact.group is None and fact.name not in frozen]


def _described(inventory: Inventory, missing: list[ParameterFact]) -> str:
    """`core.*` where all of a module is missing, else the names."""
    names = {fact.name for fact in missing}
    for module in sorted(inventory.modules, key=lambda m: m.path.count(".")):
        below = {f.name for f in inventory.trainable if f.name.startswith(f"{module.path}.")}
        if module.path and below and below == names and len(names) > 1:
            return f"`{module.path}.*`"
    return listed(sorted(names))


RULES = (Rule(KIND, Wiring, check),)
