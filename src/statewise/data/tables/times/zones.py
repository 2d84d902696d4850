"""From the clock of a place to UTC."""

import re
import zoneinfo
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from statewise.choices import did_you_mean
from statewise.data.tables.times.moments import DAY, Moments, Unreadable

_SAYS_UTC = re.compile(r"(?i:(^|[^a-z])(utc|gmt|zulu)($|[^a-z]))|[a-z](UTC|GMT)($|[^a-z])|(^|[^A-Z])(UTC|GMT)[A-Z][a-z]")
_WITHOUT_SUMMER = {"EST": "America/New_York", "MST": "America/Denver", "HST": "Pacific/Honolulu"}


def says_utc(column: str) -> bool:
    """Whether the name of a column says that its times are in UTC, as `time_utc` or `Gmt time` do."""
    return _SAYS_UTC.search(column) is not None


def check_zone(zone: str, key: str = "data.timezone") -> None:
    """Raises ValueError, with the nearest name, where there is no such zone."""
    if zone in _WITHOUT_SUMMER:
        raise ValueError(
            f"{key}={zone} has no summer time and is short for several zones: did you mean {_WITHOUT_SUMMER[zone]}?"
        )
    if not is_zone(zone):
        names = zoneinfo.available_timezones()
        # Cities are what people remember of a name.
        cities = {name.rsplit("/", 1)[-1]: name for name in sorted(names) if "/" in name}
        hint = did_you_mean(zone, names) or did_you_mean(cities.get(zone.replace(" ", "_").title(), zone), names)
        raise ValueError(f"{key} must be the name of a zone such as Europe/Berlin, America/New_York or UTC, got {zone!r}{hint}")


def is_zone(zone: str) -> bool:
    try:
        pl.Series([0]).cast(pl.Datetime("ns")).dt.replace_time_zone(zone)
    except pl.exceptions.PolarsError:
        return False
    return True


def to_utc(moments: Moments, zone: str, series: pl.Series | None, rows: Bool[np.ndarray, " r"] | None = None) -> pl.Series:
    """The moments whose clock shows `moments.values` in this zone, as Datetime in ns.

    An hour that a clock shows twice in autumn is told apart by the order of the rows: where a series goes once through it,
    back, and through it again, the first pass has the earlier offset. Dates are the first moment of their day.

    Args:
        rows: those that are meant; the others stay.

    Raises:
        Unreadable: a time that the clock never shows, or shows twice where the order does not tell.
    """
    wall = moments.values
    usual = _converted(wall, zone, "null")
    meant = pl.repeat(True, len(wall), eager=True) if rows is None else pl.Series(rows)
    odd = (usual.is_null() & wall.is_not_null() & meant).arg_true()
    # Few rows, if any, are near a change of clocks; scatter writes in place.
    near = wall.gather(odd)
    early = usual.clone().scatter(odd, _converted(near, zone, "earliest"))
    late = usual.clone().scatter(odd, _converted(near, zone, "latest"))
    absent = early.is_null() & wall.is_not_null() & meant
    if bool(absent.any()):
        if not moments.dates:
            raise _never(wall, zone, absent)
        early = pl.select(pl.when(absent).then(_after_gap(wall, zone)).otherwise(early)).to_series()
        late = pl.select(pl.when(absent).then(early).otherwise(late)).to_series()
    twice = ((early != late) & meant).fill_null(False)
    utc = early
    if bool(twice.any()) and not moments.dates:
        utc = _by_order(wall, early, late, twice, zone, series)
    return utc if rows is None else pl.select(pl.when(meant).then(utc).otherwise(wall)).to_series()


def _converted(wall: pl.Series, zone: str, ambiguous: Literal["earliest", "latest", "null"]) -> pl.Series:
    """Null where clocks never show such a time, and as `ambiguous` says where they show it twice."""
    there = wall.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
    return there.dt.convert_time_zone("UTC").dt.replace_time_zone(None)


