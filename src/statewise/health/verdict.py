"""From findings to a verdict: primary causes only, symptoms collapsed into them."""

from collections.abc import Sequence
from typing import Any

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rules import KINDS

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
_CAUSE = {kind.id: kind.cause for kind in KINDS}


def primary(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that no deeper cause explains, worst first.

    A finding is explained by one with a deeper cause (or an equal one, seen earlier), of the same severity or worse, that
    concerns all of its parameters. Findings without parameters stand for themselves.
    """
    return sorted(
        (finding for finding in findings if not any(explains(other, finding) for other in findings)),
        key=lambda finding: (_ORDER[finding.severity], _cause(finding), finding.step),
    )


def verdict(findings: Sequence[Finding]) -> str:
    """ "error", "warning" or "healthy": the worst severity, facts aside."""
    worst = {finding.severity for finding in findings}
    if Severity.ERROR in worst:
        return "error"
    return "warning" if Severity.WARNING in worst else "healthy"


def report(findings: Sequence[Finding], checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What health.json holds."""
    shown = primary(findings)
    return {"verdict": verdict(shown), "findings": [f.as_dict() for f in shown], "checks": list(checks)}


def explains(cause: Finding, symptom: Finding) -> bool:
    """Whether one finding makes another superfluous."""
    deeper = _cause(cause) < _cause(symptom) or (_cause(cause) == _cause(symptom) and cause.step < symptom.step)
    return (
        bool(symptom.parameters)
        and cause is not symptom
        and deeper
        and _ORDER[cause.severity] <= _ORDER[symptom.severity]
        and set(symptom.parameters) <= set(cause.parameters)
    )


def _cause(finding: Finding) -> Cause:
    return _CAUSE.get(finding.id, Cause.BEHAVIOUR)
