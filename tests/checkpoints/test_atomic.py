"""Checkpoints are written whole or not at all."""

import errno

import pytest
import torch

from statewise.checkpoints import AtomicCheckpointIO


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    io = AtomicCheckpointIO()
    io.save_checkpoint({"step": 1}, path)

    def disk_full(*args, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    with pytest.raises(OSError, match="No space left"):
        io.save_checkpoint({"step": 2}, path)
    assert torch.load(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]
