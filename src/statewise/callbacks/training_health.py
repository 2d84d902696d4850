"""Flags any parameter that stays frozen, and says why: feeds statewise.health from the Trainer's hooks."""

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import Optimizer

from statewise.callbacks.fit_setting import fit_setting
from statewise.callbacks.health_scalars import log_health
from statewise.callbacks.log_listener import LogListener
from statewise.callbacks.numerics_guard import Diverged
from statewise.callbacks.real_steps import log_due, log_index, log_pace
from statewise.callbacks.rehearsals import Rehearsals
from statewise.callbacks.shared_findings import agree, together
from statewise.health import Finding, HealthMonitor, Severity
from statewise.health.announcer import Announcer
from statewise.health.steps.update_hooks import UpdateHooks
from statewise.health.table import parameter_table

log = logging.getLogger(__name__)

# Batches after which several processes compare what they found; later only at logged ones.
_EARLY = 6


class TrainingHealth(L.Callback):
    """Names the cause when training cannot train; works on any LightningModule and changes nothing in it.

    Args:
        policy: "error" raises at the first error, "warn" logs it and goes on, "off" looks at nothing.
        stop_at: the severity at which policy "error" raises: "error", or "warning" to be strict.
        frozen: patterns (fnmatch) of parameters, or names of modules, that are meant not to train.
        constants: patterns of tensors that are meant to shape the loss without training.
        conditional: patterns of parameters or names of modules that take part in some batches only.
        causal: patterns of names of modules whose output at a time step must not depend on later inputs.

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
        causal: list[str] | None = None,
    ) -> None:
        self._announcer = Announcer(policy, stop_at, log)
        self.policy, self.stop_at = policy, stop_at
        self.monitor = HealthMonitor(_patterns(frozen), _patterns(constants), _patterns(conditional), _patterns(causal))
        self._hooks: UpdateHooks | None = None
        self._shown_table = False
        self._listener = LogListener(self._heard)
        self._begin()

    def _heard(self, name: str, value: Any) -> None:
        self.monitor.losses.note(name, value)

    def _begin(self) -> None:
        self._shown_table = False
        self._rehearsals = Rehearsals(self.monitor)
        self._announcer.begin()
        # Optimizers whose next update was announced, those that step past Lightning, how often they did; batches so far.
        self._announced: set[int] = set()
        self._bare: set[int] = set()
        self._uncounted = 0
        self._together = False
        # Steps completed when last asked for: the Trainer's own count is six properties deep.
        self._taken = 0
        self._batches = 0
        # Found here, not yet known to the other processes; optimizers whose first update was spoken about.
        self._unshared: list[Finding] = []
        self._agreed: set[int] = set()

    # -- the fit -------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Static preflight, and hooks on the real optimizer steps."""
        if self.policy == "off":
            return
        self._begin()
        self._together = together(trainer)
        found = self.monitor.start(pl_module, trainer.optimizers, fit_setting(trainer, pl_module), trainer.global_step)
        self._hooks = UpdateHooks(trainer.optimizers, partial(self._begin_update, trainer), partial(self._end_update, trainer))
        self._act(trainer, found, agreeing=True)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """By now the data are loaded and a checkpoint is: what is planned is known."""
        if self.policy != "off":
            self.monitor.set_setting(fit_setting(trainer, pl_module))

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Once: a trial of the step on a copy. Every batch: are the parameters still the same objects?"""
        if self.policy == "off":
            return
        self._batches += 1
        self._announced.clear()
        if self._hooks is not None:
            self._hooks.reset()
        if self.monitor.sleep_on():
            return
        if trainer.accumulate_grad_batches != self.monitor.setting.accumulate:
            self.monitor.set_setting(fit_setting(trainer, pl_module))
        step = self._taken = self._step(trainer)
        found = self._rehearsals.hold(trainer, self, "training_step", batch, batch_idx, step)
        found += self.monitor.begin_batch(batch, step)
        if self.monitor.losses.open and not self.monitor.attention.quiet:
            self._listener.attach(pl_module)
        self._act(trainer, found)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """The loss's graph still stands."""
        if self.policy != "off" and not self.monitor.attention.asleep:
            found = self.monitor.backward(loss)
            if found:
                self._act(trainer, found)

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Which gradients exist."""
        if self.policy != "off" and not self.monitor.attention.quiet and not self.monitor.attention.asleep:
            self._act(trainer, self.monitor.after_backward())

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Gradients are complete, values are old."""
        if self.policy != "off":
            self._announce_update(trainer, _bare(optimizer))

    def _announce_update(self, trainer: L.Trainer, optimizer: Optimizer) -> None:
        self._announced.add(id(optimizer))
        if self.monitor.attention.asleep:
            return
        if self.monitor.attention.quiet:
            # Its first update was spoken about long ago: there is nothing to agree on.
            self._act(trainer, self.monitor.before_update(optimizer, self._taken))
            return
        found = self.monitor.before_update(optimizer, self._step(trainer))
        self._show_table(trainer)
        first = id(optimizer) not in self._agreed
        self._agreed.add(id(optimizer))
        self._act(trainer, found, agreeing=first)

    def _begin_update(self, trainer: L.Trainer, optimizer: Optimizer, closure: bool) -> None:
        # Lightning announces its steps, within the closure. A manual loop may step the bare optimizer past Lightning.
        if not closure and id(optimizer) not in self._announced:
            self._bare.add(id(optimizer))
            self._announce_update(trainer, optimizer)

    def _end_update(self, trainer: L.Trainer, optimizer: Optimizer) -> None:
        if self.monitor.attention.asleep:
            self._announced.discard(id(optimizer))
            if id(optimizer) in self._bare:
                self._bare.discard(id(optimizer))
                self._uncounted += 1
            return
        on_cpu = all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"][:1])
        if id(optimizer) in self._bare:
            self._bare.discard(id(optimizer))
            self._uncounted += 1
            taken = self._step(trainer)
        else:
            # Lightning counts a step when it has returned.
            taken = self._step(trainer) + 1
        self._taken = taken
        self._announced.discard(id(optimizer))
        read = on_cpu or taken % max(log_pace(trainer), 1) == 0
        self._act(trainer, self.monitor.after_update(optimizer, taken, read))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Count what the loop did with this batch."""
        if self.policy == "off":
            return
        if self.monitor.attention.asleep:
            if self._together:
                self._act(trainer, [], agreeing=self._batches % max(log_pace(trainer), 1) == 0)
            if log_due(trainer):
                log_health(trainer, self.monitor, log_index(trainer))
            return
        self._listener.detach(pl_module)
        found = self.monitor.end_batch(self._taken if self.monitor.attention.quiet else self._step(trainer))
        self._show_table(trainer)
        # Alone there is nobody to agree with.
        if found or self._together:
            agreeing = self._batches <= _EARLY or self._batches % max(log_pace(trainer), 1) == 0
            self._act(trainer, found, agreeing)
        if log_due(trainer):
            log_health(trainer, self.monitor, log_index(trainer))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Judge what needs a whole epoch."""
        if self.policy != "off":
            self._act(trainer, self.monitor.end_epoch(self._step(trainer)), agreeing=True)

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Once: which time steps does the validation loss look at?"""
        if self.policy != "off" and trainer.state.fn == "fit":
            step = self._step(trainer)
            self._act(trainer, self._rehearsals.hold(trainer, self, "validation_step", batch, batch_idx, step))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """One verdict line."""
        self._close(pl_module, together=True)
        if self.policy == "off":
            return
        self._act(trainer, [], agreeing=True)
        if trainer.is_global_zero:
            self._announcer.conclude(self.report(), len(self.monitor.inventory.parameters), self._step(trainer))

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave nothing behind. All processes meet a divergence at the same step: they tell what they have found by then."""
        if self._together and isinstance(exception, Diverged):
            found, self._unshared = agree(self.monitor, self._unshared), []
            if trainer.is_global_zero:
                self._announcer.say(found)
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

    def _step(self, trainer: L.Trainer) -> int:
        """Completed optimizer steps, those that Lightning did not see included."""
        return trainer.global_step + self._uncounted

    def _act(self, trainer: L.Trainer, found: Sequence[Finding], agreeing: bool = False) -> None:
        """Say what is new, and stop if the policy asks for it.

        Where several processes train together a finding is acted on when all know of it, or one would stop alone and the
        others wait for it for ever.
        """
        if not found and not agreeing:
            return
        if together(trainer):
            self._unshared += found
            if not agreeing:
                return
            found, self._unshared = agree(self.monitor, self._unshared), []
        if not found:
            return
        if trainer.is_global_zero:
            self._announcer.say(found)
            for finding in found:
                if finding.severity is not Severity.INFO:
                    for logger in trainer.loggers:
                        logger.log_metrics({f"health/{finding.id}": 1.0}, step=finding.step)
        error = self._announcer.fatal(found)
        if error is not None:
            self._show_table(trainer)
            raise error

    def _show_table(self, trainer: L.Trainer) -> None:
        """Once, as soon as the graph is known; before that only where the run stops."""
        if not self._shown_table and trainer.is_global_zero:
            self._shown_table = True
            log.info("\n%s", parameter_table(self.monitor.inventory, self.monitor.reached))

    def _close(self, pl_module: L.LightningModule, together: bool = False) -> None:
        self._listener.detach(pl_module)
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        if self.policy != "off":
            self.monitor.close(together)


def _patterns(patterns: Sequence[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())


def _bare(optimizer: Any) -> Optimizer:
    return optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
