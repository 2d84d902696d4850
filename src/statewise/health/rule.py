"""A rule: the signal it judges, and what follows from it; a kind: what all findings of one id have in common."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.signals import Facts, Signal


@dataclass(frozen=True)
class Kind:
    """All findings of one id. The texts are its chapter in docs/health.md, which is written from them.

    Args:
        id: kebab-case words.
        catalogue: the faults of the catalogue that it answers.
        cause: where it stands in the order in which causes explain one another.
        severities: those that it can have, the worst first.
        meaning: what is true when it is reported, and the evidence.
        remedy: what to do about it.
        intended: how to declare that it is meant.
        example: code that causes it, for those that people meet most often.
        spreads: one cause that shows in one parameter after another: those found later are added to the first finding.
    """

    id: str
    catalogue: tuple[str, ...]
    cause: Cause
    severities: tuple[Severity, ...] = (Severity.ERROR,)
    meaning: str = ""
    remedy: str = ""
    intended: str = ""
    example: str = ""
    spreads: bool = False

    def finding(
        self,
        severity: Severity,
        facts: Facts,
        parameters: Iterable[str],
        *,
        what: str,
        why: str,
        remedy: str,
        intended: str,
        evidence: Mapping[str, Any] | None = None,
    ) -> Finding:
        """A finding whose message has four parts: what is true, why it matters, the remedy, how to declare it intended."""
        if severity not in self.severities:
            raise ValueError(f"{self.id} does not declare the severity {severity.value}")
        return Finding(
            self.id,
            severity,
            facts.step,
            tuple(parameters),
            f"{what}: {why}; {remedy}. Intended: {intended}",
            dict(evidence or {}),
        )


@dataclass(frozen=True)
class Rule:
    """One question asked of a run whenever there is news of the kind `needs`: check(facts, signal) yields findings."""

    kind: Kind
    needs: type[Signal]
    check: Callable[[Facts, Any], Iterable[Finding]]