def _by_order(
    wall: pl.Series, early: pl.Series, late: pl.Series, twice: pl.Series, zone: str, series: pl.Series | None
) -> pl.Series:
    rows = twice.arg_true()
    which = pl.repeat("", len(rows), eager=True) if series is None else series.gather(rows)
    keys = pl.DataFrame(
        {
            "row": rows.cast(pl.Int64),
            "wall": wall.gather(rows).cast(pl.Int64),
            "series": which,
            "up": _ascends(early, series).gather(rows),
        }
    )
    # No hour is shown twice around noon, so that from noon to noon there is one change of clocks.
    keys = keys.with_columns(((pl.col("wall") + DAY // 2) // DAY).alias("change"))
    keys = keys.sort("series", "change", pl.when("up").then(pl.col("row")).otherwise(-pl.col("row")))
    group = ["series", "change"]
    back = (pl.col("wall") <= pl.col("wall").shift(1).over(group)).fill_null(False)
    keys = keys.with_columns(back.cast(pl.Int64).cum_sum().over(group).alias("passed"), back.sum().over(group).alias("turns"))
    unclear = keys.filter(pl.col("turns") != 1)["row"]
    if not len(unclear):
        second = np.zeros(len(wall), dtype=bool)
        second[keys.filter(pl.col("passed") == 1)["row"].to_numpy()] = True
        utc = pl.select(pl.when(pl.Series(second)).then(late).otherwise(early)).to_series()
        if _is_ordered(utc, series):
            return utc
        unclear = rows
    row = int(unclear.min())  # type: ignore[arg-type]
    count = len(unclear)
    raise Unreadable(
        row,
        f"holds {_shown(wall[row])}, which clocks in {zone} show twice ({_shown(early[row])} and {_shown(late[row])} UTC), "
        f"and the order of the rows does not tell which is meant ({count:,} such row{'s' if count > 1 else ''}): "
        "write an offset with the times, or leave these rows out",
    )


def _ascends(stamps: pl.Series, series: pl.Series | None) -> pl.Series:
    """Whether the series of each row begins before it ends."""
    frame = pl.DataFrame({"t": stamps.cast(pl.Int64)})
    ends = pl.col("t").drop_nulls()
    if series is None:
        up = frame.select((ends.last() >= ends.first()).alias("up")).item()
        return pl.repeat(bool(up), len(stamps), eager=True)
    return frame.with_columns(series.alias("s")).select((ends.last() >= ends.first()).over("s").alias("up")).to_series()


def _is_ordered(utc: pl.Series, series: pl.Series | None) -> bool:
    frame = pl.DataFrame({"t": utc.cast(pl.Int64)})
    step = pl.col("t").diff()
    if series is None:
        return bool(frame.select((step >= 0).all() | (step <= 0).all()).item())
    frame = frame.with_columns(series.alias("s"))
    return bool(frame.group_by("s").agg(((step >= 0).all() | (step <= 0).all()).alias("t"))["t"].all())


def _after_gap(wall: pl.Series, zone: str) -> pl.Series:
    """The first moment of a day whose midnight the clock skips: clocks jump by at most a few hours."""
    stamps = [_converted(wall.dt.offset_by(f"{minutes}m"), zone, "earliest") for minutes in (30, 60, 90, 120, 180)]
    return pl.select(pl.coalesce(*stamps)).to_series()


def _never(wall: pl.Series, zone: str, absent: pl.Series) -> Unreadable:
    row, count = int(absent.arg_true()[0]), int(absent.sum())
    one = wall.slice(row, 1)
    hours: list[Int[np.ndarray, " 1"]] = []
    for side in ("-1d", "1d"):
        near = one.dt.offset_by(side)
        there = near.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.convert_time_zone("UTC")
        hours.append((near.cast(pl.Int64) - there.cast(pl.Int64)).to_numpy())
    readings = [pl.Series(one.cast(pl.Int64).to_numpy() - shift).cast(pl.Datetime("ns"))[0] for shift in hours]
    return Unreadable(
        row,
        f"holds {_shown(one[0])}, which clocks in {zone} never show, as they were put forward over it: it would be "
        f"{_shown(readings[0])} or {_shown(readings[1])} UTC ({count:,} such row{'s' if count > 1 else ''}); "
        "is data.timezone right?",
    )


def _shown(moment: object) -> str:
    return str(moment).removesuffix(".000000")
