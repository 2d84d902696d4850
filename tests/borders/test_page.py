"""What report.html says and draws of the borders of epochs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statewise import figures, runs
from statewise.borders.causes import CAUSES, Evidence, in_one_sentence, reason, shown
from statewise.borders.curves import Curve, read_curves, write_curves
from statewise.borders.figures import aligned, around_borders
from statewise.borders.page import borders_card

AROUND = [(2, np.array([2.0, 2.0]), np.array([4.0, 2.0, 1.0])), (3, np.array([1.0, np.nan]), np.array([3.0]))]
FOUND: dict[str, Any] = {
    "borders": 4,
    "judged": 3,
    "jumps": 2,
    "sentence": "The training loss jumps at 2 of 3 borders of epochs: state reset at 2.",
    "causes": {"state_reset": {"borders": 2, "first_epoch": 3, "rise": 1.0, "sentence": "the loss <jumps>"}},
}


def run(folder: Path, entry: dict[str, Any] | None) -> runs.Run:
    runs.write_json(folder / runs.SUMMARY, {} if entry is None else {"epoch_borders": entry})
    write_curves(folder, AROUND)
    return runs.Run(folder)


def test_the_card_says_what_jumps_and_why_and_draws_it(tmp_path: Path) -> None:
    card = borders_card(run(tmp_path, FOUND))
    assert "<h2>Epoch borders</h2>" in card
    assert FOUND["sentence"] in card
    assert "<b>state reset</b>" in card
    assert "2 borders, from epoch 3 on" in card
    assert "The loss &lt;jumps&gt;." in card
    assert card.count("<svg") == 1


def test_a_run_without_borders_has_no_card(tmp_path: Path) -> None:
    assert borders_card(run(tmp_path, None)) == ""


def test_a_silent_run_shows_that_it_is(tmp_path: Path) -> None:
    quiet = {"borders": 2, "judged": 2, "jumps": 0, "sentence": in_one_sentence(2, {}, 0), "causes": {}}
    card = borders_card(run(tmp_path, quiet))
    assert "No jump of the training loss at 2 borders of epochs." in card
    assert "ok</span>" in card


def test_curves_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    write_curves(tmp_path, AROUND)
    first, second = read_curves(tmp_path)
    assert (first.epoch, second.epoch) == (2, 3)
    np.testing.assert_array_equal(first.place, [-2, -1, 0, 1, 2])
    np.testing.assert_array_equal(second.loss, [1.0, np.nan, 3.0])
    assert read_curves(tmp_path / "nowhere") == []


def test_borders_are_drawn_in_units_of_what_was_before_them() -> None:
    curves = [Curve(2, np.arange(-2, 2), np.array([2.0, 2.0, 4.0, 2.0])), Curve(3, np.arange(-1, 1), np.array([0.5, 1.0]))]
    places, matrix = aligned(curves)
    np.testing.assert_array_equal(places, [-2, -1, 0, 1])
    np.testing.assert_array_equal(matrix, [[1.0, 1.0, 2.0, 1.0], [np.nan, 1.0, 2.0, np.nan]])
    assert figures.png(around_borders(curves)).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("evidence", "strong", "expected"),
    [
        (Evidence(changed=(("A", 0.3),)), False, ("changed_weights",)),
        (Evidence(changed=(("A", 0.3),), between_batches=0.3), False, ("no_cause_found",)),
        (Evidence(changed=(("A", 1e-5),)), True, ("no_cause_found",)),
        (Evidence(rate_before=1e-4, rate_after=1e-3), False, ("learning_rate_restart",)),
        (Evidence(rate_before=1e-3, rate_after=1.1e-3), False, ("no_cause_found",)),
        (Evidence(state="h", forgotten="gone", recovers=2), False, ("state_reset",)),
        (Evidence(state="h", forgotten="gone"), False, ("no_cause_found",)),
        (Evidence(state="h", forgotten="gone", order=6.0), False, ("order_of_data",)),
        (Evidence(memory="Adam", recovers=3), False, ("state_reset",)),
        (Evidence(order=3.5), False, ("no_cause_found",)),
        (Evidence(order=3.5), True, ("order_of_data",)),
        (
            Evidence(rate_before=0.0, rate_after=1.0, changed=(("A", 1.0),)),
            False,
            ("changed_weights", "learning_rate_restart"),
        ),
    ],
)
def test_a_cause_is_what_was_seen_at_the_border(evidence: Evidence, strong: bool, expected: tuple[str, ...]) -> None:
    assert shown(evidence, strong=strong) == expected


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_its_sentence(cause: str) -> None:
    said = reason(cause, Evidence(state="h", forgotten="zero", changed=(("A", 0.1),), recovers=1))
    assert len(said) > 40
    assert not said.endswith(".")
