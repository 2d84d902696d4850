"""Declared frozen, but the optimizer will move it."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """A declared parameter with requires_grad in a group whose lr is, or will be, above 0."""
    groups = facts.inventory.groups
    names = tuple(
        fact.name
        for fact in facts.inventory.parameters
        if fact.name in facts.declared.frozen
        and fact.requires_grad
        and fact.group is not None
        and (groups[fact.group].lr > 0 or (groups[fact.group].initial_lr or 0) > 0)
    )
    if names:
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            names,
            f"{listed(names)}: trainable though declared frozen (health.frozen): requires_grad is True and the optimizer "
            "holds it, so every step will move it; call requires_grad_(False) on it before the fit starts. "
            "Meant to train: take it out of health.frozen",
        )


KIND = Kind("frozen-but-trains", ("R7",), Cause.WIRING)
RULES = (Rule(KIND, Wiring, check),)
