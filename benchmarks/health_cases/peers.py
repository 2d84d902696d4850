"""Other people's tools on the same fits, each with its defaults, used as its own documentation says.

Tools that check one step before training (torchtest2, guardtower) see the first batch at the moment the fit would start with
it, when everything a script sets up is in place. The others watch the whole fit.
"""

import importlib
import importlib.metadata
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

RAISED = "raised"
# torch-audit's hardware rules advise on speed (widths that are no multiple of eight); they are not about learning.
_SPEED = "TA2"


@dataclass(frozen=True)
class Said:
    """One warning or error of a tool: the tool's own name of the check, and its words."""

    kind: str
    text: str
    step: int

    @property
    def key(self) -> tuple[str, str]:
        """Equal for what differs in numbers only."""
        return self.kind, re.sub(r"[-+]?\d[\d.,e+-]*", "#", self.text)


class Watch(Callback):
    """A tool at work on one fit."""

    # Checks one step, then ends the fit.
    one_step = False

    def __init__(self) -> None:
        self.said: list[Said] = []

    def raised(self, error: Exception, step: int) -> None:
        """The fit ended with this exception, which may be the tool's way to speak."""

    def finish(self, step: int) -> None:
        """The fit is over, one way or another."""


class OneStep(Watch):
    """Checks a training step on the first batch; the fit ends there."""

    one_step = True

    def check(self, trainer: L.Trainer, task: Any, batch: Any, step: Callable[[], Tensor]) -> None:
        raise NotImplementedError

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = True
        x, y = batch

        def step() -> Tensor:
            # A manual loop runs backward and steps by itself; its author would hand over the loss.
            return pl_module.training_step(batch, 0) if pl_module.automatic_optimization else loss()

        def loss() -> Tensor:
            return pl_module.loss(pl_module.predict(x), y)

        pl_module.log = lambda *args, **options: None
        try:
            self.check(trainer, pl_module, batch, step)
        except Exception as error:
            self.said.append(Said(RAISED, f"{type(error).__name__}: {error}", 0))
        finally:
            del pl_module.log


class TorchTest2(OneStep):
    def check(self, trainer: L.Trainer, task: Any, batch: Any, step: Callable[[], Tensor]) -> None:
        module = importlib.import_module("torchtest2")
        x, y = batch

        def forward(model: Any, inputs: Any, targets: Any) -> Tensor:
            if task.automatic_optimization:
                return task.training_step((inputs, targets), 0)
            return task.loss(task.predict(inputs), targets)

        report = module.check_model(
            task,
            x,
            y,
            loss_fn=lambda loss, targets: loss,
            optimizer=trainer.optimizers[0],
            forward_fn=forward,
            eval_forward_fn=lambda model, inputs: task.predict(inputs),
        )
        self.said += [Said(each.name, each.message, 0) for each in (*report.failures, *report.warnings)]


class GuardTower(OneStep):
    def check(self, trainer: L.Trainer, task: Any, batch: Any, step: Callable[[], Tensor]) -> None:
        module = importlib.import_module("guardtower")
        x = batch[0]
        inputs = x if torch.is_tensor(x) and x.is_floating_point() else None
        report = module.audit(task, step, optimizer=trainer.optimizers[0], inputs=inputs)
        found = (*report.errors, *report.warnings)
        self.said += [Said(each.catalog_id or each.check, each.message, 0) for each in found]


class TorchAudit(Watch):
    """The "zero-touch" mode of its documentation, which audits the first of every 1000 steps."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        module = importlib.import_module("torch_audit")
        self.auditor = module.autopatch(pl_module.net, optimizer=trainer.optimizers[0])

    def finish(self, step: int) -> None:
        if hasattr(self, "auditor"):
            findings = self.auditor.finish().findings
            self.auditor.unpatch()
            self.said += [
                Said(each.rule_id, f"{each.module_path}: {each.message}", int(each.step or 0))
                for each in findings
                if each.severity.value != "INFO" and not each.rule_id.startswith(_SPEED)
            ]


class Torcheck(Watch):
    """All parameters must change, and neither they nor the output may be infinite or no number."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        registry = importlib.import_module("torcheck.registry").Registry()
        try:
            for optimizer in trainer.optimizers:
                registry.register(optimizer)
            registry.add_module_changing_check(pl_module.net, module_name="net")
            registry.add_module_nan_check(pl_module.net, module_name="net")
            registry.add_module_inf_check(pl_module.net, module_name="net")
        except RuntimeError as error:
            self.said.append(Said(RAISED, str(error), 0))

    def raised(self, error: Exception, step: int) -> None:
        for line in str(error).splitlines():
            for kind, words in (("unchanged", "should change"), ("nan", "contains NaN"), ("inf", "contains inf")):
                if words in line:
                    self.said.append(Said(kind, line, step))


