"""A run that is killed a hundred times: does every checkpoint load, does the run go on, and is its end the same?

    python benchmarks/kill_loop.py --times 100

A small run is started with `resume=auto` again and again, each time in a process of its own that is killed (signal 9) at a
moment drawn at random: at some time, or inside the writing of a checkpoint (after some of its bytes, before and after fsync,
before and after the rename, around the second name that makes it the best one). After each kill it is checked that

- every file named *.ckpt loads, and last.ckpt has its best.ckpt beside it;
- last.ckpt is not older than the last one that was reported as written, and at most one step behind (it is written every step);
- metrics.csv and summary.json, if there are any, can be read.

A run that comes to its end must have the weights, the optimizer, the callbacks' memories and the predictions of a run that
was never killed, to the bit; then the next one begins. Exit code 0 if all of it holds, else 1.

The processes are forked from this one, which has imported everything and computed nothing: each begins at once. What is
checked is checked in such a process as well, because a library that has begun its threads does not survive a fork.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import statewise.fitting
import statewise.run_record  # noqa: F401  imported before the first fork
from statewise import sameness, train
from statewise.attempts import attempts
from statewise.callbacks.checkpoints import BestAndLast
from statewise.callbacks.stopping import Stopping
from statewise.checkpoints import read_checkpoint
from statewise.runs import Run

RUN = (
    "data=lti",
    "data.steps=400",
    "data.window=16",
    "data.batch_size=64",
    "model.d_model=4",
    "model.d_state=4",
    "model.n_layers=1",
    "model.dropout=0.2",
    "scheduler.warmup_steps=2",
    "trainer.max_epochs=4",
    "trainer.log_every_n_steps=1",
    "trainer.checkpoint_every_n_steps=1",
    "report=false",
)
CLOCK = "at some time"
WRITING = "while a checkpoint is written"
CALLS = {  # what is interrupted: a function of os, and whether the kill comes after it
    "before fsync": ("fsync", False),
    "after fsync": ("fsync", True),
    "before the rename": ("replace", False),
    "after the rename": ("replace", True),
    "before the second name": ("link", False),
    "after the second name": ("link", True),
}
LONGEST = 300.0  # seconds that a run may take before it counts as hanging


@dataclass(frozen=True)
class Kill:
    """When a run is killed. at: seconds, the number of the call, or (number of the checkpoint, bytes of it)."""

    kind: str
    at: float | int | tuple[int, int]

    def __str__(self) -> str:
        if isinstance(self.at, tuple):
            return f"{self.kind} (number {self.at[0]}, byte {self.at[1]:,})"
        return f"{self.kind} ({self.at:.2f} s)" if isinstance(self.at, float) else f"{self.kind} (number {self.at})"


@dataclass(frozen=True)
class Told:
    """What a run said before it was killed: steps made, steps of checkpoints written; and how it ended."""

    steps: tuple[int, ...]
    written: tuple[int, ...]
    status: int
    seconds: float
    said: str

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


def draw(rng: random.Random, seconds: float, size: int) -> Kill:
    """A moment in a run that takes so many seconds and whose checkpoints have so many bytes."""
    kind = rng.choice([CLOCK, CLOCK, WRITING, WRITING, *CALLS])
    if kind == CLOCK:
        return Kill(kind, rng.uniform(0.05, 1.1 * seconds))
    number = rng.randint(1, 8)
    return Kill(kind, (number, rng.randrange(size)) if kind == WRITING else number)


def run(arguments: Sequence[str], kill: Kill | None) -> Told:
    """One attempt in a process of its own."""

    def attempt(pipe: int) -> int:
        tell(pipe)
        if kill is not None and kill.kind != CLOCK:
            arm(kill)
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = train.main(list(arguments))
        os.write(pipe, f"said {said.getvalue()[-2000:]!r}\n".encode())
        return code

    start = time.perf_counter()
    status, text = forked(attempt, kill.at if kill is not None and isinstance(kill.at, float) else LONGEST)
    lines = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    steps, written = (tuple(int(value) for key, value in lines if key == name) for name in ("step", "written"))
    said = next((value for key, value in lines if key == "said"), text)
    return Told(steps, written, status, time.perf_counter() - start, said)


def forked(work: Callable[[int], int], seconds: float) -> tuple[int, str]:
    """Do `work` in a child, which is given a pipe and returns its exit code: its status, and what it wrote into the pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            code = work(writing)
        except BaseException as error:
            os.write(writing, f"said {error!r}\n".encode())
        finally:
            os._exit(code)
    os.close(writing)
    status = wait(child, seconds)
    with os.fdopen(reading) as pipe:
        return status, pipe.read()


