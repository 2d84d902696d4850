"""From findings to a verdict: primary causes only, symptoms collapsed into them."""

from collections.abc import Sequence
from typing import Any

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rules import KINDS

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
_CAUSE = {kind.id: kind.cause for kind in KINDS}
# What follows from a finding although it is as deep, or names no parameters: it concerns the whole run.
_WITHOUT_GRADIENTS = frozenset(
    {"gradients-not-applied", "gradients-cleared", "no-optimizer-step", "ignored-input", "ignored-target"}
)
_SYMPTOMS = {
    "autograd-off": _WITHOUT_GRADIENTS | {"loss-detached"},
    "loss-detached": _WITHOUT_GRADIENTS,
    "constant-loss": frozenset({"ignored-input", "ignored-target"}),
    "dead-activation": frozenset({"ignored-input"}),
    # The weights that are multiplied with an input of zeros.
    "ignored-input": frozenset({"zero-gradient"}),
}
# More than people read.
_SHOWN = 3


def primary(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that no deeper cause explains, worst first.

    A finding is explained by one with a deeper cause (or an equal one, seen earlier), of the same severity or worse, that
    concerns all of its parameters. Findings without parameters stand for themselves, but for what is known to follow.
    """
    return sorted(
        (finding for finding in findings if not any(explains(other, finding) for other in findings)),
        key=lambda finding: (_ORDER[finding.severity], _cause(finding), finding.step),
    )


def foremost(findings: Sequence[Finding]) -> list[Finding]:
    """What is shown to people: at most three, the worst and deepest first, facts only where there is nothing else."""
    found = primary(findings)
    return ([finding for finding in found if finding.severity is not Severity.INFO] or found)[:_SHOWN]


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
    if cause is symptom or _ORDER[cause.severity] > _ORDER[symptom.severity]:
        return False
    known = symptom.id in _SYMPTOMS.get(cause.id, ())
    if not symptom.parameters or not cause.parameters:
        return known
    same = _cause(cause) == _cause(symptom)
    deeper = _cause(cause) < _cause(symptom) or (same and (known or cause.step < symptom.step))
    # A weight that is fed zeros is no part of the fault, but suffers from it.
    concerned = {*cause.parameters, *cause.evidence.get("consequences", ())}
    return deeper and set(symptom.parameters) <= concerned


def _cause(finding: Finding) -> Cause:
    return _CAUSE.get(finding.id, Cause.BEHAVIOUR)
