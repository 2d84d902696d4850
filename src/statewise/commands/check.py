"""`statewise check`: the preflight and the first steps of a run, judged and thrown away.

Exit codes: 0 healthy; 1 a warning, an error, or numbers that are no longer finite; 2 it could not run.
"""

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statewise.config import CONFIG_ERRORS
from statewise.console import console
from statewise.interrupts import ask_before_stopping
from statewise.launch import FULL_ERROR, MULTIRUN, Job, Refused, RunFailed, launch
from statewise.lightning_log import quieten_lightning
from statewise.parallel.company import several
from statewise.train import prepare, refusals

STEPS = 20
# What a check asks for itself, last on the command line: findings are collected, not raised, and the log goes to a file that
# is thrown away. The plan stays that of the run that is meant, and with it the schedule.
OWN = (
    "health.policy=warn",
    "trainer.limit_val_batches=2",
    "trainer.log_every_n_steps=5",
    "logger=csv",
    "hydra.job_logging.handlers.console.level=CRITICAL",
)
COLOURS = {"error": "bold red", "warning": "yellow", "info": "dim", "healthy": "green"}


@dataclass(frozen=True)
class Seen:
    """What the first steps showed."""

    health: Mapping[str, Any]
    steps: int
    parameters: int
    fault: str | None = None
    diverged: str | None = None

    @property
    def reasons(self) -> list[str]:
        """Why this is not healthy; empty where it is."""
        bad = [f for f in self.health["findings"] if f["severity"] != "info"]
        if not bad and self.diverged:
            return [self.diverged]
        return [f"{finding['id']} ({finding['severity']})" for finding in bad]


def main(argv: Sequence[str]) -> int:
    """Check the run that these overrides describe, and return the exit code."""
    if MULTIRUN & set(argv) or any(argument.startswith("resume=") for argument in argv):
        sys.stderr.write("statewise check looks at one run from its beginning: leave out --multirun and resume=\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="statewise-check-") as folder:
        return launch(check, [*argv, *OWN, f"hydra.run.dir={folder}/run"])


def check(config: DictConfig, job: Job) -> float:
    """Train the first steps in `job.folder`, print what was found, and return how many steps were made.

    Raises:
        Refused: it could not run.
        RunFailed: there is a warning or an error.
        Interrupted: by a signal.
    """
    start = time.perf_counter()
    if several(config.hardware):  # one process sees the same batches, and the same faults
        config.hardware.update(strategy="auto", devices=1, num_nodes=1)
    with refusals():
        prepare(config, job)
    with ask_before_stopping(lambda name: False):
        try:
            seen = first_steps(config, job)
        except (Refused, *CONFIG_ERRORS):
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "no message")
            more = f"(set {FULL_ERROR}=1 for the traceback)"
            raise Refused(f"the first {STEPS} steps could not be made, {type(error).__name__}: {first} {more}") from error
    chosen = HydraConfig.get().runtime.choices
    subject = f"{chosen.get('model')} on {chosen.get('data')}, {seen.parameters:,} parameters"
    print_verdict(console(), seen, f"{subject}; {seen.steps} optimiser steps, {time.perf_counter() - start:.1f} s in all")
    if seen.reasons:
        raise RunFailed(f"not healthy: {', '.join(seen.reasons)}")
    return float(seen.steps)


def first_steps(config: DictConfig, job: Job) -> Seen:
    """The first `STEPS` optimiser steps and two validation batches, without checkpoints.

    Raises:
        Refused: a part cannot be built.
        Exception: whatever a step raises.
    """
    import lightning as L

    from statewise import assembly
    from statewise.callbacks.exact_order import ExactOrder
    from statewise.callbacks.numerics_guard import Diverged, NumericsGuard
    from statewise.callbacks.training_health import TrainingHealth

    class Enough(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.should_stop |= trainer.global_step >= STEPS

    quieten_lightning()
    with refusals():
        datamodule, task, named, fault = assembly.assemble(config)
        health = named["training_health"]
        if not isinstance(health, TrainingHealth) or health.policy == "off":
            raise Refused("statewise check needs callbacks.training_health, which this configuration leaves out")
        callbacks = [*named.values(), NumericsGuard(), ExactOrder(config.seed), Enough()]
        trainer = assembly.build_trainer(config, job.folder, callbacks, datamodule)
    diverged = None
    try:
        trainer.fit(task, datamodule=datamodule)
    except Diverged as error:
        diverged = str(error)
    return Seen(
        health=health.report(),
        steps=trainer.global_step,
        parameters=sum(parameter.numel() for parameter in task.parameters()),
        fault=fault.what if fault else None,
        diverged=diverged,
    )


def print_verdict(to: Console, seen: Seen, subject: str) -> None:
    """What was looked at, the findings, the checks that could not run and why, and the verdict."""
    _line(to, "checked", subject)
    if seen.fault:
        _line(to, "broken on purpose", seen.fault)
    ran = [check["name"] for check in seen.health["checks"] if check["ran"]]
    _line(to, "checks", f"{len(ran)} of {len(seen.health['checks'])} ran")
    for why, names in _not_run(seen.health["checks"]).items():
        _line(to, "", f"not run, {why}: {', '.join(names)}", "dim")
    if seen.health["findings"] or seen.diverged:
        to.print()
        to.print(_findings(seen))
        to.print()
    healthy = not seen.reasons
    _line(to, "verdict", "healthy" if healthy else "not healthy", COLOURS["healthy" if healthy else "error"])


def _findings(seen: Seen) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("severity", "finding", "seen"):
        table.add_column(name, no_wrap=True)
    table.add_column("what is true, why it matters, what to do", overflow="fold")
    for finding in seen.health["findings"]:
        when = f"step {finding['step']}" if finding["step"] else "before the first update"
        severity = Text(finding["severity"], style=COLOURS[finding["severity"]])
        table.add_row(severity, Text(finding["id"]), when, Text(finding["message"]))
    if seen.diverged:
        table.add_row(Text("error", style=COLOURS["error"]), "diverged", f"step {seen.steps + 1}", Text(seen.diverged))
    return table


def _not_run(checks: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for entry in checks:
        if not entry["ran"]:
            reasons.setdefault(entry["why"], []).append(entry["name"])
    return reasons


def _line(to: Console, name: str, text: str, style: str = "") -> None:
    to.print(Text.assemble((f"{name:<20}", "dim"), (text, style)), soft_wrap=True)
