"""The start of a bar where a file names its end."""

import polars as pl

from statewise.data.tables.times.duration import in_words
from statewise.data.tables.times.moments import DAY, NANOSECONDS, Unreadable

_MONTH = 28 * DAY


def to_start(stamps: pl.Series, series: pl.Series | None) -> tuple[pl.Series, str]:
    """The times minus the regular step of the rows, and a sentence.

    Raises:
        Unreadable: the rows have no regular step, or series differ in it.
    """
    frame = pl.DataFrame(
        {"t": stamps.cast(pl.Int64), "s": pl.repeat("", len(stamps), eager=True) if series is None else series}
    )
    steps = frame.sort("s", "t").select("s", pl.col("t").diff().over("s").alias("step")).filter(pl.col("step") > 0)
    common = steps.group_by("s", "step").len().sort("s", "len", "step", descending=[False, True, False])
    of_series = common.group_by("s", maintain_order=True).agg(
        pl.col("step").first(),
        (2 * pl.col("len").first() >= pl.col("len").sum()).alias("regular"),
        (pl.len() == 1).alias("one"),
    )
    wanted = "data.bar_label=end needs rows at a regular step, to find the start of each bar"
    if not len(of_series):
        raise Unreadable(None, f"holds one moment only: {wanted}")
    if not bool(of_series["regular"].all()) or bool(((of_series["step"] >= _MONTH) & ~of_series["one"]).any()):
        odd = of_series.filter(~pl.col("regular") | (pl.col("step") >= _MONTH))["s"][0]
        raise Unreadable(None, f"has no regular step{f' in series {odd}' if odd else ''}: {wanted}")
    if of_series["step"].n_unique() > 1:
        names = of_series.unique("step", maintain_order=True)["s"]
        raise Unreadable(None, f"has another step in series {names[0]} than in {names[1]}: {wanted}")
    step = int(of_series["step"][0])
    moved = (stamps.cast(pl.Int64) - step).cast(NANOSECONDS)
    return moved.rename(
        stamps.name
    ), f"data.bar_label=end: every time is moved back by {in_words(step)}, to the start of its bar"
