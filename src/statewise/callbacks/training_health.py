"""Flags any parameter that stays frozen, and says why: feeds statewise.health from the Trainer's hooks."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from statewise.callbacks.stand_ins import quieten
from statewise.choices import one_of
from statewise.health import Finding, HealthMonitor, Severity, UnhealthyTraining
from statewise.health.rehearsal import Stage
from statewise.health.setting import Setting
from statewise.health.table import parameter_table
from statewise.health.verdict import primary

log = logging.getLogger(__name__)

_MOST_TRIES = 20  # of a trial step on a copy, while a mask hides what the loss looks at

_POLICIES = ("error", "warn", "off")
_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.INFO: logging.INFO}
_MODULE_ATTRIBUTES = frozenset(vars(L.LightningModule()))


class TrainingHealth(L.Callback):
    """Names the cause when training cannot train; works on any LightningModule and changes nothing in it.

    Args:
        policy: "error" raises at the first error, "warn" logs it and goes on, "off" looks at nothing.
        stop_at: the severity at which policy "error" raises: "error", or "warning" to be strict.
        frozen: patterns (fnmatch) of parameters, or names of modules, that are meant not to train.
        constants: patterns of tensors that are meant to shape the loss without training.
        conditional: patterns of parameters or names of modules that take part in some batches only.

    Raises:
        ValueError: for an unknown policy or severity.
        UnhealthyTraining: under policy "error": before the first step for all that shows by then, else as soon as known.
    """

    def __init__(
        self,
        policy: str = "error",
        frozen: list[str] | None = None,
        constants: list[str] | None = None,
        conditional: list[str] | None = None,
        stop_at: str = "error",
    ) -> None:
        self.policy = one_of("health.policy", policy, _POLICIES)
        self.stop_at = one_of("health.stop_at", stop_at, ("error", "warning"))
        self.monitor = HealthMonitor(_patterns(frozen), _patterns(constants), _patterns(conditional))
        self._handles: list[RemovableHandle] = []
        self._shown_table = False
        self._rehearsed: Counter[str] = Counter()
        self._depth: Counter[int] = Counter()
        self._log: Any = None

    # -- the fit -------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Static preflight, and hooks on the real optimizer steps."""
        if self.policy == "off":
            return
        self._shown_table = False
        self._rehearsed = Counter()
        scheduled = {id(config.scheduler.optimizer) for config in trainer.lr_scheduler_configs}
        setting = Setting(
            scheduled=frozenset(i for i, optimizer in enumerate(trainer.optimizers) if id(optimizer) in scheduled),
            manual=not pl_module.automatic_optimization,
            accumulate=trainer.accumulate_grad_batches,
            scaler=getattr(trainer.precision_plugin, "scaler", None) is not None,
            skip=_MODULE_ATTRIBUTES,
            opaque=(L.Trainer, L.LightningDataModule, L.Callback, torch.utils.data.DataLoader),
        )
        found = self.monitor.start(pl_module, trainer.optimizers, setting, trainer.global_step)
        self._depth.clear()
        for optimizer in trainer.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._enter_update))
            handle = optimizer.register_step_post_hook(partial(self._after_update, trainer))
            # First among the post hooks: what a projection writes afterwards is not the optimizer's update.
            optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
            self._handles.append(handle)
        self._act(trainer, found)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Once: a trial of the step on a copy. Every batch: are the parameters still the same objects?"""
        if self.policy == "off":
            return
        self._depth.clear()
        found = self._rehearse(trainer, pl_module, "training_step", batch, batch_idx)
        found += self.monitor.begin_batch(batch, trainer.global_step)
        if self.monitor.losses.open:
            self._listen_to_log(pl_module)
        self._act(trainer, found)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """The loss's graph still stands."""
        if self.policy != "off":
            self._act(trainer, self.monitor.backward(loss))

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Which gradients exist."""
        if self.policy != "off":
            self._act(trainer, self.monitor.after_backward())

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Gradients are complete, values are old."""
        if self.policy == "off":
            return
        found = self.monitor.before_update(_bare(optimizer), trainer.global_step)
        self._show_table()
        self._act(trainer, found)

    def _enter_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth[id(optimizer)] += 1

    def _after_update(self, trainer: L.Trainer, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # A step that calls its parent class's step fires the hooks twice: the outer one is the update.
        self._depth[id(optimizer)] -= 1
        if self._depth[id(optimizer)] > 0:
            return
        on_cpu = all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"][:1])
        taken = trainer.global_step + 1
        read = on_cpu or taken % max(int(getattr(trainer, "log_every_n_steps", 1)), 1) == 0
        self._act(trainer, self.monitor.after_update(optimizer, taken, read))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Count what the loop did with this batch."""
        if self.policy == "off":
            return
        self._stop_listening(pl_module)
        found = self.monitor.end_batch(trainer.global_step)
        self._show_table()
        self._act(trainer, found)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Judge what needs a whole epoch."""
        if self.policy != "off":
            self._act(trainer, self.monitor.end_epoch(trainer.global_step))

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Once: which time steps does the validation loss look at?"""
        if self.policy != "off" and trainer.state.fn == "fit":
            self._act(trainer, self._rehearse(trainer, pl_module, "validation_step", batch, batch_idx))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """One verdict line."""
        self._close(pl_module)
        if self.policy == "off":
            return
        result = self.report()
        ran = sum(check["ran"] for check in result["checks"])
        shown = ", ".join(finding["id"] for finding in result["findings"] if finding["severity"] != "info")
        level = logging.INFO if result["verdict"] == "healthy" else logging.WARNING
        log.log(
            level,
            "training health: %s%s (%d parameters, %d steps, %d of %d checks ran)",
            result["verdict"],
            f": {shown}" if shown else "",
            len(self.monitor.inventory.parameters),
            trainer.global_step,
            ran,
            len(result["checks"]),
        )

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave nothing behind."""
        self._close(pl_module)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave nothing behind."""
        self._close(pl_module)

    # -- what is known -------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """{"verdict", "findings", "checks"}: plain values, primary causes only."""
        if self.policy == "off":
            return {"verdict": "not_checked", "findings": [], "checks": []}
        return self.monitor.report()

    def write_report(self, path: str | Path) -> Path:
        """Write health.json into a folder (or to a path that ends in .json)."""
        target = Path(path)
        if target.suffix != ".json":
            target = target / "health.json"
        target.write_text(json.dumps(self.report(), indent=2) + "\n", encoding="utf-8")
        return target

    def state_dict(self) -> dict[str, Any]:
        """Findings and what was usual for each gradient: plain values."""
        return self.monitor.state_dict() if self.policy != "off" else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the interrupted run was."""
        if state_dict and self.policy != "off":
            self.monitor.load_state_dict(state_dict)

    # -- inside --------------------------------------------------------------------------------------------------

    def _act(self, trainer: L.Trainer, found: Sequence[Finding]) -> None:
        for finding in found:
            log.log(_LEVELS[finding.severity], "%s: %s", finding.id, finding.message)
            if finding.severity is not Severity.INFO:
                for logger in trainer.loggers:
                    logger.log_metrics({f"health/{finding.id}": 1.0}, step=finding.step)
        fatal = {Severity.ERROR} if self.stop_at == "error" else {Severity.ERROR, Severity.WARNING}
        reasons = [finding for finding in primary(list(found)) if finding.severity in fatal]
        if reasons and self.policy == "error":
            self._show_table()
            raise UnhealthyTraining(f"step {reasons[0].step}, {reasons[0].id}: {reasons[0].message}")

    def _show_table(self) -> None:
        """Once, as soon as the graph is known; before that only where the run stops."""
        if not self._shown_table:
            self._shown_table = True
            log.info("\n%s", parameter_table(self.monitor.inventory, self.monitor.reached))

    def _rehearse(
        self, trainer: L.Trainer, pl_module: L.LightningModule, step: str, batch: Any, batch_idx: int
    ) -> list[Finding]:
        tries = self._rehearsed[step]
        if tries and not (step in self.monitor.ask_again and tries < _MOST_TRIES):
            return []
        self._rehearsed[step] += 1
        context = trainer.precision_plugin
        stage = Stage(
            prepare=partial(quieten, trainer),
            shared=[
                trainer,
                getattr(trainer, "datamodule", None),
                trainer.strategy,
                *trainer.loggers,
                *trainer.optimizers,
                self,
            ],
            context=context.train_step_context if step == "training_step" else context.val_step_context,
        )
        return self.monitor.rehearse(step, batch, batch_idx, stage, trainer.global_step)

    def _listen_to_log(self, pl_module: L.LightningModule) -> None:
        """Shadow `log` on the instance: Lightning keeps what it makes of a value, we want what was given."""
        if self._log is not None:
            return
        original = self._log = pl_module.log

        def listen(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            self.monitor.losses.note(name, value)
            original(name, value, *args, **kwargs)

        pl_module.log = listen  # type: ignore[method-assign]

    def _stop_listening(self, pl_module: L.LightningModule) -> None:
        if self._log is not None:
            vars(pl_module).pop("log", None)
            self._log = None

    def _close(self, pl_module: L.LightningModule) -> None:
        self._stop_listening(pl_module)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.policy != "off":
            self.monitor.close()


def _patterns(patterns: Sequence[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())


def _bare(optimizer: Any) -> Optimizer:
    return optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
