"""Whole runs by one process and by two that talk over gloo, for test_two_processes.py: `python two_processes.py FOLDER`.

Two forked processes see what torchrun would have set, and give every command as a person does. Each run leaves its folder,
FOLDER/<case>-<processes>, and each process FOLDER/<rank>.json: exit codes and what was said. Before the fork nothing may
differentiate or use polars: both have threads.
"""

import contextlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from statewise.callbacks.exact_order import ExactOrder
from statewise.commands import evaluate
from statewise.train import main

SMALL = [
    "model.d_model=4",
    "model.d_state=4",
    "model.n_layers=1",
    "scheduler.warmup_steps=2",
    "trainer.log_every_n_steps=1",
    "logger=csv",
    "report=false",
    "hardware.threads=1",
]
LTI = ["data=lti", "data.steps=396", "data.window=16"]  # 261 windows to train on
CASES = {
    # Eleven batches, of which the last has one row: the second process has none in it.
    "uneven": [*LTI, "data.batch_size=26", "trainer.max_epochs=2"],
    # Half of the targets are missing: in some batches for one process, in some for both.
    "masked": [
        *["data=file", "data.path={folder}/masked.csv", "data.targets=[y]", "data.missing.policy=fill", "data.window=8"],
        *["data.missing.max_fill=9", "data.batch_size=4", "trainer.max_epochs=1", "trainer.limit_train_batches=60"],
        *["task.loss=huber", "trainer.accumulate_grad_batches=2"],
    ],
    # Seventeen chunks in five streams: the last batch has two, both of the first process.
    "streams": [
        *LTI,
        *["data.sampling=contiguous", "data.batch_size=5", "task.supervision=all", "task.burn_in=3", "trainer.max_epochs=5"],
        *["task.loss=mae", "model.dropout=0"],
    ],
}
TWO, TOGETHER = "hardware=ddp_cpu", 2


def masked_file(path: Path) -> None:
    """Three columns of 400 rows, with half of the values of the target missing, in runs of up to eight."""
    generator = np.random.default_rng(5)
    walk = np.cumsum(generator.normal(size=(400, 3)), 0) * 0.1
    seen = np.repeat(generator.random(50) < 0.5, 8)
    seen[::20] = True
    lines = [f"{a!r},{b!r},{y!r}" if known else f"{a!r},{b!r}," for (a, b, y), known in zip(walk.tolist(), seen, strict=True)]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")


class Process:
    """One of the two, or, for runs of one process, the first alone.

    Args:
        rank: 0 or 1.
        folder: where all runs leave theirs.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder
        self.told: dict[str, Any] = {}

    def run(self, case: str, processes: int, *more: str, of: str | None = None) -> None:
        """A case, under its own name or another."""
        if processes == TOGETHER or self.rank == 0:
            folder = self.folder / f"{case}-{processes}"
            arguments = [*SMALL, *CASES[of or case], *more, *([TWO] if processes == TOGETHER else [])]
            self._say(folder.name, main, [argument.format(folder=self.folder) for argument in (*arguments, _dir(folder))])

    def resume(self, case: str, parent: str, processes: int) -> None:
        """Go on with a run, by as many processes as wanted."""
        if processes == TOGETHER or self.rank == 0:
            folder = self.folder / f"{case}-{processes}"
            hardware = TWO if processes == TOGETHER else "hardware=cpu"
            self._say(folder.name, main, [f"resume={self.folder / parent}", hardware, "hardware.threads=1", _dir(folder)])

    def evaluate(self, case: str, split: str, processes: int) -> None:
        """The table of a run, as JSON."""
        if processes == TOGETHER or self.rank == 0:
            hardware = "ddp_cpu" if processes == TOGETHER else None
            ask = {"as_json": True, "hardware": hardware}
            self._say(f"evaluate-{split}-{processes}", evaluate.main, self.folder / case, split, None, **ask)

    def _say(self, name: str, command: Callable[..., int], *arguments: Any, **options: Any) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command(*arguments, **options)
        self.told[name] = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
        (self.folder / f"{self.rank}.json").write_text(json.dumps(self.told))


def _dir(folder: Path) -> str:
    return f"hydra.run.dir={folder}"


@contextmanager
def at_step(step: int, happens: Callable[[], None]) -> Iterator[None]:
    """Something that happens in this process while it trains on the batch after so many steps."""
    before = ExactOrder.on_train_batch_start

    def hook(self: Any, trainer: Any, *rest: Any) -> None:
        before(self, trainer, *rest)
        if trainer.global_step == step:
            happens()

    ExactOrder.on_train_batch_start = hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExactOrder.on_train_batch_start = before  # type: ignore[method-assign]


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def go_wrong() -> None:
    raise MemoryError("there is no room for this")


def every_case(process: Process) -> None:
    """All runs, in the same order in both processes."""
    for case in CASES:
        process.run(case, 1)
        process.run(case, 2, *(["data.num_workers=2"] if case == "uneven" else []))
    for split in ("test", "val"):
        for processes in (1, 2):
            process.evaluate("uneven-2", split, processes)
    for case in ("uneven", "streams"):
        for first, second in ((1, 2), (2, 1), (2, 2)):
            process.run(f"{case}-stopped-{second}", first, "trainer.stop_after_steps=6", of=case)
            process.resume(f"{case}-resumed-from-{first}", f"{case}-stopped-{second}-{first}", second)
    with at_step(5, stop_here) if process.rank == 1 else contextlib.nullcontext():
        process.run("signal", 2, of="uneven")
    process.resume("after-signal", "signal-2", 2)
    process.run("diverged", 2, "optimizer.lr=1e100", "trainer.gradient_clip_val=null", "health=off", of="uneven")
    process.run("refused", 2, "data.batch_size=1", of="uneven")
    process.run("taken", 2, _dir(process.folder / "uneven-2"), of="uneven")
    with at_step(3, go_wrong) if process.rank == 1 else contextlib.nullcontext():
        process.run("lost", 2, of="uneven")


def begin(rank: int, folder: Path, port: int) -> None:
    """What torchrun sets."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "tests",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    every_case(Process(rank, folder))


if __name__ == "__main__":
    into = Path(sys.argv[1])
    masked_file(into / "masked.csv")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    child = os.fork()
    begin(0 if child else 1, into, number)
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
