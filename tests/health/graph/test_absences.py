"""Runs of steps without a gradient, None or zero, of parameters that used to have one."""

import numpy as np

from statewise.health.graph.absences import Absences
from statewise.health.steps.ledger import GradientLedger


def counted(*steps: float | None) -> Absences:
    """One parameter's gradient at each step: its size, or None."""
    ledger = GradientLedger(("a",))
    absences = Absences(ledger)
    for size in steps:
        ledger.record(np.array([np.nan if size is None else size]), np.array([size is None]))
        absences.count()
    return absences


def test_none_and_zero_make_one_run() -> None:
    assert counted(1.0, 1.0, 0.0, None, None).run.tolist() == [3]
    assert counted(1.0, None, 1.0).run.tolist() == [0]


def test_only_what_used_to_have_a_gradient_is_a_candidate_and_not_for_ever() -> None:
    assert counted(None, None, None).candidates() == []
    assert counted(1.0, 1.0, None, None).candidates() == [0]
    assert counted(1.0, *[None] * 12).candidates() == []
    assert counted(1.0, *[None] * 19).candidates() == [0]


def test_what_is_absent_every_other_step_is_nothing_rare() -> None:
    assert counted(*[1.0] * 10, None, None, None, None).rare(0, 1e-4)
    assert not counted(*[1.0, None] * 10, None, None).rare(0, 1e-2)
