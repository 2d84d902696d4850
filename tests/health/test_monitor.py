"""What the monitor keeps of the findings that the rules make."""

import torch
from torch import nn

from statewise.health import Finding, HealthMonitor, Severity
from statewise.health.setting import Setting


def started() -> HealthMonitor:
    monitor = HealthMonitor()
    model = nn.Linear(2, 1)
    assert monitor.start(model, [torch.optim.SGD(model.parameters(), lr=0.1)], Setting(), 0) == []
    return monitor


def finding(id_: str, step: int, *parameters: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(id_, severity, step, parameters, "text")


def test_a_cause_that_spreads_from_parameter_to_parameter_stays_one_finding() -> None:
    monitor = started()
    assert monitor.add(finding("update-lost-to-rounding", 3, "a", "b"))
    assert not monitor.add(finding("update-lost-to-rounding", 8, "c"))
    (kept,) = monitor.findings
    assert (kept.step, kept.parameters) == (3, ("a", "b", "c"))


def test_cuts_at_two_places_are_two_findings() -> None:
    monitor = started()
    assert monitor.add(finding("graph-cut", 0, "a"))
    assert monitor.add(finding("graph-cut", 0, "b"))
    assert len(monitor.findings) == 2


def test_the_same_word_is_said_once_and_a_worse_one_replaces_it() -> None:
    monitor = started()
    assert monitor.add(finding("zero-gradient", 5, "a", severity=Severity.WARNING))
    assert not monitor.add(finding("zero-gradient", 9, "a", severity=Severity.WARNING))
    assert monitor.add(finding("zero-gradient", 12, "a"))
    assert [kept.severity for kept in monitor.findings] == [Severity.ERROR]
