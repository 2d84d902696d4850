"""The embedded default data set: Beijing PM2.5 (CC BY 4.0; source, columns and changes are in ATTRIBUTION.md)."""

from importlib.resources import as_file, files
from pathlib import Path

from statewise.data.files.reading import Reading
from statewise.data.tables.table import Table, read_table

CHANNELS = ("pm2.5", "DEWP", "TEMP", "PRES", "Iws")  # the channels of the reference figures, features and targets both


def air_quality() -> Table:
    """Five years of hourly air quality and weather in Beijing: 43,824 rows without a gap, pm2.5 with 2,067 missing.

    The table has Is and Ir (hours of snow and rain) beside the CHANNELS; the wind direction in the file is text.
    """
    with as_file(files(__package__) / "beijing_pm25.csv.zst") as path:
        return read_table(str(path), folder=Path(path).parent, reading=Reading(time="time"))
