import polars as pl
import pytest

from statewise.data.tables.times.labels import to_start
from statewise.data.tables.times.moments import Unreadable

MINUTE, DAY = 60 * 10**9, 86_400 * 10**9


def moved(times: list[int], series: list[str] | None = None) -> tuple[list[int], str]:
    stamps, note = to_start(pl.Series(times).cast(pl.Datetime("ns")), None if series is None else pl.Series(series))
    return stamps.cast(pl.Int64).to_list(), note


@pytest.mark.parametrize("times", [[5, 10, 15], [15, 10, 5], [10, 15, 5], [5, 10, 15, 60, 65]])
def test_an_end_is_moved_back_by_the_regular_step(times):
    stamps, note = moved([minute * MINUTE for minute in times])
    assert stamps == [(minute - 5) * MINUTE for minute in times]
    assert note == "data.bar_label=end: every time is moved back by 5 minutes, to the start of its bar"


def test_the_step_is_that_of_each_series():
    times = [5, 5, 10, 10, 15, 15]
    assert moved([t * MINUTE for t in times], ["A", "B"] * 3)[0] == [(t - 5) * MINUTE for t in times]
    assert moved([5 * MINUTE, 10 * MINUTE, 7 * MINUTE], ["A", "A", "B"])[0] == [0, 5 * MINUTE, 2 * MINUTE]


@pytest.mark.parametrize(
    ("times", "series", "words"),
    [
        ([5], None, "one moment only"),
        ([5, 5], ["A", "B"], "one moment only"),
        ([1, 2, 4, 8, 16], None, "no regular step"),
        ([0, 31 * 1440, 60 * 1440], None, "no regular step"),
        ([5, 10, 5, 6], ["A", "A", "B", "B"], "another step in series A than in B"),
    ],
)
def test_without_a_regular_step_nothing_is_moved(times, series, words):
    with pytest.raises(Unreadable, match=words):
        moved([t * MINUTE for t in times], series)
