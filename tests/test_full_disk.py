"""A disk that fills up while a run goes on costs one line and the steps since the last checkpoint, nothing else."""

import errno
import os

import pytest
import torch

from statewise import runs
from statewise.checkpoints import AtomicCheckpointIO


def full(*arguments, **keywords):
    raise OSError(errno.ENOSPC, "No space left on device")


class Full:
    """A file on a disk that has room for so many more bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        part = memoryview(data)[: self.room]
        self.file.write(part)
        self.room -= len(part)
        if not self.room:
            full()
        return len(part)

    def flush(self):
        self.file.flush()


@pytest.fixture(params=["write", "fsync", "rename"])
def fills_up(request, monkeypatch):
    """Let the disk fill up in the `number`th checkpoint."""

    def arm(number):
        save, calls = torch.save, iter(range(1, 1000))
        begun = {"number": 0}

        def counted(content, file):
            begun["number"] = next(calls)
            save(content, Full(file, 9000) if request.param == "write" and begun["number"] == number else file)

        def unless_due(call):
            return lambda *arguments: full() if begun["number"] == number else call(*arguments)

        monkeypatch.setattr(torch, "save", counted)
        if request.param != "write":
            name = {"fsync": "fsync", "rename": "replace"}[request.param]
            monkeypatch.setattr(os, name, unless_due(getattr(os, name)))

    return arm


def test_the_last_good_checkpoint_stays_and_the_file_is_named(tmp_path, fills_up):
    path = tmp_path / "last.ckpt"
    fills_up(2)
    AtomicCheckpointIO().save_checkpoint({"step": 1, "weights": torch.zeros(5000)}, path)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        AtomicCheckpointIO().save_checkpoint({"step": 2, "weights": torch.zeros(5000)}, path)
    assert torch.load(path)["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_run_on_a_disk_that_fills_up_ends_with_one_line_and_can_be_continued(train, fills_up, monkeypatch):
    overrides = ["model.dropout=0.2", "trainer.checkpoint_every_n_steps=2"]
    whole = train(*overrides)
    fills_up(3)  # after step 5
    first = train(*overrides)
    assert first.code == 1
    assert first.err.count("No space left on device") == 1
    assert "last.ckpt" in first.err
    assert len(first.err.strip().splitlines()) == 1
    assert torch.load(first.folder / "checkpoints" / "last.ckpt")["global_step"] == 4
    assert not list(first.folder.rglob(".*.partial"))
    monkeypatch.undo()
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    ends = [torch.load(run.folder / "checkpoints" / "last.ckpt")["state_dict"] for run in (whole, second)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("name", ["metrics.csv", "predictions.parquet", "summary.json", "gradient_norms.parquet"])
def test_whatever_file_is_the_one_too_many_the_run_says_so_in_one_line(name, train, monkeypatch):
    replace = os.replace

    def full_for_one(source, target):
        if str(target).endswith(name):
            full()
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_for_one)
    outcome = train()
    assert outcome.code == 1
    assert len(outcome.err.strip().splitlines()) == 1
    assert f"No space left on device: '{outcome.folder / name}'" in outcome.err
    assert not list(outcome.folder.rglob(".*.partial"))
    assert runs.Run(outcome.folder).summary is None or outcome.summary["status"] == "failed"
