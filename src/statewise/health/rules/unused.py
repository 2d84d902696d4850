"""Parameters of modules that are never called."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Rule
from statewise.health.signals import Facts

# An expert or a dropped layer may sit out a few batches.
_BATCHES = 20
_BATCHES_OF_AN_EPOCH = 12


def check(facts: Facts) -> Iterator[Finding]:
    """No gradient in any batch, and the owner was not seen in the forward pass."""
    presence = facts.presence
    if presence is None:
        return
    names = tuple(sorted(presence.silent - facts.declared.conditional - facts.declared.frozen))
    if not names:
        return
    enough = presence.batches >= _BATCHES or (presence.epoch_ended and presence.batches >= _BATCHES_OF_AN_EPOCH)
    yield Finding(
        RULE.id,
        Severity.WARNING if enough else Severity.INFO,
        facts.step,
        names,
        f"{listed(names)} took no part in {presence.batches} batch{'es' if presence.batches > 1 else ''}: the module was not "
        "called; call it in forward, or remove it (distributed training would fail here). Used only sometimes: "
        f"health.conditional=[{names[0]}]",
        {"batches": presence.batches},
    )


RULE = Rule("unused", ("G5",), Cause.GRAPH, "presence", check)
