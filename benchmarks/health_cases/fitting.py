"""One case through a real `Trainer.fit` with the callback that is under test, and what came of it."""

import contextlib
import logging
import math
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from health_cases.families import BATCH, FAMILIES, loader, seeded
from health_cases.faults.fault import Fault, Plan
from health_cases.set_up import VALIDATED_ROWS, Run, quiet_trainer
from statewise.callbacks.training_health import TrainingHealth

FAULTY_STEPS = 25
# Where the callback and what it feeds live: an exception that ends there is the product's own.
OWN = ("statewise/health/", "statewise/callbacks/training_health")


@dataclass
class Outcome:
    """What health said of one run, and what the run left behind."""

    findings: list[dict[str, Any]]
    # Checks that did not run, with their reasons.
    not_run: list[str] = field(default_factory=list)
    # The exception that ended the fit early, and whether it rose in training health itself.
    error: str | None = None
    own_error: bool = False
    weights: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0


def prepared(fault: Fault, family: str, seed: int, *, onset: int = 0, broken: bool = True, steps: int = FAULTY_STEPS) -> Run:
    """A faulty run, or its healthy twin: the same setting without the fault.

    A late fault is the first variant at both seeds.
    """
    kind = FAMILIES[family]
    plan = Plan(family, seed, kind.data(seed), variant=0 if onset else seed, onset=onset)
    task = kind.build(seed)
    with seeded(seed):
        if fault.setting is not None:
            task = fault.setting(task, plan)
        if broken:
            fault.inject(task, plan)
    # Some faults never take a step: epochs end the run too.
    trainer = {"max_epochs": math.ceil(1.25 * steps * BATCH / len(plan.data))} | plan.trainer
    held_out = DataLoader(Subset(plan.data, range(VALIDATED_ROWS)), batch_size=BATCH)
    batches = loader(plan.data, seed) if plan.batches is None else plan.batches
    return Run(task, batches, held_out, trainer, plan.callbacks, contract=plan.health)


def fit(run: Run, seed: int, *, steps: int = FAULTY_STEPS, contract: bool = True) -> Outcome:
    """Fit the run; without contract the layers' own contracts are taken away and nothing is declared."""
    if not contract:
        for module in run.task.modules():
            if callable(getattr(module, "health_contract", None)):
                module.health_contract = None
    health = TrainingHealth(policy="warn", **(run.contract if contract else {}))
    start, error, own = time.perf_counter(), None, False
    with seeded(seed), quiet(), tempfile.TemporaryDirectory() as folder:
        trainer = quiet_trainer(run, Path(folder), steps, health)
        try:
            trainer.fit(run.task, run.batches, run.validation, ckpt_path=run.checkpoint)
        except Exception as raised:
            # What stops a fit is part of the outcome: some faults are loud in the end.
            error = f"{type(raised).__name__}: {str(raised).splitlines()[0] if str(raised) else ''}"
            own = any(part in traceback.extract_tb(raised.__traceback__)[-1].filename for part in OWN)
    report = health.report()
    return Outcome(
        findings=report["findings"],
        not_run=[f"{check['name']}: {check['why']}" for check in report["checks"] if not check["ran"]],
        error=error,
        own_error=own,
        weights={name: value.detach().clone() for name, value in run.task.state_dict().items()},
        steps=trainer.global_step,
        seconds=time.perf_counter() - start,
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No log lines, no warnings: hundreds of runs say the same, and what health found is in the outcome."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def same_weights(one: Outcome, other: Outcome) -> bool:
    """Whether all weights that both runs have are equal to the last bit."""
    shared = one.weights.keys() & other.weights.keys()
    return all(torch.equal(one.weights[name].double(), other.weights[name].double()) for name in shared)
