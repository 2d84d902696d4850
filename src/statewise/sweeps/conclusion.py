"""The end of a multirun: its tables in the terminal, and what its folder keeps of all jobs together: two tables and a page."""

import logging
from pathlib import Path

from statewise.console import console
from statewise.sweeps import composed
from statewise.sweeps.choosing import objective_name
from statewise.sweeps.comparison import write_comparison
from statewise.sweeps.fold_table import fold_groups, fold_table, write_folds
from statewise.sweeps.rows import Row, rows_of
from statewise.sweeps.table import print_sweep, write_sweep_csv

log = logging.getLogger(__name__)


def conclude(folder: Path) -> list[Row]:
    """Say what came of the jobs in a sweep's folder, and write what is kept of all of them together; returns their rows.

    Works from what the jobs have left in their folders, wherever they ran. What cannot be written is said in a line each
    and costs nothing else. The page is drawn where a run has a report of its own (report=true).

    Raises: FileNotFoundError where no job has left anything.
    """
    folder = Path(folder).absolute()
    rows, to = rows_of(folder), console()
    print_sweep(rows, folder, objective=objective_name(rows), to=to)
    groups = fold_groups(rows)
    if groups:
        to.print(fold_table(groups))
    try:
        write_sweep_csv(folder)
        if groups:
            write_folds(groups, folder)
        if any(composed.settings(row.folder).get("report") for row in rows):
            to.print(f"all of them on one page: {write_comparison(folder)}", soft_wrap=True, markup=False)
    except OSError as error:
        log.warning("what is kept of the sweep could not be written: %s", error)
    return rows
