from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from statewise.data import samples
from statewise.data.samples import CHANNELS, air_quality

ORIGINAL = Path(__file__).parents[3] / "shared" / "data" / "air_quality" / "beijing_pm25_uci381.csv"


@pytest.fixture(scope="module")
def table():
    return air_quality()


def test_the_sample_holds_five_years_of_hours_without_a_gap(table):
    times = table.frame["time"]
    assert table.frame.height == 43_824
    assert (times[0].isoformat(), times[-1].isoformat()) == ("2010-01-01T00:00:00", "2014-12-31T23:00:00")
    assert set(times.diff().drop_nulls().dt.total_seconds().unique()) == {3600}
    assert set(CHANNELS) <= set(table.columns)


def test_the_missing_values_of_the_sample_are_kept(table):
    absent = np.isnan(table.frame["pm2.5"].to_numpy())
    edges = np.flatnonzero(np.diff(np.concatenate([[False], absent, [False]]).astype(int)))
    runs = edges[1::2] - edges[::2]
    assert absent.sum() == 2_067
    assert (edges[0], runs[0]) == (0, 24)
    assert runs.max() == 155
    assert not np.isnan(table.frame.select(c for c in table.columns if c != "pm2.5").to_numpy()).any()


def test_the_sample_is_small_and_carries_its_attribution():
    folder = files(samples)
    assert len((folder / "beijing_pm25.csv.zst").read_bytes()) < 500_000
    text = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for words in ("CC BY 4.0", "data set 381", "Liang", "2015", "What was changed"):
        assert words in text


@pytest.mark.skipif(not ORIGINAL.is_file(), reason="the original file is not here")
def test_every_value_of_the_sample_is_that_of_the_original(table):
    original = pl.read_csv(ORIGINAL, null_values="NA", infer_schema_length=None)
    for column in table.columns:
        wanted = original[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        np.testing.assert_array_equal(table.frame[column].to_numpy(), wanted, err_msg=column)
    moments = original.select(pl.datetime("year", "month", "day", "hour", time_unit="ns")).to_series()
    assert (table.frame["time"] == moments).all()
