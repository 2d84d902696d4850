"""`statewise resume-check`: is a run that was stopped and resumed, to the bit, the run that never stopped?

Exit codes: 0 equal; 1 different; 2 it could not run.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from statewise.console import console
from statewise.launch import MULTIRUN, options_first

# A shortened run: three epochs, so that a checkpoint has an epoch before and one after it, and a number of batches that three
# does not divide, where gradients of three are accumulated. What the command says wins.
SHORT = {"trainer.max_epochs": "3", "trainer.limit_train_batches": "8", "trainer.limit_val_batches": "2"}
# What the check asks for itself. Every step is logged, so that every step is compared.
OWN = ("trainer.log_every_n_steps=1", "logger=csv", "report=false", "hydra.job_logging.handlers.console.level=CRITICAL")
NOT_OURS = ("resume", "hydra.run.dir", "trainer.stop_after_steps", "trainer.stop_after_epochs")
ACCUMULATION, WORKERS = "trainer.accumulate_grad_batches", "data.num_workers"
WATCHED_STEPS = 50  # training health looks at every one of these, and at later ones as time allows
LAYOUT = "{:<34}{:>13}{:>9}  "


@dataclass(frozen=True)
class Place:
    """Where the run is stopped, and which of its checkpoints it is resumed from."""

    name: str
    stop: str
    checkpoint: str = "last.ckpt"


class CouldNotRun(Exception):
    """One of the runs did not come to its end; the message is its own one line."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(argv: Sequence[str], *, steps: int | None = None, stop_at: int | None = None, matrix: bool = False) -> int:
    """Check the configuration that these overrides describe, print a row for each checkpoint, and return the exit code.

    Args:
        steps: look at so many steps of the run as it is planned, instead of at a shortened one.
        stop_at: the step after which the one checkpoint is taken.
        matrix: also with accumulated gradients and with workers.
    """
    typed = options_first(argv)
    keys = {_key(argument) for argument in typed}
    if taken := [key for key in NOT_OURS if key in keys] + sorted(MULTIRUN & set(typed)):
        return _refuse(f"statewise resume-check stops and resumes by itself: leave out {taken[0]}")
    if any(number is not None and number < 1 for number in (steps, stop_at)) or (steps and stop_at and stop_at >= steps):
        return _refuse(f"--steps and --stop-at must be at least 1, and --stop-at below --steps; got {steps} and {stop_at}")
    short = [] if steps else [f"{key}={value}" for key, value in SHORT.items() if key not in keys]
    different = 0
    try:
        with tempfile.TemporaryDirectory(prefix="statewise-resume-check-") as folder:
            for number, (accumulation, workers) in enumerate(_variants(typed, matrix)):
                variant = [f"{ACCUMULATION}={accumulation}", f"{WORKERS}={workers}"] if matrix else []
                runs = Runs(Path(folder) / str(number), [*typed, *short, *OWN, *variant], steps)
                for place in runs.places(stop_at):
                    if not number and not runs.printed:
                        _print(LAYOUT.format("checkpoint taken", "accumulation", "workers") + "resumed", "dim")
                    runs.printed += 1
                    found = runs.difference(place)
                    different += found is not None
                    result = Text("equal", "green") if found is None else Text(found, "bold red")
                    _print(LAYOUT.format(place.name, accumulation, workers), "", result)
    except CouldNotRun as error:
        sys.stderr.write(f"could not run: {error}\n")
        return error.exit_code
    _print("verdict: different" if different else "verdict: equal, to the bit", "bold red" if different else "green")
    return 1 if different else 0


class Runs:
    """The runs of one configuration: the whole one, and for each place one that stops there and one that goes on.

    Args:
        folder: for their run folders.
        overrides: of all of them.
        steps: where the whole one stops; None at its end.
    """

    def __init__(self, folder: Path, overrides: Sequence[str], steps: int | None) -> None:
        self.folder, self.overrides, self.steps = folder, list(overrides), steps
        self.printed = 0
        self._end = [] if steps is None else [f"trainer.stop_after_steps={steps}"]
        self._whole = self._run("whole", *self.overrides, *self._end)

    def places(self, stop_at: int | None) -> list[Place]:
        """Where checkpoints are taken: inside an epoch, at its last batch, at its end, and where validation was best."""
        from statewise.runs import load_run

        run = load_run(self._whole)
        made, epochs = int((run.summary or {})["steps"]), int(run.config["trainer"]["max_epochs"])
        if stop_at or self.steps:
            at = stop_at or made // 2
            if not 0 < at < made:
                raise CouldNotRun(f"the run is {made} steps long: there is no step {at} to stop after and go on from", 2)
            return [Place(f"after step {at}", f"trainer.stop_after_steps={at}")]
        if epochs < 2 or made < 4:
            raise CouldNotRun(f"{epochs} epochs and {made} steps are too few: trainer.max_epochs must be at least 2", 2)
        epoch = made // epochs
        inside = epoch + max(1, epoch // 2)
        return [
            Place(f"inside an epoch, step {inside}", f"trainer.stop_after_steps={inside}"),
            Place(f"last batch of an epoch, step {epoch}", f"trainer.stop_after_steps={epoch}"),
            Place("end of an epoch", "trainer.stop_after_epochs=1"),
            Place("best validation", "trainer.stop_after_epochs=2", "best.ckpt"),
        ]

    def difference(self, place: Place) -> str | None:
        """The first difference between the whole run and one that was stopped at this place and resumed."""
        from statewise import sameness

        name = f"{place.stop.partition('=')[0].rpartition('_')[2]}{place.stop.partition('=')[2]}"
        first = self._run(f"{name}-first", *self.overrides, place.stop)
        parent = first / "checkpoints" / place.checkpoint
        second = self._run(f"{name}-{place.checkpoint}-second", f"resume={parent}", *self.overrides, *self._end)
        parts = [first, second] if place.checkpoint == "last.ckpt" else [second]
        left_out = "health" if self.steps and self.steps > WATCHED_STEPS else None
        checkpoints = [(run / "checkpoints" / f for run in (self._whole, second)) for f in ("last.ckpt", "best.ckpt")]
        found = (
            sameness.between_checkpoints(*checkpoints[0], left_out=left_out)
            or sameness.between_checkpoints(*checkpoints[1], left_out=left_out)
            or sameness.between_metrics(self._whole, parts, left_out=left_out)
            or sameness.between_results(self._whole, second, left_out=left_out)
        )
        return None if found is None else str(found)

    def _run(self, name: str, *overrides: str) -> Path:
        from statewise.train import main as train

        folder, said = self.folder / name, io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = train([*overrides, f"hydra.run.dir={folder}"])
        if code:
            line = next(iter(reversed(said.getvalue().strip().splitlines())), f"exit code {code}")
            raise CouldNotRun(line, code if code > 128 else 2)
        return folder


def _variants(typed: Sequence[str], matrix: bool) -> Iterator[tuple[str, str]]:
    own = {_key(argument): argument.partition("=")[2] for argument in typed}
    accumulation, workers = own.get(ACCUMULATION, "1"), own.get(WORKERS, "0")
    for a in dict.fromkeys([accumulation, "1", "3"]) if matrix else [accumulation]:
        for w in dict.fromkeys([workers, "0", "2"]) if matrix else [workers]:
            yield a, w


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+~")


def _print(line: str, style: str = "", result: Text | None = None) -> None:
    console().print(Text.assemble((line, style), *([] if result is None else [result])), soft_wrap=True)


def _refuse(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 2
