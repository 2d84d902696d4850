"""The columns of several files under each other: by name, in types that hold the values of all."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from statewise.data.files.reading import Reading

_NANOSECONDS = {False: pl.Datetime("ns"), True: pl.Datetime("ns", "UTC")}
_TIME_WORDS = re.compile(r"(^|[^a-z])(ts|t|dt|ds|date|time|epoch|unix|utc)($|[^a-z])|datetime|timestamp")
Wanted = Sequence[str] | Callable[[Sequence[str]], Sequence[str]] | None
_SHOWN = 3  # files or columns named in a message


def joined(files: Sequence[tuple[str, pl.LazyFrame]], wanted: Wanted, reading: Reading) -> tuple[pl.LazyFrame, list[str]]:
    """One frame of all files, named frames with any order of columns, and sentences about what is left out.

    wanted: the numeric columns that are needed, or what says them from all names; None means all.
    Raises ValueError with one line: files that lack columns, or hold them in types that do not go together.
    """
    schemas = [dict(frame.collect_schema()) for _, frame in files]
    names, notes = _common_names([name for name, _ in files], schemas, wanted, reading)
    meetings: dict[str, Callable[[Any], pl.Expr]] = {}
    nested = []
    for name in names:
        types = [schema[name] for schema in schemas]
        families = {_family(kind) for kind in types}
        if families == {"nested"}:
            nested.append(name)
            continue
        if len(set(map(str, types))) == 1 and families != {"text"}:
            meetings[name] = lambda _, name=name: pl.col(name)  # type: ignore[misc]
            continue
        if "nested" in families or "span" in families:
            at = next(i for i, kind in enumerate(types) if _family(kind) != _family(types[0]) or kind != types[0])
            raise ValueError(
                f'data.path: the column "{name}" has different types that do not go together: {types[0]} in {files[0][0]}, '
                f"{types[at]} in {files[at][0]}; write it in one type or read the files apart"
            )
        meetings[name] = _meeting(name, files, types, _is_time(name, reading))
    if nested:
        notes.append(f"left out, lists, structures or bytes: {', '.join(nested)}")
    parts = [
        frame.select([meetings[name](schema[name]) for name in meetings])
        for (_, frame), schema in zip(files, schemas, strict=True)
    ]
    return parts[0] if len(parts) == 1 else pl.concat(parts, how="vertical"), notes


def _common_names(
    files: list[str], schemas: list[dict[str, Any]], wanted: Wanted, reading: Reading
) -> tuple[list[str], list[str]]:
    """The columns that all files have, in the order of the first; others are refused unless nobody asks for them."""
    every = list(dict.fromkeys(name for schema in schemas for name in schema))
    common = [name for name in schemas[0] if all(name in schema for schema in schemas)]
    extra = [name for name in every if name not in common]
    if not extra:
        return common, []
    asked = wanted(every) if callable(wanted) else wanted
    # A file without a time would silently be taken as it stands.
    needed = [name for name in extra if name in (asked or ()) or name == reading.series or _is_time(name, reading)]
    if asked is not None and not needed and any(len(schema) == len(common) for schema in schemas):
        return common, [f"left out, not in all files: {_listed(extra)}"]
    lacking = [(file, [name for name in every if name not in schema]) for file, schema in zip(files, schemas, strict=True)]
    said = [f"{file} has no {_listed(names)}" for file, names in lacking if names]
    more = f" ({len(said) - _SHOWN} more such files)" if len(said) > _SHOWN else ""
    if len({frozenset(name.lower() for name in schema) for schema in schemas}) == 1:
        more += " (they differ in upper and lower case only)"
    raise ValueError(
        f"data.path: the files have different columns: {'; '.join(said[:_SHOWN])}{more}; give them the same columns, "
        "read them apart, or name in data.features only columns that all files have"
    )


def _family(kind: Any) -> str:
    if kind.is_nested() or kind in (pl.Binary, pl.Object):
        return "nested"
    families = (
        ("whole", kind.is_integer()),
        ("real", kind.is_float() or kind.is_decimal()),
        ("text", kind in (pl.String, pl.Categorical, pl.Enum)),
        ("moment", kind in (pl.Datetime, pl.Date)),
        ("clock", kind == pl.Time),
        ("span", kind == pl.Duration),
        ("flag", kind == pl.Boolean),
    )
    return next((family for family, fits in families if fits), "nothing")


def _meeting(name: str, files: Sequence[tuple[str, pl.LazyFrame]], types: list[Any], is_time: bool) -> Callable[[Any], pl.Expr]:
    """How a column of each of these types becomes one of a type that holds all of their values."""
    families = {_family(kind) for kind in types}
    if "text" in families and len(families) > 1:
        # A column of text without a value says nothing about its type.
        empty = [
            _family(kind) == "text" and frame.select(pl.col(name).is_null().all()).collect().item()
            for (_, frame), kind in zip(files, types, strict=True)
        ]
        families = {_family(kind) for kind, nothing in zip(types, empty, strict=True) if not nothing}
        types = [kind for kind, nothing in zip(types, empty, strict=True) if not nothing]
    families -= {"nothing"}
    column = pl.col(name)
    # A float64 would lose the last digits of nanoseconds.
    if families == {"real"} or (families == {"whole", "real"} and not is_time):
        return lambda _: column.cast(pl.Float64)
    if families == {"whole"}:
        whole = _whole([kind for kind in types if _family(kind) == "whole"])
        return lambda _: column.cast(whole)
    zones = {getattr(kind, "time_zone", None) is not None for kind in types if _family(kind) == "moment"}
    if families == {"moment"} and len(zones) == 1:
        moment = _NANOSECONDS[zones.pop()]
        return lambda kind: column.cast(moment) if _zone(kind) is None else column.dt.convert_time_zone("UTC").cast(moment)
    return lambda kind: _as_text(column, kind)


def _whole(types: list[Any]) -> Any:
    if pl.UInt64 not in types:
        return pl.Int64
    return pl.UInt64 if all(kind.is_unsigned_integer() for kind in types) else pl.Int128


def _zone(kind: Any) -> str | None:
    zone: str | None = getattr(kind, "time_zone", None)
    return zone


def _as_text(column: pl.Expr, kind: Any) -> pl.Expr:
    if _zone(kind) is not None:
        return column.dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%S%.9fZ")
    if kind == pl.Datetime:
        return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.9f")
    return column.cast(pl.String)


def _is_time(name: str, reading: Reading) -> bool:
    named = (reading.time,) if isinstance(reading.time, str) else reading.time or ()
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # openTime
    return name in named or _TIME_WORDS.search(plain) is not None


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )
