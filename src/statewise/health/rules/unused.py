"""Parameters of modules that are never called."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Presence

# An expert or a dropped layer may sit out a few batches.
_BATCHES = 20
_BATCHES_OF_AN_EPOCH = 12


def check(facts: Facts, presence: Presence) -> Iterator[Finding]:
    """No gradient in any batch, and the owner was not seen in the forward pass."""
    names = tuple(sorted(presence.silent - facts.declared.conditional - facts.declared.frozen))
    if not names:
        return
    enough = presence.batches >= _BATCHES or (presence.epoch_ended and presence.batches >= _BATCHES_OF_AN_EPOCH)
    yield Finding(
        KIND.id,
        Severity.WARNING if enough else Severity.INFO,
        facts.step,
        names,
        f"{listed(names)} took no part in {presence.batches} batch{'es' if presence.batches > 1 else ''}: the module was not "
        "called; call it in forward, or remove it (distributed training would fail here). Used only sometimes: "
        f"health.conditional=[{names[0]}]",
        {"batches": presence.batches},
    )


KIND = Kind("unused", ("G5",), Cause.GRAPH)
RULES = (Rule(KIND, Presence, check),)
