"""Runs of zero and absent gradients, judged against what a parameter has shown before."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.health.steps.ledger import SHORTEST_RUN, GradientLedger


def fed(pattern: str) -> GradientLedger:
    """One parameter; "+" a gradient, "0" exactly zero, "-" none."""
    ledger = GradientLedger(["p"])
    for step in pattern:
        size = {"+": 1.0, "0": 0.0, "-": np.nan}[step]
        ledger.record(np.array([size]), np.array([step == "-"]))
    return ledger


@pytest.mark.parametrize(
    ("pattern", "unusual"),
    [
        ("0000", False),
        ("00000", True),
        ("++++++++++00000", True),
        ("0++++++++++00000", True),
        ("00++++++++00000", False),
        ("00++++++++0000000", True),
        ("+0" * 20 + "00000", False),
        ("+0" * 20 + "0" * 20, True),
        ("+-" * 20, False),
    ],
)
def test_a_run_of_zeros_is_unusual_only_beside_its_own_past(pattern: str, unusual: bool) -> None:
    assert fed(pattern).zero_unusual(0) is unusual


def test_an_absent_gradient_is_not_a_zero_one() -> None:
    ledger = fed("+++-----")
    assert ledger.none_run[0] == 5
    assert ledger.zero_run[0] == 0
    assert ledger.none_unusual(0) is False
    assert fed("+" * 20 + "-----").none_unusual(0) is True


@given(st.text(alphabet="+0-", max_size=60))
@settings(max_examples=50, deadline=None)
def test_counts_add_up_and_runs_are_the_tail(pattern: str) -> None:
    ledger = fed(pattern)
    assert ledger.alive[0] + ledger.zero_total[0] + ledger.none_total[0] == ledger.steps == len(pattern)
    assert ledger.zero_run[0] == len(pattern) - len(pattern.rstrip("0"))
    assert ledger.none_run[0] == len(pattern) - len(pattern.rstrip("-"))
    assert not ledger.zero_unusual(0) or ledger.zero_run[0] >= SHORTEST_RUN


def test_a_ledger_survives_as_plain_values_whatever_the_order_of_names(tmp_path) -> None:
    ledger = GradientLedger(["a", "b"])
    for _ in range(3):
        ledger.record(np.array([0.0, 2.0]), np.array([False, False]))
    torch.save(ledger.state_dict(), tmp_path / "ledger.pt")
    again = GradientLedger(["b", "new", "a"])
    again.load_state_dict(torch.load(tmp_path / "ledger.pt", weights_only=True))
    assert again.steps == 3
    assert again.zero_run.tolist() == [0, 0, 3]
    assert again.alive.tolist() == [3, 0, 0]
