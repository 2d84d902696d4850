"""Checkpoints are written whole or not at all, hold plain values, and are refused with a reason."""

import errno

import pytest
import torch

from statewise.checkpoints import (
    AtomicCheckpointIO,
    describe,
    find_checkpoint,
    read_checkpoint,
    refuse_other_shapes,
)


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


def test_an_unreadable_checkpoint_is_named(tmp_path):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read as a checkpoint .* use another checkpoint"):
        read_checkpoint(path)


def test_half_a_checkpoint_is_named(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"statewise": describe({}, []), "state_dict": {"w": torch.zeros(1000)}}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        read_checkpoint(path)


def test_a_checkpoint_with_pickled_objects_is_not_run(tmp_path):
    path = tmp_path / "evil.ckpt"
    torch.save({"statewise": describe({}, []), "state_dict": {}, "object": pytest.Session}, path)
    with pytest.raises(ValueError, match="pickled objects"):
        read_checkpoint(path)


def test_somebody_elses_checkpoint_is_told_apart(tmp_path):
    path = tmp_path / "other.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="is not a checkpoint of statewise"):
        read_checkpoint(path)


def test_a_later_schema_version_is_refused_with_the_release_that_wrote_it(tmp_path):
    path = tmp_path / "new.ckpt"
    torch.save({"statewise": {**describe({}, []), "schema_version": 99, "version": "9.0"}, "state_dict": {}}, path)
    with pytest.raises(ValueError, match=r"schema version 99, .* reads version 1; use the release that wrote it \(9\.0\)"):
        read_checkpoint(path)


def test_other_shapes_missing_and_superfluous_parameters_are_named(tmp_path):
    saved = {"model.ssm_0.B": torch.zeros(4, 8), "model.old": torch.zeros(1)}
    wanted = {"model.ssm_0.B": torch.zeros(4, 16), "model.ssm_0.delta": torch.zeros(8)}
    with pytest.raises(ValueError, match="does not fit this model") as error:
        refuse_other_shapes(tmp_path / "a.ckpt", saved, wanted)
    message = str(error.value)
    assert "ssm_0.B is [4, 8] in the checkpoint and [4, 16] in the model" in message
    assert "ssm_0.delta is missing in the checkpoint" in message
    assert "old is in the checkpoint but not in the model" in message
    assert "\n" not in message


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*nothing"):
        find_checkpoint("nothing", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoints/last\.ckpt"):
        find_checkpoint(".", tmp_path)
