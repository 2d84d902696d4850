import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.standard_errors import standard_error, time_blocks


def test_windows_of_one_series_that_share_nothing_stand_for_themselves():
    assert time_blocks(np.arange(50), shared=0) is None


def test_windows_of_one_moment_are_one_block():
    assert time_blocks(np.array([0, 1, 2, 1, 2, 3]), shared=0).tolist() == [0, 1, 2, 1, 2, 3]
    assert time_blocks(np.arange(3), shared=0, columns=2).tolist() == [0, 1, 2]


@given(st.integers(1, 3), st.integers(20, 600), st.integers(1, 12), st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_block_is_longer_than_what_neighbours_share(series, moments, shared, together):
    start = np.datetime64("2024-01-01", "ns")
    clock = np.concatenate(
        [start + (np.arange(moments) * series + (0 if together else k)) * np.timedelta64(1, "m") for k in range(series)]
    )
    block = time_blocks(clock, shared=shared)
    of_series = block.reshape(series, moments)
    assert (np.diff(of_series, axis=1) >= 0).all()
    for one in of_series:
        lengths = np.bincount(one)
        # A block may be cut at the beginning and at the end of a series.
        assert (lengths[lengths > 0][1:-1] > shared).all()


def test_blocks_of_one_entry_are_the_classical_error_of_a_mean():
    values = np.random.default_rng(0).normal(size=100)
    centred = values - values.mean()
    classical = values.std(ddof=1) / 10
    assert standard_error(centred, None) == pytest.approx(classical)
    assert standard_error(centred, np.arange(100) * 3) == pytest.approx(classical)


def test_too_few_blocks_have_no_standard_error():
    assert np.isnan(standard_error(np.zeros(70), np.arange(70) // 10))
