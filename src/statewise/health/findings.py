"""A finding: one sentence about a training run, with the numbers it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a finding is; the verdict of a run is the worst one."""

    INFO = "info"  # a fact worth knowing
    WARNING = "warning"  # probably wrong
    ERROR = "error"  # will not learn as written


class Cause(IntEnum):
    """The order in which causes explain one another: a lower one hides the symptoms of a higher one."""

    LOOP = 0
    REGISTRATION = 1
    WIRING = 2
    GRAPH = 3
    GRADIENT = 4
    NUMERICS = 5
    BEHAVIOUR = 6


class UnhealthyTraining(RuntimeError):
    """The run cannot learn as written. The text is one line: what, why, the fix, how to declare it intended."""


@dataclass(frozen=True)
class Finding:
    """What is true of a run (message, evidence), where (parameters) and since when (step)."""

    id: str
    severity: Severity
    # Completed optimizer steps when it was seen: 0 means before the first update.
    step: int
    parameters: tuple[str, ...]
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, so that checkpoints and health.json can hold it."""
        return {
            "id": self.id,
            "severity": self.severity.value,
            "step": self.step,
            "parameters": list(self.parameters),
            "message": self.message,
            "evidence": dict(self.evidence),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Finding":
        """The inverse of as_dict."""
        return cls(
            id=str(values["id"]),
            severity=Severity(values["severity"]),
            step=int(values["step"]),
            parameters=tuple(values["parameters"]),
            message=str(values["message"]),
            evidence=dict(values["evidence"]),
        )


def listed(names: tuple[str, ...] | list[str], limit: int = 3) -> str:
    """Names for a sentence: the first few in backticks, then how many more."""
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
