"""Jobs that run at once see GPUs of their own, as far as there are enough."""

import stat

import pytest

from statewise.sweeps.devices import pinned, visible_devices

FOUR = ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("at_once", "asked", "visible", "seen"),
    [
        (2, "auto", FOUR, ["0,1", "2,3"]),
        (4, "auto", FOUR, ["0", "1", "2", "3"]),
        (2, 1, FOUR, ["0", "1"]),
        (2, "2", FOUR, ["0,1", "2,3"]),
        (3, -1, FOUR, ["0", "1", "2"]),
        (3, 1, ["5", "7"], ["5", "7", "5"]),
        (1, 8, FOUR, ["0,1,2,3"]),
        (2, "auto", ["GPU-1a", "GPU-2b"], ["GPU-1a", "GPU-2b"]),
    ],
)
def test_every_place_has_its_own_devices(at_once, asked, visible, seen):
    assert [pinned(slot, at_once, asked, visible)["CUDA_VISIBLE_DEVICES"] for slot in range(at_once)] == seen


def test_without_devices_nothing_is_set():
    assert pinned(0, 2, "auto", []) == {}


def test_the_environment_says_which_devices_may_be_used():
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "2, 5"}) == ["2", "5"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_where_the_environment_is_silent_nvidia_smi_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_devices({}) == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: H (UUID: a)'\necho 'GPU 1: H (UUID: b)'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert visible_devices({}) == ["0", "1"]