class GradSnitch(Watch):
    """Its Lightning callback, and its verdict at the end of the fit."""

    def __init__(self) -> None:
        super().__init__()
        self.module = importlib.import_module("gradsnitch")
        self.inner = importlib.import_module("gradsnitch.integrations").lightning()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.inner.on_before_optimizer_step(trainer, pl_module, optimizer)

    def on_train_batch_end(self, *args: Any) -> None:
        self.inner.on_train_batch_end(*args)

    def finish(self, step: int) -> None:
        self.said += [Said(each.code, each.evidence, step) for each in self.module.lint(self.inner.monitor.df())]


class LossCurve(Watch):
    """What a look at the curve shows: no number, a spike of six standard deviations, no decrease."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if (loss := trainer.callback_metrics.get("train/loss")) is not None:
            self.losses.append(float(loss))

    def finish(self, step: int) -> None:
        self.said += judge_curve(self.losses)


def judge_curve(losses: list[float], before: int = 128, least: int = 20) -> list[Said]:
    """The three rules: a spike is judged by up to `before` values before it, a decrease between the first and last fifth."""
    said = [Said("non-finite", "the loss is not finite", i) for i, loss in enumerate(losses) if not math.isfinite(loss)][:1]
    finite = [loss for loss in losses if math.isfinite(loss)]
    for i in range(least, len(finite)):
        past = finite[max(0, i - before) : i]
        if finite[i] > statistics.fmean(past) + 6 * statistics.pstdev(past):
            said.append(Said("spike", "the loss jumps", i))
            break
    if part := len(finite) // 5:
        first, last = statistics.fmean(finite[:part]), statistics.fmean(finite[-part:])
        if last > first - 0.01 * abs(first):
            said.append(Said("no-decrease", "the loss does not fall", len(losses)))
    return said


@dataclass(frozen=True)
class Tool:
    """A tool, the version that it was used in, and which faults each of its checks may be said to name."""

    name: str
    package: str | None
    version: str | None
    watch: Callable[[], Watch]
    causes: Mapping[str, Iterable[str]]

    def missing(self) -> str | None:
        """Why it cannot run, or None."""
        if self.package is None:
            return None
        try:
            importlib.import_module(self.package.replace("-", "_"))
            found = importlib.metadata.version(self.package)
        except ImportError as error:
            return f"not installed ({error})"
        return None if found == self.version else f"version {found} is installed, {self.version} is what the table is of"


_CUT = ("G1", "G2", "G4", "G5")
_WIRING = ("O1", "O2", "O3", "R6")
TOOLS = (
    Tool("loss curve", None, None, LossCurve, {}),
    Tool(
        "torch-audit",
        "torch-audit",
        "0.3.0",
        TorchAudit,
        {"TA500": ("G5",), "TA104": ("O8",), "TA100": ("N4",), "TA105": ("B1",)},
    ),
    Tool(
        "guardtower",
        "guardtower",
        "0.1.0",
        GuardTower,
        {
            "LOSS-001": ("G3", "G6"),
            "GRAD-001": _CUT,
            "OPT-001": _WIRING,
            "optimizer_coverage": ("R6",),
            "INPUT-001": ("B6",),
            "RELU-001": ("B1",),
            "dead_relu": ("B1",),
            "nonfinite": ("N4",),
            "train_mode": ("B2",),
        },
    ),
    Tool(
        "torchtest2",
        "torchtest2",
        "0.1.0",
        TorchTest2,
        {
            "optimizer_coverage": _WIRING,
            "gradient_flow": _CUT,
            "loss": ("G3", "G6"),
            "input_dependency": ("B6",),
            "batch_independence": ("B8",),
            "eval_determinism": ("B3", "B11"),
            "frozen_params": ("R7",),
            "gradient_magnitude": ("N4",),
        },
    ),
    Tool("gradsnitch", "gradsnitch", "0.1.0", GradSnitch, {"GS002": ("N4",), "GS010": ("O5",)}),
    Tool("torcheck", "torcheck", "1.0.1", Torcheck, {"nan": ("N4",), "inf": ("N4",)}),
)
