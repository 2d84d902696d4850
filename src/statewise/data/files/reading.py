"""What a user says about a file that the file does not say itself; the keys are those of conf/data/file.yaml."""

from dataclasses import dataclass

from statewise.choices import one_of

LABELS = ("start", "end")
DUPLICATES = ("error", "first", "last")


@dataclass(frozen=True)
class Reading:
    """How a file is read. None (or nothing) everywhere means: as the file itself shows.

    Attributes:
        time: the column of times, or the columns that make a time together (date and clock; year, month, day, hour).
        series: the column that tells several series apart.
        names: of all columns, for a file without a header.
        separator, decimal, thousands: one character each, of text files.
        null_values: texts that stand for a missing value, beside the usual ones.
        header: lines that hold column names; 0 says that there are none.
        skip: lines above them that hold neither names nor values.
        day_first: whether 03/04/2024 is the third of April.
        timezone: of times that carry none, as Europe/Berlin.
        bar_label: whether a time is the start of its bar, or the end.
        duplicates: what two rows of one series and time mean: `error`, or which of them counts.
    """

    time: str | tuple[str, ...] | None = None
    series: str | None = None
    names: tuple[str, ...] | None = None
    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    null_values: tuple[str, ...] = ()
    header: int | None = None
    skip: int | None = None
    day_first: bool | None = None
    timezone: str | None = None
    bar_label: str = "start"
    duplicates: str = "error"

    def __post_init__(self) -> None:
        one_of("data.bar_label", self.bar_label, LABELS)
        one_of("data.duplicates", self.duplicates, DUPLICATES)


AS_IT_IS = Reading()
