"""Parameters of modules that are never called, or no longer."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.graph.signals import Reach
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Presence

# An expert or a dropped layer may sit out a few batches.
_BATCHES = 20
_BATCHES_OF_AN_EPOCH = 12
KIND = Kind(
    "unused",
    ("G5",),
    Cause.GRAPH,
    (Severity.WARNING, Severity.INFO),
    meaning="No gradient in any of twenty batches, or of an epoch of at least twelve, and the module was not called. A fact "
    "before that, and where it took part once and has not been called in twenty steps running: a router may give an expert up.",
    remedy="Call it in forward, or remove it: distributed training fails over parameters that take no part.",
    intended="`health.conditional` names what is used only sometimes.",
    example="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.aux = nn.Linear(4, 4)  # forward never calls it",
)

_UNCALLED, _CALL = "the module was not called", "call it in forward, or remove it"
_CALLED, _USE = "the module was called, but no gradient arrives", "use it in what the loss is made of, or remove it"
_UNSEEN = "no gradient arrives; whether its module is called cannot be seen, because the forward pass around it is compiled"
_EAGER = "run once without torch.compile to see whether it is called, and where its gradient is lost"


def check(facts: Facts, presence: Presence) -> Iterator[Finding]:
    """No gradient in any batch, and the owner was not seen in the forward pass."""
    names = tuple(sorted(presence.silent - facts.declared.conditional - facts.declared.frozen))
    if not names:
        return
    enough = presence.batches >= _BATCHES or (presence.epoch_ended and presence.batches >= _BATCHES_OF_AN_EPOCH)
    count = f"{presence.batches} batch{'es' if presence.batches > 1 else ''}"
    severity = Severity.WARNING if enough else Severity.INFO
    modules = {fact.name: fact.module for fact in facts.inventory.parameters}
    hidden = tuple(name for name in names if name in presence.unseen)
    called = tuple(name for name in names if name not in hidden and modules.get(name) in presence.called)
    rest = tuple(name for name in names if name not in hidden and name not in called)
    for group, why, remedy in ((rest, _UNCALLED, _CALL), (called, _CALLED, _USE), (hidden, _UNSEEN, _EAGER)):
        if group:
            yield _finding(facts, group, f"took no part in {count}", severity, presence.batches, why, remedy)


def check_later(facts: Facts, reach: Reach) -> Iterator[Finding]:
    """It took part, and for twenty steps nobody called it: perhaps a router gave it up."""
    called = {call.name for call in reach.calls}
    modules = {fact.name: fact.module for fact in facts.inventory.parameters}
    names = tuple(
        sorted(
            name
            for name, run in reach.stopped.items()
            if run >= _BATCHES and name not in facts.declared.conditional and modules.get(name) not in called
        )
    )
    if names and called:
        run = min(reach.stopped[name] for name in names)
        since = f"took no part in {run} steps running, since step {reach.steps + 1 - run}"
        yield _finding(facts, names, since, Severity.INFO, run)


def _finding(
    facts: Facts,
    names: tuple[str, ...],
    what: str,
    severity: Severity,
    batches: int,
    why: str = _UNCALLED,
    remedy: str = _CALL,
) -> Finding:
    return KIND.finding(
        severity,
        facts,
        names,
        what=f"{listed(names)} {what}",
        why=f"{why}; so it cannot learn, and distributed training would fail here",
        remedy=remedy,
        intended=f"used only sometimes: health.conditional=[{names[0]}]",
        evidence={"batches": batches},
    )


RULES = (
    Rule(KIND, Presence, check),
    Rule(KIND, Reach, check_later),
)
