"""What is known about a run's training: signals in, findings with a cause out."""

from statewise.health.findings import Cause, Finding, Severity, UnhealthyTraining
from statewise.health.monitor import HealthMonitor
from statewise.health.rule import Kind, Rule
from statewise.health.rules import KINDS, RULES
from statewise.health.watch import watch

__all__ = ["KINDS", "RULES", "Cause", "Finding", "HealthMonitor", "Kind", "Rule", "Severity", "UnhealthyTraining", "watch"]
