"""Declared frozen, but an optimizer moves it, or will."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.observers.declared_frozen import FrozenMoves
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "frozen-but-trains",
    ("R7",),
    Cause.WIRING,
    meaning=(
        "A parameter that `health.frozen` names has requires_grad on and an optimizer holds it, or an optimizer has moved it. "
        "Looked at when the fit starts and as updates are made, so that something that thaws it later is seen as well."
    ),
    remedy="`requires_grad_(False)` before the fit starts",
    intended="take it out of `health.frozen`",
    example="def train(self, mode=True):  # never called: a fit keeps the modes that it finds\n"
    "    self.backbone.requires_grad_(False)",
)


def check_wiring(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
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
        yield _finding(facts, names, "requires_grad is True and an optimizer holds it, so every step will move it")


def check_updates(facts: Facts, moves: FrozenMoves) -> Iterator[Finding]:
    """Thawed since the fit began, or moved by a gradient that was left on it."""
    if moves.asking:
        why = f"at step {facts.step} it has requires_grad=True and a gradient, and its optimizer steps"
        yield _finding(facts, moves.asking, why)
    if moves.moved:
        why = f"it moved at step {facts.step}, by a gradient that was still on it when it was frozen"
        yield _finding(facts, moves.moved, why, "set its .grad to None when you freeze it")


def _finding(facts: Facts, names: tuple[str, ...], why: str, remedy: str = "") -> Finding:
    return KIND.finding(
        Severity.ERROR,
        facts,
        names,
        what=f"{listed(names)}: trainable though declared frozen (health.frozen)",
        why=why,
        remedy=remedy or "call requires_grad_(False) on it before the fit starts, and keep it so",
        intended="take it out of health.frozen",
    )


RULES = (Rule(KIND, Wiring, check_wiring), Rule(KIND, FrozenMoves, check_updates))
