"""A layer asks something of the optimizer that the optimizer does not do."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.parameters import GroupFact, ParameterFact
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "ignored-hint",
    ("B14",),
    Cause.BEHAVIOUR,
    (Severity.WARNING, Severity.INFO),
    meaning=(
        "State-space layers mark parameters for the optimizer (`_no_weight_decay = True`, `_optim = {'lr': ..., "
        "'weight_decay': ...}`), and PyTorch reads no such mark: the group of the parameter says otherwise. Info: the "
        "contract of a layer exempts a parameter from weight decay, and its group has some."
    ),
    remedy="put such parameters into a group of their own with what they ask for",
    intended='delete the mark, or `{"intended": ("ignored-hint",)}` from `health_contract()`',
    example="self.A_log._no_weight_decay = True\ntorch.optim.AdamW(model.parameters(), weight_decay=0.1)  # decays A_log",
)


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """Marks against groups, then contracts against groups."""
    groups = facts.inventory.groups
    held = [(fact, groups[fact.group]) for fact in facts.inventory.parameters if fact.group is not None and fact.requires_grad]
    for key, mark in (("weight_decay", "no weight decay"), ("lr", "an lr of its own")):
        ignored = [(fact, group) for fact, group in held if key in fact.hints and _differs(key, fact, group)]
        if ignored:
            fact, group = ignored[0]
            asked, given = fact.hints[key], _given(key, group)
            yield KIND.finding(
                Severity.WARNING,
                facts,
                [other.name for other, _ in ignored],
                what=f"{listed([other.name for other, _ in ignored])} {'asks' if len(ignored) == 1 else 'ask'} for "
                f"{mark if not asked else f'{key} {asked:g}'}, and {group.label} of the optimizer has {key} {given:g}",
                why="PyTorch does not read marks on tensors (_no_weight_decay, _optim)",
                remedy=f"put it into a group with {key} {asked:g}",
                intended='delete the mark, or return {"intended": ("ignored-hint",)} from health_contract() of the module',
                evidence={"hint": key, "asked": asked, "given": given},
            )
    marked = [(f, g) for f, g in held if f.name in facts.declared.no_weight_decay and g.weight_decay and not f.hints]
    if marked:
        names = [fact.name for fact, _ in marked]
        yield KIND.finding(
            Severity.INFO,
            facts,
            names,
            what=f"{listed(names)}: the layer exempts it from weight decay, and {marked[0][1].label} of the optimizer has "
            f"weight decay {marked[0][1].weight_decay:g}",
            why="decay moves rates and steps towards values that mean nothing",
            remedy="put it into a group with weight_decay 0 (statewise.optim.parameter_groups does)",
            intended='return {"intended": ("ignored-hint",)} from health_contract() of the module',
            evidence={"hint": "contract", "given": marked[0][1].weight_decay},
        )


def _differs(key: str, fact: ParameterFact, group: GroupFact) -> bool:
    asked = fact.hints[key]
    # Under a schedule the group begins with its first factor: what was configured counts as well.
    rates = {group.lr, group.initial_lr} if key == "lr" else {group.weight_decay}
    return not any(rate is not None and abs(rate - asked) <= 1e-6 * abs(asked) for rate in rates)


def _given(key: str, group: GroupFact) -> float:
    if key == "weight_decay":
        return group.weight_decay
    return group.lr if group.initial_lr is None else group.initial_lr


RULES = (Rule(KIND, Wiring, check),)
