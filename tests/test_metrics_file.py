"""metrics.csv can be read whatever happened to the run that wrote it."""

import errno
import math
from pathlib import Path

import pytest

from statewise import metrics_file
from statewise.metrics_file import MetricsFile
from statewise.runs import METRICS, Run


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def csv(folder):
    return MetricsFile(folder, name="", version="")


def rows(folder):
    metrics = Run(folder).metrics
    return [] if metrics is None else metrics.to_dicts()


def test_numbers_come_back_with_all_their_digits(csv, folder):
    csv.log_metrics({"loss": 0.1 + 0.2, "name, with comma": math.nan}, step=0)
    csv.save()
    csv.log_metrics({"loss": 1e-300}, step=1)
    csv.save()
    first, second = rows(folder)
    assert first["loss"] == 0.1 + 0.2
    assert math.isnan(first["name, with comma"])
    assert second == {"loss": 1e-300, "name, with comma": None, "step": 1}


def test_a_metric_that_comes_later_gets_a_column_and_no_row_is_lost(csv, folder):
    for step in range(5):
        csv.log_metrics({"loss": float(step)} | ({"late": 7.0} if step == 3 else {}), step=step)
        csv.save()
    assert [(row["loss"], row["late"]) for row in rows(folder)] == [(0, None), (1, None), (2, None), (3, 7), (4, None)]


def test_half_a_line_at_the_end_is_not_a_row(csv, folder):
    csv.log_metrics({"loss": 0.25}, step=0)
    csv.save()
    path = folder / METRICS
    path.write_bytes(path.read_bytes() + b"0.12")  # of 0.125,1
    assert rows(folder) == [{"loss": 0.25, "step": 0}]
    path.write_bytes(b"loss,st")
    assert rows(folder) == []


def full(*arguments, **keywords):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_file_as_it_was_and_the_rows_wait(csv, folder, monkeypatch):
    csv.log_metrics({"loss": 1.0}, step=0)
    csv.save()
    csv.log_metrics({"late": 2.0}, step=1)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match=f"No space left on device: '{folder / METRICS}'"):
            csv.save()
    assert [path.name for path in folder.iterdir()] == [METRICS]
    assert rows(folder) == [{"loss": 1.0, "step": 0}]
    csv.save()
    assert rows(folder) == [{"late": None, "loss": 1.0, "step": 0}, {"late": 2.0, "loss": None, "step": 1}]


class Half:
    """A file on a disk with room for a few more bytes."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(data[:3])
        self.file.flush()
        full()


def test_half_a_line_that_a_full_disk_took_is_taken_back(csv, folder, monkeypatch):
    csv.log_metrics({"loss": 1.0}, step=0)
    csv.save()
    csv.log_metrics({"loss": 2.0}, step=1)
    opened = Path.open

    def open_half(path, mode="r", *arguments, **keywords):
        file = opened(path, mode, *arguments, **keywords)
        return Half(file) if mode == "ab" else file

    with monkeypatch.context() as patch:
        patch.setattr(metrics_file.Path, "open", open_half)
        with pytest.raises(OSError, match="No space left"):
            csv.save()
    assert (folder / METRICS).read_text().splitlines() == ["loss,step", "1.0,0"]
    csv.save()
    assert [row["loss"] for row in rows(folder)] == [1.0, 2.0]
