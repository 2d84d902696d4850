"""Checkpoints hold plain values, and are refused with a reason."""

import pytest
import torch

from statewise.checkpoints import describe, find_checkpoint, read_checkpoint


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


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*nothing"):
        find_checkpoint("nothing", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoints/last\.ckpt"):
        find_checkpoint(".", tmp_path)


def test_a_run_that_was_imported_has_its_best_checkpoint_only(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in ("best.ckpt", "last.ckpt"):
        (tmp_path / "run" / "checkpoints" / name).write_bytes(b"x")
        assert find_checkpoint("run", tmp_path).name == name
