"""metrics.csv: the numbers of a run in full float64, in a file that a run which is killed, or a full disk, leaves readable."""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from statewise.runs import atomic_file


class MetricsFile(CSVLogger):
    """Lightning's CSV logger, whose file is whole at any moment: it makes a new one where a metric has come to be known."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            os.makedirs(self.root_dir, exist_ok=True)
            self._experiment = _WholeFile(log_dir=self.log_dir)
        return self._experiment


class _WholeFile(ExperimentWriter):
    """Rows are added at the end, or nothing of them; a new header goes with the old rows into a new file."""

    def save(self) -> None:
        """Write the rows that have come since the last time.

        Raises:
            OSError: the disk is full; the file holds what it held, and the rows wait for the next time.
        """
        if not self.metrics:
            return
        path, known = Path(self.metrics_file_path), list(self.metrics_keys)
        new = self._record_new_keys()
        try:
            if new or not path.is_file():
                self._write_anew(path)
            else:
                _append(path, self._lines(self.metrics))
        except OSError:
            self.metrics_keys = known
            raise
        self.metrics = []

    def _write_anew(self, path: Path) -> None:
        before: list[dict[str, Any]] = []
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                before = list(csv.DictReader(file))
        with atomic_file(path) as target:
            target.write(self._lines([dict(zip(self.metrics_keys, self.metrics_keys, strict=True)), *before, *self.metrics]))

    def _lines(self, rows: Iterable[Mapping[str, Any]]) -> bytes:
        text = io.StringIO(newline="")
        csv.DictWriter(text, fieldnames=self.metrics_keys).writerows(rows)
        return text.getvalue().encode()


def _append(path: Path, lines: bytes) -> None:
    size = path.stat().st_size
    try:
        with path.open("ab") as file:
            file.write(lines)
    except OSError as error:
        os.truncate(path, size)
        raise OSError(error.errno, error.strerror, str(path)) from error
