"""`statewise predict --stream`: bars in, predictions out."""

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from statewise.data.features.derive import derive
from statewise.data.features.formula import formulas
from statewise.data.segments.gaps import Gap
from statewise.data.tables.table import Table
from statewise.models.state import leaves
from statewise.predicting.asked import Asked
from statewise.predicting.bars import Bars
from statewise.predicting.memory import Features, SeriesMemory
from statewise.predicting.new_file import open_new
from statewise.predicting.stream import Stream, stream_lines
from statewise.restore import load_trained


def streamed(trained, text, *options, strict=False):
    """The lines of the answer as a table, and what was said beside it."""
    out, err = io.StringIO(), io.StringIO()
    code = stream_lines(trained, Asked.by(trained, options), io.StringIO(text), out, err, strict=strict)
    assert code == 0
    return pl.read_csv(out.getvalue().encode(), infer_schema_length=None), err.getvalue()


@pytest.fixture(scope="module")
def levels_model(of_levels):
    return load_trained(of_levels.folder)


@pytest.fixture(scope="module")
def returns_model(of_returns):
    return load_trained(of_returns.folder)


@pytest.fixture
def one(levels):
    """Bars of one series without anything odd."""
    return levels().filter(symbol="AAA").slice(40, 30)


def changed(frame, row, **values):
    """The frame as text with other values in a row."""
    lines = frame.with_row_index("k").with_columns(
        pl.when(pl.col("k") == row).then(pl.lit(value)).otherwise(pl.col(name).cast(pl.String)).alias(name)
        for name, value in values.items()
    )
    return lines.drop("k").write_csv()


def test_after_as_many_bars_as_a_window_has_the_prediction_is_that_of_the_window(of_levels, levels_model, statewise, one):
    one.write_csv("new.csv")
    statewise("predict", of_levels.folder, "--data", "new.csv", "--out", "whole.parquet")
    whole = pl.read_parquet("whole.parquet").head(3)
    lines, said = streamed(levels_model, one.write_csv())
    assert said == ""
    first = lines.filter(rows_seen=8)
    np.testing.assert_allclose(first.select("a", "b"), whole.select("a", "b"), rtol=0, atol=1e-12)
    assert first["step"].to_list() == [1, 2, 3]
    assert len(lines) == 3 * len(one)
    assert lines["rows_seen"].to_list() == np.arange(1, len(one) + 1).repeat(3).tolist()
    assert lines["time"][0] == one["time"][0]


def test_later_predictions_are_of_all_bars_since_the_beginning(levels_model, one):
    lines, _ = streamed(levels_model, one.write_csv())
    scaler, values = levels_model.scaler, one.select("a", "b").to_numpy()
    group = scaler.series.index("AAA") + 1
    inputs = torch.from_numpy((values - scaler.mean[group]) / scaler.scale[group])[None]
    with torch.inference_mode():
        scaled = levels_model.model(inputs)[0][0].reshape(-1, 2).numpy()
    np.testing.assert_allclose(lines.select("a", "b"), scaled * scaler.scale[group] + scaler.mean[group], rtol=0, atol=1e-10)


def test_derived_features_are_those_of_the_whole_file(of_returns, returns_model, statewise, prices):
    prices().write_csv("new.csv")
    statewise("predict", of_returns.folder, "--data", "new.csv", "--out", "whole.parquet")
    lines, said = streamed(returns_model, prices().write_csv())
    name = returns_model.form.targets[0]
    assert said == ""
    assert lines["rows_seen"][:5].to_list() == [0, 0, 0, 0, 1]
    assert lines[name][:4].null_count() == 4
    first = lines.filter(rows_seen=8)[name][0]
    assert first == pytest.approx(pl.read_parquet("whole.parquet")[name][0], rel=0, abs=1e-12)


