"""The form of training data, as a checkpoint keeps it."""

import io

import numpy as np
import polars as pl
import pytest
import torch

from statewise.data.form import Form, Step, step_of
from statewise.data.segments.gaps import Gap
from statewise.data.source import Source
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table

MINUTE = 60 * 10**9


def rows(*minutes):
    times = np.array(minutes) * np.timedelta64(1, "m") + np.datetime64("2024-01-01", "ns")
    return Rows.of(pl.Series(times), None, len(minutes))


@pytest.mark.parametrize(
    ("minutes", "step"),
    [
        ((0, 1, 2, 3, 10), Step(MINUTE, usual=True)),
        ((0, 1, 5, 6, 11, 17), Step(MINUTE, usual=False)),
        ((0,), None),
    ],
)
def test_the_step_is_the_most_frequent_one_and_usual_where_most_rows_have_it(minutes, step):
    assert step_of(rows(*minutes), Gap()) == step


def test_the_step_of_the_policy_counts_where_there_is_one():
    assert step_of(rows(0, 1, 2), Gap(step="5m")) == Step(5 * MINUTE, usual=True)


def test_rows_without_times_have_no_step():
    assert step_of(Rows.of(None, None, 5), Gap()) is None


@pytest.mark.parametrize("timed", [True, False])
def test_it_comes_back_from_a_checkpoint_that_holds_plain_values(timed):
    frame = pl.DataFrame({"t": rows(0, 1, 2).times, "a": [1.0, 2.0, 3.0], "b": [0.0, 0.0, 1.0]})
    table = Table.of(frame, "t" if timed else None, None, ["a", "b"])
    source = Source(table, ("a", "b"), ("b",), targets_are_levels=False)
    form = Form.of(source, table.rows, 3, Gap())
    file = io.BytesIO()
    torch.save(form.state_dict(), file)
    file.seek(0)
    assert Form.from_state(torch.load(file, weights_only=True)) == form
    assert (form.n_features, form.n_targets, form.target_inputs) == (2, 1, (1,))
    assert (form.time, form.step) == (("t", Step(MINUTE, usual=True)) if timed else (None, None))


def test_a_target_that_is_no_feature_has_no_place_among_them():
    table = Table.of(pl.DataFrame({"a": [1.0], "b": [2.0]}), None, None, ["a", "b"])
    assert Form.of(Source(table, ("a",), ("a", "b")), table.rows, 1, Gap()).target_inputs is None
