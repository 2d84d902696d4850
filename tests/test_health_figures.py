"""The pictures of training health show each block and each finding where they belong, for odd runs too."""

import numpy as np
import pytest

from statewise import figures, health_figures


def dots(axes):
    """Rows and colours of the dots of a panel: moving ones at their value, still ones at the edge."""
    drawn = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return {int(line.get_ydata()[0]): (float(line.get_xdata()[0]), line.get_color()) for line in drawn}


def test_every_block_has_a_row_and_a_still_one_its_own_colour():
    readings = [np.array([0.1, 0.2, 0.4]), np.array([0.0, 0.0]), np.array([np.nan])]
    figure = health_figures.movement(["a", "b", "c"], {"one": readings})
    (axes,) = figure.axes
    assert dots(axes) == {0: (0.2, figures.BLUE), 1: (0.0, figures.PINK), 2: (0.0, figures.NOTHING)}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["exactly zero", "nothing measured"]


def test_a_block_that_moved_now_and_then_is_not_drawn_as_still():
    figure = health_figures.movement(["a"], {"one": [np.array([0.0, 0.3, 0.5, np.nan])]})
    assert dots(figure.axes[0])[0] == (pytest.approx(0.3), figures.BLUE)
    assert figure.legends == []


@pytest.mark.parametrize("readings", [[np.array([])], [np.array([0.0])], [np.array([1e-300]), np.array([1e300])]])
def test_odd_readings_still_give_a_picture(readings):
    names = [str(i) for i in range(len(readings))]
    assert figures.svg(health_figures.movement(names, {"one": readings, "two": readings})).startswith("<svg")


FINDINGS = [
    {"id": "graph-cut", "severity": "error", "step": 0, "parameters": ["a.weight", "a.bias"]},
    {"id": "zero-gradient", "severity": "warning", "step": 70, "parameters": [f"b.{i}.weight" for i in range(20)]},
    {"id": "loss-spike", "severity": "info", "step": 90, "parameters": []},
]


def test_each_finding_begins_at_its_step_and_lasts_to_the_end_of_the_run():
    figure = health_figures.timeline(FINDINGS, steps=100)
    (axes,) = figure.axes
    assert dots(axes) == {0: (0.0, figures.PINK), 1: (70.0, figures.GOLD), 2: (90.0, figures.BLUE)}
    lines = [line for line in axes.get_lines() if line.get_marker() == "None"]
    assert [list(line.get_xdata()) for line in lines] == [[0, 100], [70, 100], [90, 100]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["graph-cut", "zero-gradient", "loss-spike"]
    first, second, third = (text.get_text() for text in axes.texts)
    assert (first, third) == ("a.weight, a.bias", "")
    assert second.startswith("b.0.weight, b.1.weight, ")
    assert second.endswith(" more")
    assert len(second) < 90


def test_a_finding_after_the_last_counted_step_is_inside_the_picture():
    figure = health_figures.timeline([FINDINGS[1]], steps=69)
    assert figure.axes[0].get_xlim() == (0, 70)