def wait(child: int, seconds: float) -> int:
    """Until it has ended, or is killed after so many seconds; the status as os.waitpid gives it."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def tell(pipe: int) -> None:
    """In the child: each step and each checkpoint is reported when it is made."""
    save, after_batch = BestAndLast.save_last, Stopping.on_train_batch_end

    def save_last(self: BestAndLast, trainer: Any) -> None:
        save(self, trainer)
        os.write(pipe, f"written {trainer.global_step}\n".encode())

    def on_train_batch_end(self: Stopping, trainer: Any, *arguments: Any) -> None:
        after_batch(self, trainer, *arguments)
        os.write(pipe, f"step {trainer.global_step}\n".encode())

    BestAndLast.save_last, Stopping.on_train_batch_end = save_last, on_train_batch_end  # type: ignore[method-assign]


def arm(kill: Kill) -> None:
    """In the child: die inside the call that was drawn."""
    if isinstance(kill.at, tuple):
        number, byte = kill.at
        torch.save = counted(torch.save, number, lambda save, content, file: save(content, Deadly(file, byte)))  # type: ignore[assignment]
        return
    name, after = CALLS[kill.kind]

    def die(call: Callable[..., Any], *arguments: Any) -> None:
        if after:
            call(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, counted(getattr(os, name), int(kill.at), die))


def counted(call: Callable[..., Any], number: int, instead: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but at its `number`th time `instead(call, ...)`."""
    left = number

    def counting(*arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        return instead(call, *arguments) if left == 0 else call(*arguments, **keywords)

    return counting


class Deadly:
    """A file whose process is killed after so many bytes of it are on their way to the disk."""

    def __init__(self, file: Any, byte: int) -> None:
        self.file, self.left = file, byte

    def write(self, data: Any) -> int:
        part = memoryview(data)[: self.left]
        self.file.write(part)
        self.left -= len(part)
        if not self.left:
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return len(part)

    def flush(self) -> None:
        self.file.flush()


def check(folder: Path, whole: Path, told: Told, before: int) -> tuple[list[str], int, int]:
    """What is wrong after an attempt; the step of the newest last.ckpt; how many checkpoints were loaded."""

    def look(pipe: int) -> int:
        wrong, step, loaded = faults(folder, told, before)
        if not told.killed:
            wrong += ended(folder, whole) if told.status == 0 else [f"it ended with status {told.status}: {told.said}"]
        os.write(pipe, json.dumps([wrong, step, loaded]).encode())
        return 0

    status, text = forked(look, LONGEST)
    if status:
        return [text.strip() or f"the check ended with status {status}"], before, 0
    wrong, step, loaded = json.loads(text)
    return wrong, step, loaded


def faults(folder: Path, told: Told, before: int) -> tuple[list[str], int, int]:
    """What is wrong with the files of all attempts so far."""
    wrong, loaded, step = [], 0, before
    for _, path in attempts(folder):
        checkpoints = {file.name: read_checkpoint(file) for file in sorted(path.rglob("*.ckpt"))}
        loaded += len(checkpoints)
        for read in ("metrics", "summary"):
            getattr(Run(path), read)
        if (last := checkpoints.get("last.ckpt")) is None:
            continue
        step, best = last["global_step"], checkpoints.get("best.ckpt", {}).get("global_step")
        best_step = next(state for name, state in last["callbacks"].items() if "BestAndLast" in name)["best_step"]
        if best_step not in (None, step, best):
            wrong.append(f"last.ckpt names step {best_step} as the best and best.ckpt is of step {best}")
    if step < max(told.written, default=0):
        wrong.append(f"a checkpoint of step {max(told.written)} was written and the last one is of step {step}")
    if step < max(told.steps, default=0) - 1:
        wrong.append(f"{max(told.steps)} steps were made and the last checkpoint is of step {step}")
    if step < before:
        wrong.append(f"the last checkpoint was of step {before} and is of step {step}")
    return wrong, step, loaded


def ended(folder: Path, whole: Path) -> list[str]:
    """What is wrong with a run that came to its end."""
    newest = attempts(folder)[-1][1]
    pairs = [(run_folder / "checkpoints" / name for run_folder in (whole, newest)) for name in ("last.ckpt", "best.ckpt")]
    found = [sameness.between_checkpoints(*pair) for pair in pairs]
    left = [f"{path} was left behind" for path in folder.parent.rglob(".*.partial")]
    return [str(difference) for difference in (*found, sameness.between_results(whole, newest)) if difference] + left


def kill_loop(times: int, seed: int, folder: Path, say: Callable[[str], None] = print) -> int:
    """Kill `times` times, and return how many faults there were."""
    rng, whole = random.Random(seed), folder / "whole"
    first = run([*RUN, f"hydra.run.dir={whole}"], None)
    if first.status:
        say(f"the run does not come to its end: {first.said}")
        return 1
    size = (whole / "checkpoints" / "last.ckpt").stat().st_size
    say(f"a run of {max(first.steps)} steps, {first.seconds:.1f} s, checkpoints of {size:,} bytes")
    kills, bad, complete, step, chain = 0, 0, 0, 0, 1
    while kills < times:
        job = folder / f"job{chain}" / "run"
        kill = draw(rng, first.seconds, size)
        told = run([*RUN, "resume=auto", f"hydra.run.dir={job}"], kill)
        kills += told.killed
        wrong, now, loaded = check(job, whole, told, step)
        bad += len(wrong)
        what = f"killed {kill}" if told.killed else "came to its end, compared with the run that was never killed"
        at = f"run {chain} attempt {len(attempts(job)):2d}  step {step:2d} -> {now:2d}"
        say(f"{kills:4d}  {at}  {loaded:2d} checkpoints load  {'; '.join(wrong) or 'ok':4}{what}")
        step = now
        if not told.killed or wrong:
            complete += not told.killed and not wrong
            chain, step = chain + 1, 0
    end = f"{complete} runs came to their end and are equal to the run that was never killed"
    say(f"verdict: {bad} faults in {kills} kills" if bad else f"verdict: {kills} of {times} kills without a fault; {end}")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100, help="how often a run is killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--keep", type=Path, help="a folder for the runs, which then stay")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="kill-loop-"))
    try:
        return 1 if kill_loop(options.times, options.seed, folder.absolute()) else 0
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
