"""From raw columns to numbers, a whole column at a time.

What cannot be read is flagged and left to the caller to name the place: nothing that is not on the short list of missing
markers, or declared, ever becomes NaN. How a column writes its numbers is found in notation.py.
"""

from dataclasses import dataclass

import polars as pl

from statewise.data.files.markers import MISSING

UNDEFINED_PRICE = 9223372036854775807  # Databento's marker for a price that does not exist: the largest int64
CURRENCY = r"[$€£¥₹₩₽₿]"
_POWERS = {"k": "e3", "m": "e6", "b": "e9", "t": "e12"}
_EXACT = 2**53  # whole numbers up to here are exact in float64


@dataclass(frozen=True)
class Notation:
    """How a column writes its numbers.

    Attributes:
        null_values: texts that stand for a missing value, beside MISSING.
        thousands, decimal: the characters between groups of three digits and before the fraction.
        percent, currency: whether every value carries such a sign; the number beside it is the value.
        powers: whether K, M, B or T behind a number stands for a thousand, a million, a billion or a trillion.
        billionths: whether whole numbers count 1e-9, as the prices of Databento do.
    """

    null_values: tuple[str, ...] = ()
    thousands: str | None = None
    decimal: str | None = None
    percent: bool = False
    currency: bool = False
    powers: bool = False
    billionths: bool = False

    @property
    def plain(self) -> bool:
        """Whether the text is as polars reads numbers."""
        return not (self.thousands or self.decimal not in (None, ".") or self.percent or self.currency or self.powers)


PLAIN = Notation()


@dataclass(frozen=True)
class Numbers:
    """A column as Float64 (missing is NaN), the rows that hold something else, and what is worth a sentence.

    Attributes:
        undefined: values that mark a price which does not exist.
        inexact: whole numbers too large for float64 to hold exactly.
    """

    values: pl.Series
    bad: pl.Series  # bool
    undefined: int
    inexact: int = 0

    @property
    def mostly_numeric(self) -> bool:
        """Whether at least half of what is there, and at least one value, reads as a number."""
        good, bad = int(self.values.is_not_nan().sum()), int(self.bad.sum())
        return good > 0 and good >= bad


def absent(raw: pl.Series, null_values: tuple[str, ...] = ()) -> pl.Series:
    """Which values are missing: null, or one of the markers."""
    if raw.dtype == pl.String:
        return raw.is_null() | raw.is_in([*MISSING, *null_values]).fill_null(True)
    return raw.is_null()


def parse_numbers(raw: pl.Series, notation: Notation = PLAIN) -> Numbers:
    """Reads a column of text or of any numeric type; truth values are no numbers. 1e400 reads as infinite."""
    if not (raw.dtype == pl.String or raw.dtype.is_numeric() or raw.dtype == pl.Null):
        nothing = pl.repeat(float("nan"), len(raw), eager=True, dtype=pl.Float64)
        return Numbers(nothing.rename(raw.name), raw.is_not_null(), 0)
    if raw.dtype == pl.String:
        return _from_text(raw, notation)
    values = raw.cast(pl.Float64, strict=False)
    if not raw.dtype.is_integer():
        return Numbers(values.fill_null(float("nan")), pl.repeat(False, len(raw), eager=True), 0)
    return _from_whole(raw, values, raw.is_null() & False, notation)


def _from_text(raw: pl.Series, notation: Notation) -> Numbers:
    text = raw if notation.plain else _plain_text(raw, notation)
    values = text.cast(pl.Float64, strict=False)
    bad = values.is_null() & raw.is_not_null()
    if notation.null_values:
        declared = raw.is_in(list(notation.null_values)).fill_null(False)
        values, bad = pl.select(pl.when(~declared).then(values)).to_series(), bad & ~declared
    if bool(bad.any()):
        bad = bad & ~absent(raw)
    # Text is read as whole numbers a second time only where that makes a difference.
    if not _large(values) and not notation.billionths:
        return Numbers(values.fill_null(float("nan")).rename(raw.name), bad, 0)
    return _from_whole(text.cast(pl.Int64, strict=False), values, bad, notation)


def _from_whole(whole: pl.Series, values: pl.Series, bad: pl.Series, notation: Notation) -> Numbers:
    """`values` are the numbers of `whole`, in which everything is null that is no whole number."""
    # A narrower type cannot hold the mark, and does not compare with it.
    wide = whole.dtype in (pl.Int64, pl.UInt64, pl.Int128)
    undefined = (whole == UNDEFINED_PRICE).fill_null(False) if wide else pl.repeat(False, len(whole), eager=True)
    count, inexact = int(undefined.sum()), 0
    if count:
        values = pl.select(pl.when(~undefined).then(values)).to_series()
    if _large(values):
        same = values.cast(pl.Int128, strict=False) == whole.cast(pl.Int128)
        inexact = int((~same.fill_null(True)).sum())
    if notation.billionths:
        # NumPy divides; polars multiplies by an inverse, whose last bit is another.
        values = pl.Series(values.fill_null(float("nan")).to_numpy() / 1e9)
    return Numbers(values.fill_null(float("nan")).rename(whole.name), bad, count, inexact)


def _large(values: pl.Series) -> bool:
    low, high = values.min(), values.max()
    return any(isinstance(end, float) and abs(end) >= _EXACT for end in (low, high))


def _plain_text(raw: pl.Series, notation: Notation) -> pl.Series:
    """The text as polars reads numbers; null where it does not follow the notation."""
    text = pl.col("x")
    if notation.currency:
        text = text.str.replace(rf"^([+-]?)\s*{CURRENCY}\s*([+-]?[\d.,])", "$1$2").str.replace(rf"(\d)\s*{CURRENCY}$", "$1")
    if notation.percent:
        text = text.str.replace(r"\s*%$", "")
        text = pl.when(pl.col("x").str.ends_with("%")).then(text)
    power = pl.lit("")
    if notation.powers:
        power = text.str.extract(r"\d\s*([KkMmBbTt])$").str.to_lowercase().replace_strict(_POWERS, default="").fill_null("")
        text = text.str.replace(r"\s*[KkMmBbTt]$", "")
    decimal = notation.decimal or "."
    if notation.thousands:
        group = rf"\d{{1,3}}(?:[{_escaped(notation.thousands)}]\d{{3}})+"
        right = text.str.contains(rf"^[+-]?(?:{group}|\d*)(?:[{_escaped(decimal)}]\d*)?(?:[eE][+-]?\d+)?$")
        text = pl.when(right).then(text.str.replace_all(notation.thousands, "", literal=True))
    if decimal != ".":
        text = pl.when(~text.str.contains(".", literal=True)).then(text.str.replace(decimal, ".", literal=True))
    return raw.to_frame("x").select((text + power).alias("x")).to_series()


def _escaped(character: str) -> str:
    return "\\" + character if character in r"\^-]['.,_" and not character.isalnum() else character
