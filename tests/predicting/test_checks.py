"""What is refused of a new file, and what is warned of."""

import numpy as np
import polars as pl
import pytest
import torch

from statewise.data.form import Form, Step
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.gaps import Gap
from statewise.data.tables.rows import Rows
from statewise.predicting.checks import about_step, far_values, unknown_series

HOUR = 3600 * 10**9


def form(*, usual=True):
    return Form(("a",), ("a",), True, 1, "t", None, Step(HOUR, usual=usual), False)


def rows(*minutes):
    times = np.array(minutes) * np.timedelta64(1, "m") + np.datetime64("2024-01-01", "ns")
    return Rows.of(pl.Series(times), None, len(minutes))


@pytest.mark.parametrize("minutes", [60, 89, 41])
def test_a_step_near_that_of_training_is_none_other(minutes):
    assert about_step(rows(*range(0, 10 * minutes, minutes)), form(), Gap(), "x.csv") == ""


@pytest.mark.parametrize("minutes", [90, 40, 1440])
def test_another_regular_step_is_refused(minutes):
    with pytest.raises(
        ValueError, match=r"^x.csv has another frequency: its rows are .* apart, those of the training data 1:00:00"
    ):
        about_step(rows(*range(0, 10 * minutes, minutes)), form(), Gap(), "x.csv")


def test_another_step_is_only_warned_of_where_times_are_irregular_or_mean_nothing():
    daily = rows(*range(0, 14400, 1440))
    assert about_step(daily, form(usual=False), Gap(), "x.csv").startswith("x.csv has another frequency")
    assert about_step(daily, form(), Gap("ignore"), "x.csv").startswith("x.csv has another frequency")
    assert about_step(rows(0, 1, 2, 200, 411, 633, 899), form(), Gap(), "x.csv").startswith("x.csv has another frequency")


def test_nothing_is_said_where_no_step_is_known():
    assert about_step(rows(0), form(), Gap(), "x.csv") == ""
    assert about_step(Rows.of(None, None, 9), form(), Gap(), "x.csv") == ""


def scaler(*series):
    found = StandardScaler()
    found.begin(["a"], series=series, per_series=bool(series))
    found.mean[:], found.scale[:] = 10.0, 2.0
    return found


def test_the_largest_value_far_away_is_named_and_the_others_counted():
    scaled = torch.tensor([0.0, 51.0, -80.0, 49.0, 900.0])
    looked_at = np.array([True, True, True, True, False])
    assert far_values(scaled, looked_at, "a", rows(0, 60, 120, 180, 240), scaler()) == (
        '2024-01-01 02:00:00, column "a": -150 is 80 standard deviations from the mean of training (2 such values, this one '
        "the largest): other units? (training: mean 10, standard deviation 2)"
    )
    assert far_values(scaled[:1], looked_at[:1], "a", rows(0), scaler()) == ""


def test_a_file_that_names_no_series_is_told_apart_from_one_with_new_ones():
    unnamed = Rows(("",), np.array([0, 3]), None)
    assert unknown_series(unnamed, scaler(), "x.csv") == ""
    assert unknown_series(unnamed, scaler("A", "B"), "x.csv").startswith("x.csv names no series, and the scale of training was")
    many = Rows(("A", *"CDEFGHI"), np.arange(9), None)
    assert unknown_series(many, scaler("A", "B"), "x.csv").endswith("the scale of all series: C, D, E, F, G and 2 more")