def test_every_feature_of_every_bar_is_that_of_the_whole_file(returns_model, prices):
    frame = prices().with_columns(pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ns"))
    asked = Asked.by(returns_model)
    whole = derive(Table.of(frame, "ts", None, ["close", "volume"]), asked.features)
    features = Features(formulas(asked.features, ["close", "volume"], "data.features"), ["close", "volume"], None)
    memory = SeriesMemory(asked, features, 60 * 10**9)
    expected = np.stack([whole.read(name) for name in whole.columns], axis=1)
    times, values = frame["ts"].cast(pl.Int64).to_list(), frame.select("close", "volume").cast(pl.Float64).to_numpy()
    for row, (time, value) in enumerate(zip(times, values, strict=True)):
        (ready,) = memory.rows(time, value)
        if row < 4:
            assert ready.features is None
        else:
            np.testing.assert_allclose(ready.features, expected[row], rtol=0, atol=1e-12)


def test_series_do_not_disturb_each_other(levels_model, levels):
    both = levels().filter(pl.col("time") < "2024-01-01T18")
    mixed, _ = streamed(levels_model, both.sort("time", "symbol").write_csv())
    for symbol in ("AAA", "BBB"):
        alone, _ = streamed(levels_model, both.filter(symbol=symbol).write_csv())
        assert mixed.filter(series=symbol).equals(alone)


def test_missing_values_are_filled_for_as_long_as_in_training_then_the_state_begins_anew(levels_model, levels):
    bars = levels().filter(symbol="AAA").head(45)
    lines, said = streamed(levels_model, bars.write_csv())
    seen = lines.filter(step=1)["rows_seen"].to_list()
    # One value missing in row 20 is filled; of six from row 30 on three are, and the row after them is complete again.
    assert seen[:33] == list(range(1, 34))
    assert seen[33:36] == [0, 0, 0]
    assert seen[36:] == list(range(1, 10))
    assert said == (
        "standard input, line 35, series AAA: no value of b for more than data.missing.max_fill=3 rows; the state begins anew\n"
    )
    assert lines.filter(step=1)["a"].is_null().to_list() == [k in (33, 34, 35) for k in range(45)]


def test_a_gap_begins_the_state_anew(levels_model, levels):
    bars = levels().filter(symbol="AAA").slice(70, 20)
    lines, said = streamed(levels_model, bars.write_csv())
    assert lines.filter(step=1)["rows_seen"].to_list() == [*range(1, 11), *range(1, 11)]
    assert said == (
        "standard input, line 12, series AAA: 6:00:00 after the bar before, where the step is 1:00:00; the state begins anew\n"
    )


def test_absent_bars_are_inserted_where_the_run_inserted_them(levels_model, one, tmp_path):
    asked = replace(Asked.by(levels_model), gap=Gap("forward_fill", "1h", 4), max_gap=None)
    bars = one.with_row_index("k").filter(~pl.col("k").is_in([4, 5])).drop("k").head(6)
    out, err = io.StringIO(), io.StringIO()
    stream_lines(levels_model, asked, io.StringIO(bars.write_csv()), out, err, strict=False)
    lines = pl.read_csv(out.getvalue().encode())
    assert lines.filter(step=1)["rows_seen"].to_list() == [1, 2, 3, 4, 7, 8]
    assert err.getvalue() == ""
    bars.write_csv(tmp_path / "new.csv")
    new = open_new(levels_model, asked, str(tmp_path / "new.csv"))
    with torch.inference_mode():
        scaled = levels_model.model(new.scaled[None])[0][0, -1].reshape(3, 2).numpy()
    group = levels_model.scaler.series.index("AAA") + 1
    expected = scaled * levels_model.scaler.scale[group] + levels_model.scaler.mean[group]
    np.testing.assert_allclose(lines.select("a", "b").tail(3), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("row", "values", "message"),
    [
        (3, {"a": "12x"}, 'standard input, line 5: column "a": "12x" is not a number'),
        (3, {"a": "inf"}, 'standard input, line 5: column "a": "inf" is infinite'),
        (3, {"time": "soon"}, 'standard input, line 5: the time column "time" '),
        (3, {"time": "2024-02-30T00:00:00Z"}, "standard input, line 5: "),
        (3, {"symbol": ""}, 'standard input, line 5: the series column "symbol" is empty'),
        (3, {"time": "2023-12-31T00:00:00Z"}, "standard input, line 5, series AAA: 2023-12-31T00:00:00Z comes after 2024-"),
        (3, {"time": "2024-01-02T18:00:00Z"}, "standard input, line 5, series AAA: a second bar of 2024-01-02T18:00:00Z"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_with_its_number(row, values, message, levels_model, one):
    with pytest.raises(ValueError, match="standard input") as refused:
        streamed(levels_model, changed(one, row, **values))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_a_repeated_bar_is_left_out_where_the_first_counts(levels_model, one):
    text = changed(one, 3, time=one["time"][2])
    lines, said = streamed(levels_model, text, "data.duplicates=first")
    # The bar that is left out stands for the hour that the next one then is too late by.
    assert lines.filter(step=1)["rows_seen"].to_list()[:5] == [1, 2, 3, 1, 2]
    assert said.startswith("standard input, line 5, series AAA: left out, because a bar of ")


def test_a_line_with_too_few_fields_is_refused(levels_model, one):
    lines = one.write_csv().splitlines()
    with pytest.raises(ValueError, match="line 4: 2 fields, the header has 5"):
        streamed(levels_model, "\n".join([*lines[:3], "2024,AAA", *lines[3:]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "standard input is empty: its first line must be a header"),
        ("time,symbol,a\n", 'standard input lacks the column "b" that the model reads'),
        ("time,a,b\n", 'standard input lacks the column "symbol" that tells series apart; it has time, a, b'),
        ("symbol,a,b\nAAA,1,2\n", 'standard input has no column of times, and the training data had one ("time")'),
    ],
)
def test_a_header_that_lacks_something_is_refused(text, message, levels_model):
    with pytest.raises(ValueError, match="standard input") as refused:
        streamed(levels_model, text)
    assert str(refused.value).startswith(message)


def test_other_columns_are_passed_over_and_their_order_does_not_matter(levels_model, one):
    plain, _ = streamed(levels_model, one.write_csv())
    other, _ = streamed(
        levels_model, one.select("b", "symbol", pl.lit("1").alias("more"), "time", "a").write_csv(separator=";")
    )
    assert plain.equals(other)


def test_times_and_numbers_are_read_as_in_a_file(levels_model, one):
    plain, _ = streamed(levels_model, one.write_csv())
    time = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%SZ")
    epoch = one.with_columns(time.dt.epoch("ms"))
    assert streamed(levels_model, epoch.write_csv())[0].equals(plain)
    local = one.with_columns(time.dt.offset_by("1h").dt.to_string("%Y-%m-%d %H:%M"))
    assert streamed(levels_model, local.write_csv(), "data.timezone=Europe/Berlin")[0].equals(plain)
    comma = one.with_columns(pl.col("a", "b").cast(pl.String).str.replace(".", ",", literal=True))
    assert streamed(levels_model, comma.write_csv(separator=";"), "data.decimal=,")[0].equals(plain)
    ended = one.with_columns(time.dt.offset_by("1h").dt.to_string("%Y-%m-%dT%H:%M:%SZ"))
    assert streamed(levels_model, ended.write_csv(), "data.bar_label=end")[0].equals(plain)


def test_other_units_are_said_once_or_refused(levels_model, one):
    text = one.with_columns(pl.col("b") * 1e6).write_csv()
    _, said = streamed(levels_model, text)
    assert len(said.splitlines()) == 1
    assert said.startswith('standard input, line 2, series AAA, column "b": ')
    assert said.endswith("; said once\n")
    with pytest.raises(ValueError, match="standard deviations from the mean of training"):
        streamed(levels_model, text, strict=True)


def test_an_unknown_series_is_said(levels_model, one):
    _, said = streamed(levels_model, one.with_columns(symbol=pl.lit("NEW")).write_csv())
    assert said == "standard input, line 2, series NEW is not in the training data, so scaled by the scale of all series\n"


def test_a_model_without_a_step_is_refused(levels_model, one):
    without = levels_model._replace(model=torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^Linear has no step\(\) and no initial_state\(\), so it cannot follow a stream"):
        streamed(without, one.write_csv())


def test_every_line_is_answered_before_the_next_is_read(levels_model, one):
    out, answered = io.StringIO(), []

    def lines():
        for line in one.write_csv().splitlines(keepends=True):
            answered.append(out.getvalue().count("\n"))
            yield line

    stream_lines(levels_model, Asked.by(levels_model), lines(), out, io.StringIO(), strict=False)
    # One line is read ahead for the header; each bar is answered by a line for each step.
    assert answered[:4] == [0, 1, 4, 7]


def test_nobody_reading_any_more_ends_quietly(levels_model, one):
    class Closed(io.StringIO):
        def flush(self):
            if self.getvalue().count("\n") > 5:
                raise BrokenPipeError

    assert (
        stream_lines(levels_model, Asked.by(levels_model), io.StringIO(one.write_csv()), Closed(), io.StringIO(), strict=False)
        == 0
    )


def test_the_command_streams_from_standard_input_and_ends_with_its_exit_code(of_levels, statewise, one):
    result = statewise("predict", of_levels.folder, "--stream", stdin=one.write_csv())
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("time,series,step,rows_seen,a,b\n")
    refused = statewise("predict", of_levels.folder, "--stream", stdin=changed(one, 3, a="?"))
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert refused.stdout.count("\n") == 1 + 3 * 3


def test_the_memory_of_a_stream_does_not_grow(returns_model, prices):
    stream = Stream(returns_model, Asked.by(returns_model), io.StringIO(), strict=False)
    bars = Bars(io.StringIO(prices(250).write_csv()), Asked.by(returns_model), returns_model.form)
    stream.begin(bars)
    sizes = []
    for bar in bars:
        stream.after(bar)
        (memory,) = stream._memories.values()
        sizes.append((sum(leaf.untyped_storage().nbytes() for leaf in leaves(memory.state or ())), len(memory._values)))
    assert len(set(sizes[100:])) == 1
