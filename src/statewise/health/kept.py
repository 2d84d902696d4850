"""Which findings are kept: what was said is not said again, a worse word replaces a milder one, what spreads stays one."""

from dataclasses import replace

from statewise.health.findings import Finding, Severity
from statewise.health.rules import KINDS
from statewise.health.verdict import explains

_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
_SPREADING = frozenset(kind.id for kind in KINDS if kind.spreads)


def keep(findings: list[Finding], new: Finding) -> bool:
    """Put a finding among the others; False where it says nothing new (it may still have added to one of them)."""
    if any(_covers(old, new) or explains(old, new) for old in findings):
        return False
    findings[:] = [old for old in findings if not _covers(new, old)]
    for index, old in enumerate(findings):
        if (old.id, old.severity) == (new.id, new.severity) and new.id in _SPREADING:
            findings[index] = replace(old, parameters=tuple(dict.fromkeys(old.parameters + new.parameters)))
            return False
    findings.append(new)
    return True


def _covers(said: Finding, new: Finding) -> bool:
    """Whether `new` says nothing that `said` did not: the same id, no worse, about nothing else."""
    if said.id != new.id or _RANK[new.severity] < _RANK[said.severity]:
        return False
    if not new.parameters or not said.parameters:
        subject = ("name", "place", "pattern", "key")
        same = all(said.evidence.get(key) == new.evidence.get(key) for key in subject)
        return same and said.parameters == new.parameters
    return set(new.parameters) <= set(said.parameters)
