"""The rules are asked about the news of a run; their findings are kept, and so is which of them were ever asked."""

from collections.abc import Mapping
from typing import Any

from statewise.health.declared import Declared
from statewise.health.findings import Finding, Severity
from statewise.health.kept import keep
from statewise.health.rule import Rule
from statewise.health.rules import KINDS, RULES
from statewise.health.signals import Facts, Signal

_CONCERNED: dict[type[Signal], list[tuple[int, Rule]]] = {}
for _index, _rule in enumerate(RULES):
    _CONCERNED.setdefault(_rule.needs, []).append((_index, _rule))


class Judging:
    """What all rules have found so far.

    Attributes:
        findings: in the order in which they were made.
        unable: kinds of news that will not come, and why.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.unable: dict[type[Signal], str] = {}
        self._ran: set[int] = set()

    def ask(self, facts: Facts, signal: Signal) -> list[Finding]:
        """What the rules that this news concerns find, where it is new."""
        found: list[Finding] = []
        for index, rule in _CONCERNED.get(type(signal), ()):
            self._ran.add(index)
            found += [finding for finding in rule.check(facts, signal) if self.add(finding, facts.declared)]
        return found

    def add(self, finding: Finding, declared: Declared) -> bool:
        """Keep a finding unless it was said before or is declared intended; True if it is new."""
        return not declared.accepts(finding.id, finding.parameters) and keep(self.findings, finding)

    def nothing_to_say(self, *signals: type[Signal]) -> None:
        """There is no such news, because there is nothing to report: that is an answer too."""
        self._ran.update(index for kind in signals for index, _ in _CONCERNED.get(kind, ()))

    @property
    def settled(self) -> set[str]:
        """Parameters of which something is said already."""
        return {name for f in self.findings if f.severity is not Severity.INFO for name in f.parameters}

    def checks(self, unable: Mapping[type[Signal], str]) -> list[dict[str, Any]]:
        """Of each kind of finding, whether its rules were asked, else why not. unable: what observers have to add."""
        reasons = {**self.unable, **unable}
        checks = []
        for kind in KINDS:
            rules = [(index, rule) for index, rule in enumerate(RULES) if rule.kind is kind]
            waiting = [rule for index, rule in rules if index not in self._ran]
            ran = len(waiting) < len(rules)
            why = "" if ran else reasons.get(waiting[0].needs, waiting[0].needs.waiting)
            checks.append({"name": kind.id, "ran": ran, "why": why})
        return checks
