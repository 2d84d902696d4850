"""The further processes of a run, as rank 0 sees them: started with one call, watched, and ended.

Each begins `python -m statewise.parallel.follow`, finds its call in a folder that lasts as long as the run, says there that it
is ready, and writes its errors there. Under srun and torchrun, which start all processes themselves, nothing of this is used.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from statewise.parallel import ranks

FOLDER = "STATEWISE_FOLLOWS"  # set in a process that was started by another one of its run
PARENT = "STATEWISE_PARENT"
CALL, READY, ERRORS = "call.json", "ready.{rank}", "errors.{rank}.txt"
OURS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "OMP_NUM_THREADS")
SECONDS_TO_NOTICE = 20.0  # for this process to see by itself that another one is gone
SECONDS_TO_END = 60.0  # for another process to end after the run


@dataclass(frozen=True)
class Call:
    """A function that a further process calls, `module:name`, with arguments that JSON can hold."""

    function: str
    arguments: Mapping[str, Any]


class Lost(RuntimeError):
    """Another process of this run has ended before its time; the message is the one line that says which and how."""


class Followers(_SubprocessScriptLauncher):
    """Starts the further processes of this node and goes on when all are ready.

    Args:
        call: what each of them has to do; it must come to the same `Trainer` calls in the same order. None in a process
            that is one of them.
    """

    def __init__(
        self, cluster_environment: ClusterEnvironment, num_processes: int, num_nodes: int, call: Call | None = None
    ) -> None:
        super().__init__(cluster_environment, num_processes, num_nodes)
        self.call = call
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._done = threading.Event()

    def launch(self, function: Callable[..., Any], *args: Any, trainer: "L.Trainer | None" = None, **kwargs: Any) -> Any:
        """Start the others, the first time, and call `function`, in which they meet.

        Raises:
            Lost: one of them ended before it was ready.
        """
        if place := os.environ.get(FOLDER):
            Path(place, READY.format(rank=os.environ["LOCAL_RANK"])).touch()
        elif self.call is not None and not self.procs and not self.cluster_environment.creates_processes_externally:
            self._start(self.call)
        return function(*args, **kwargs)

    def _start(self, call: Call) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="statewise-processes-")
        folder = Path(self._folder.name)
        folder.joinpath(CALL).write_text(json.dumps({"function": call.function, "arguments": dict(call.arguments)}))
        _running.append(self)
        shared = {
            FOLDER: str(folder),
            PARENT: str(os.getpid()),
            "MASTER_ADDR": self.cluster_environment.main_address,
            "MASTER_PORT": str(self.cluster_environment.main_port),
            "NODE_RANK": str(self.cluster_environment.node_rank()),
            "WORLD_SIZE": str(self.num_processes * self.num_nodes),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),  # what this process can import
        }
        if "OMP_NUM_THREADS" not in os.environ:
            threads = max(1, (os.cpu_count() or 1) // self.num_processes)
            torch.set_num_threads(threads)
            shared["OMP_NUM_THREADS"] = str(threads)
        for rank in range(1, self.num_processes):
            with open(folder / ERRORS.format(rank=rank), "wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-m", "statewise.parallel.follow"],
                    env={**os.environ, **shared, "LOCAL_RANK": str(rank), ranks.RANK: str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,  # Ctrl+C is for rank 0, which tells the others
                )
            self.procs.append(process)
        while not all((folder / READY.format(rank=rank)).exists() for rank in range(1, self.num_processes)):
            if lost := self.lost():
                raise Lost(lost)
            time.sleep(0.02)
        threading.Thread(target=self._watch, daemon=True, name="followers").start()

    def lost(self, patience: float = 0.0) -> str | None:
        """Which process has ended with an error, in one line; waits so many seconds for one to do so."""
        until = time.monotonic() + patience
        while True:
            for rank, process in enumerate(self.procs, 1):
                if process.poll():
                    return self._line(rank, process.returncode)
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def said(self) -> str:
        """All that the others wrote."""
        return "" if self._folder is None else "".join(self._errors(rank) for rank in range(1, self.num_processes))

    def end(self, patience: float) -> None:
        """Wait so many seconds for the others to end, then end them."""
        self._done.set()
        until = time.monotonic() + patience
        for process in self.procs:
            try:
                process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def _errors(self, rank: int) -> str:
        assert self._folder is not None
        return Path(self._folder.name, ERRORS.format(rank=rank)).read_text(errors="replace")

    def _line(self, rank: int, code: int) -> str:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = [line.strip() for line in self._errors(rank).splitlines() if line.strip()]
        return f"process {rank} of this run {how}" + (f": {lines[-1]}" if lines else "")

    def _watch(self) -> None:
        """A process that hangs in a collective with a lost one cannot be told anything: end it, with the line."""
        while not self._done.wait(1.0):
            if self.lost() and not self._done.wait(SECONDS_TO_NOTICE):
                sys.stderr.write(f"{self.lost()}; this process could not go on without it\n")
                sys.stderr.flush()
                for process in self.procs:
                    process.kill()
                os._exit(1)


_running: list[Followers] = []


@contextmanager
def ended_with_the_run() -> Iterator[None]:
    """Whatever starts further processes in here finds them gone after it, and the process group, and its environment as before.

    Raises:
        Lost: instead of the error that a lost process causes here.
    """
    environment = {name: os.environ.get(name) for name in OURS}
    patience = 0.0
    try:
        yield
        patience = SECONDS_TO_END
    except RuntimeError as error:
        if type(error) is RuntimeError or isinstance(error, torch.distributed.DistError):
            raise _explained(error) from error
        raise
    finally:
        ranks.leave()
        while _running:
            _running.pop().end(patience)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _explained(error: RuntimeError) -> RuntimeError:
    for followers in _running:
        if lost := followers.lost(patience=5.0):
            return Lost(lost)
    if "Timed out waiting" in str(error):  # gloo's words
        return Lost(
            "a process of this run waited in vain for another one, which is alive and did not come to the same exchange: raise "
            "hardware.timeout if it was only slow; else it has left the training loop alone"
        )
    if ranks.together() and (isinstance(error, torch.distributed.DistError) or "onnection" in str(error)):
        return Lost("another process of this run has ended or does not answer; its own last words say why")
    return error
