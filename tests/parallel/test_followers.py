"""The further processes that a run starts by itself: one folder, one voice, and an end together."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from statewise.callbacks.exact_order import ExactOrder
from statewise.parallel import followers
from statewise.parallel.followers import OURS, Call, Lost, ended_with_the_run
from statewise.parallel.ranks import RANK

pytestmark = pytest.mark.timeout(240)
TWO = "hardware=ddp_cpu"


def test_a_run_starts_its_second_process_and_leaves_nothing_of_it_behind(train: Any) -> None:
    before = {name: os.environ.get(name) for name in OURS}
    two = train(TWO)
    assert (two.code, two.err) == (0, "")
    assert two.out.count("training health: healthy") == 1
    assert two.summary["status"] == "ok"
    assert {name: os.environ.get(name) for name in OURS} == before
    assert not dist.is_initialized()
    assert not followers._running

    one = train("hardware=cpu")
    assert two.summary["test"]["mse"] == pytest.approx(one.summary["test"]["mse"], rel=1e-12)
    assert {path.name for path in two.folder.iterdir()} == {path.name for path in one.folder.iterdir()}


def test_a_run_whose_second_process_is_killed_ends_in_one_line(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ExactOrder.on_train_batch_start

    def hook(self: Any, trainer: Any, *rest: Any) -> None:
        before(self, trainer, *rest)
        if trainer.global_step == 3:
            followers._running[0].procs[0].kill()

    monkeypatch.setattr(ExactOrder, "on_train_batch_start", hook)
    killed = train(TWO, "trainer.checkpoint_every_n_steps=2")
    assert killed.code == 1
    assert killed.err == "process 1 of this run was ended by SIGKILL\n"
    assert killed.summary["status"] == "failed"
    assert killed.summary["error"] == "process 1 of this run was ended by SIGKILL"
    assert (killed.folder / "checkpoints" / "last.ckpt").is_file()
    assert not dist.is_initialized()


def test_a_run_that_fails_ends_its_second_process(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def hook(self: Any, trainer: Any, *rest: Any) -> None:
        started.extend(followers._running[0].procs)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ExactOrder, "on_train_batch_start", hook)
    failed = train(TWO)
    assert failed.code == 1
    assert failed.err.count("\n") == 1
    assert "No space left on device" in failed.err
    assert [process.returncode is None for process in started] == [False]


def launched(function: str, **arguments: Any) -> None:
    call = Call(function, arguments)
    with ended_with_the_run():
        followers.Followers(LightningEnvironment(), 2, 1, call).launch(lambda: None)


def test_a_process_that_cannot_begin_is_told_with_its_own_last_words() -> None:
    with pytest.raises(Lost, match=r"^process 1 of this run ended with exit code 1: FileNotFoundError: .*nowhere"):
        launched("statewise.fitting:take_part", folder="/nowhere")
    assert not followers._running


def test_a_process_ends_when_the_first_one_is_gone(tmp_path: Path) -> None:
    (tmp_path / followers.CALL).write_text(json.dumps({"function": "time:sleep", "arguments": {"secs": 600}}))
    environment = {followers.FOLDER: str(tmp_path), followers.PARENT: str(os.getpid() + 1), "LOCAL_RANK": "1", RANK: "1"}
    command = [sys.executable, "-m", "statewise.parallel.follow"]
    assert subprocess.run(command, env={**os.environ, **environment}, check=False, timeout=120).returncode == 1


def test_an_exchange_that_another_process_does_not_come_to_is_one_line() -> None:
    words = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
    with pytest.raises(Lost, match=r"waited in vain.*raise hardware\.timeout if it was only slow"), ended_with_the_run():
        raise RuntimeError(words)
