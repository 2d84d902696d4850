"""What is known about a run's training: signals in, findings with a cause out."""

from statewise.health.findings import Cause, Finding, Severity, UnhealthyTraining
from statewise.health.monitor import HealthMonitor
from statewise.health.rule import Rule
from statewise.health.rules import RULES

__all__ = ["RULES", "Cause", "Finding", "HealthMonitor", "Rule", "Severity", "UnhealthyTraining"]
