"""Says findings as they come, few of them, and stops the run where the policy asks for it."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from statewise.choices import one_of
from statewise.health.findings import Finding, Severity, UnhealthyTraining
from statewise.health.verdict import primary

_POLICIES = ("error", "warn", "off")
_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.INFO: logging.INFO}
_WORSE = {
    Severity.ERROR: (Severity.ERROR,),
    Severity.WARNING: (Severity.ERROR, Severity.WARNING),
    Severity.INFO: tuple(Severity),
}
_SHOWN = 3


class Announcer:
    """Three findings are shown, the rest are counted; something worse than what was shown is always shown.

    Args:
        policy: "error" raises at the first fatal finding, "warn" logs and goes on, "off" is for the caller to honour.
        stop_at: the severity that is fatal: "error", or "warning" to be strict.

    Raises:
        ValueError: for an unknown policy or severity.
    """

    def __init__(self, policy: str, stop_at: str, log: logging.Logger) -> None:
        self.policy = one_of("health.policy", policy, _POLICIES)
        self.stop_at = one_of("health.stop_at", stop_at, ("error", "warning"))
        self._log = log
        self._shown: Counter[Severity] = Counter()
        self._hidden = 0

    def begin(self) -> None:
        """A fit begins: nothing was shown."""
        self._shown.clear()
        self._hidden = 0

    def say(self, found: Sequence[Finding]) -> None:
        """Log what is new, the worst first."""
        for finding in primary(found):
            if sum(self._shown[severity] for severity in _WORSE[finding.severity]) < _SHOWN:
                self._shown[finding.severity] += 1
                self._log.log(_LEVELS[finding.severity], "%s: %s", finding.id, finding.message)
            elif finding.severity is not Severity.INFO:
                self._hidden += 1

    def fatal(self, found: Sequence[Finding]) -> UnhealthyTraining | None:
        """What to raise, if the policy asks for it."""
        severities = {Severity.ERROR} if self.stop_at == "error" else {Severity.ERROR, Severity.WARNING}
        reasons = [finding for finding in primary(found) if finding.severity in severities]
        if not reasons or self.policy != "error":
            return None
        return UnhealthyTraining(f"step {reasons[0].step}, {reasons[0].id}: {reasons[0].message}")

    def conclude(self, report: Mapping[str, Any], parameters: int, steps: int) -> None:
        """One verdict line."""
        named = [finding["id"] for finding in report["findings"] if finding["severity"] != "info"]
        ids = list(dict.fromkeys(named))
        shown = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
        self._log.log(
            logging.INFO if report["verdict"] == "healthy" else logging.WARNING,
            "training health: %s%s%s (%d parameters, %d steps, %d of %d checks ran)",
            report["verdict"],
            f": {shown}" if shown else "",
            f"; {self._hidden} findings are in the report only" if self._hidden else "",
            parameters,
            steps,
            sum(check["ran"] for check in report["checks"]),
            len(report["checks"]),
        )
