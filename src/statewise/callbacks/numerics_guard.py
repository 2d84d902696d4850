"""Stops a run whose numbers are no longer numbers, or whose gradient has vanished, and names where it began."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import Optimizer

from statewise.callbacks.gradient_ledger import GradientLedger, GradientReading, shared_ledger, to_host
from statewise.callbacks.nonfinite import first_nonfinite_parameter, nonfinite_entries, without_overflow
from statewise.callbacks.real_steps import RealSteps, checkpoint_due, log_due, log_pace, loss_scaler, unscales_inside
from statewise.callbacks.runaway import Runaway
from statewise.parallel import ranks

log = logging.getLogger(__name__)

VANISHED = 1e-12
QUIET_STEPS = 5
SKIPPED_STEPS = 10


class Diverged(RuntimeError):
    """The run has left the finite numbers; the message is one line that names the tensor and the step.

    Args:
        message: the line.
        tensor: the first parameter, loss or metric concerned.
        step: the optimiser step, counted from 1, at which it was so for the first time.
    """

    def __init__(self, message: str, *, tensor: str | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.tensor = tensor
        self.step = step


class VanishedGradient(Diverged):
    """Nothing trains: the total gradient norm is zero for all practical purposes."""


@dataclass
class _Record:
    """What one optimiser step is judged by; the tensors stay on their device until they are read."""

    step: int
    place: str
    optimizer: int
    reading: GradientReading | None
    scale: float
    losses: list[Tensor] = field(default_factory=list)


class NumericsGuard(L.Callback):
    """Raises `Diverged` at a loss, gradient, weight or validation metric that is not finite, at validations that are finite
    and out of all proportion (runaway.py), or at a vanished gradient.

    Vanished means a total gradient norm below 1e-12 at the first real step of an optimizer, or in five running. A step
    that a GradScaler skips is no error; ten in a row are. On a CPU every step is judged before it reaches the weights,
    so that these stay good; elsewhere the numbers wait on the device and are read at the first step, then every
    `trainer.log_every_n_steps` and before a validation or a checkpoint; the message names the step at which it began.
    Norms are tested, not elements: a NaN or an infinity anywhere in a tensor is in its norm, at a tenth of the cost. Several
    processes raise the same error at the same step; where the loss of one is bad and no gradient, with the next reading of all.
    """

    def __init__(self) -> None:
        self.ledger: GradientLedger | None = None
        self._steps = RealSteps()
        self._records: list[_Record] = []
        self._untold: Diverged | None = None
        self._losses: list[Tensor] = []
        self._runaway = Runaway()
        self._begun: dict[int, int] = {}
        self._quiet: dict[int, int] = {}
        self._skipped = 0
        self._pace = 1
        self._backward = False
        self._loss_seen = False
        self._open = False
        self._weights_checked = 0
        self._weights_changed = False
        self._batch: Any = None
        self._batch_idx = 0

    def state_dict(self) -> dict[str, Any]:
        begun, quiet = dict(self._begun), dict(self._quiet)
        counts = {"skipped": self._skipped, "weights_checked": self._weights_checked}
        return {"begun": begun, "quiet": quiet, **counts, "runaway": dict(vars(self._runaway))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._begun, self._quiet = dict(state_dict["begun"]), dict(state_dict["quiet"])
        self._skipped = int(state_dict["skipped"])
        self._weights_checked = int(state_dict.get("weights_checked", 0))
        vars(self._runaway).update(state_dict.get("runaway", {}))

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.ledger = shared_ledger(trainer, pl_module)
        self._pace = 1 if pl_module.device.type == "cpu" else log_pace(trainer) or 50
        self._records.clear()
        self._untold = None
        self._losses.clear()
        self._backward = self._open = False
        self._steps.attach(trainer, self._after_step)
        self._check_weights(trainer, pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self._batch, self._batch_idx, self._loss_seen = batch, batch_idx, False

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._backward = self._loss_seen = True
        self._losses.append(loss.detach())

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if self.ledger is None:
            return
        reading = self.ledger.read(self, optimizer)
        scaler = loss_scaler(trainer)
        # A line search (LBFGS) comes here at every trial point; only the first is the gradient at the weights.
        if (self._open and scaler is None) or (pl_module.automatic_optimization and not self._backward):
            return
        self._open = True
        reading.norms  # noqa: B018  computed now: the next backward overwrites the gradients
        index = next(i for i, held in enumerate(trainer.optimizers) if held is getattr(optimizer, "optimizer", optimizer))
        scale = 1.0 if scaler is None or not unscales_inside(trainer, optimizer) else float(scaler.get_scale())
        self._records.append(_Record(trainer.global_step + 1, self._place(trainer), index, reading, scale, self._take_losses()))
        if len(self._records) >= self._pace or index not in self._begun:
            self._judge(trainer, pl_module)

    def _after_step(self, index: int, optimizer: Optimizer) -> None:
        self._losses.clear()
        self._backward = self._open = False
        self._weights_changed = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not self._loss_seen and isinstance(loss, Tensor) and loss_scaler(trainer) is None:
            # Manual optimisation that calls loss.backward() by itself passes no hook before this one.
            self._records.append(_Record(trainer.global_step, self._place(trainer), 0, None, 1.0, [loss.detach()]))
        if log_due(trainer) or checkpoint_due(trainer):
            self._check(trainer, pl_module)
        elif len(self._records) >= self._pace:
            self._judge(trainer, pl_module)
        self._batch = None

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._check(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        watched = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks]
        monitored = {getattr(callback, "monitor", None) for callback in watched}
        for name, value in trainer.callback_metrics.items():
            if (name.startswith(("val/", "val_")) or name in monitored) and not math.isfinite(float(value)):
                raise Diverged(
                    f"{name} is {float(value)} after step {trainer.global_step}, while all weights are finite: "
                    "the last checkpoint before it is kept; lower optimizer.lr or look at the validation data",
                    tensor=name,
                    step=trainer.global_step,
                )
        self._judge_validation(trainer)

    def _judge_validation(self, trainer: L.Trainer) -> None:
        known = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith(("val/", "val_"))}
        name = max(known, key=lambda name: known[name], default=None)
        last = trainer.current_epoch + 1 == trainer.max_epochs and trainer.fit_loop.epoch_loop._num_ready_batches_reached()
        if name is not None and self._runaway.has_run_away(known[name], last=last):
            raise Diverged(
                f"{name} is {known[name]:.3g} after step {trainer.global_step}, and the training began at a loss of "
                f"{self._runaway.first:.3g}: the run has diverged, though every number is finite; lower optimizer.lr or set "
                "trainer.gradient_clip_val",
                tensor=name,
                step=trainer.global_step,
            )

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._check(trainer, pl_module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._steps.detach()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._steps.detach()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._steps.detach()
        self.ledger = self._batch = None

    def _check(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._judge(trainer, pl_module)
        if ranks.together() and ranks.summed(torch.tensor(float(self._untold is not None), dtype=torch.float64)):
            raise self._of_all(self._untold)
        if self._weights_changed:
            self._check_weights(trainer, pl_module)

    @staticmethod
    def _of_all(mine: Diverged | None) -> Diverged:
        """What all processes raise: the news of the first one whose own loss is bad, for that is where it began."""
        if not ranks.together():
            assert mine is not None
            return mine
        told = ranks.gathered(None if mine is None else (str(mine), mine.tensor, mine.step))
        message, tensor, step = min((news for news in told if news is not None), key=lambda news: news[1] != "loss")
        return Diverged(message, tensor=tensor, step=step)

    def _check_weights(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        name = first_nonfinite_parameter(pl_module)
        step = trainer.global_step
        if name is not None:
            when = f"after step {step} (last seen finite after step {self._weights_checked})" if step else "at the start"
            remedy = "start again from the last checkpoint before it with a lower optimizer.lr"
            raise Diverged(f"{name} is not finite {when}: {remedy}", tensor=name, step=step)
        self._weights_checked, self._weights_changed = step, False

    def _judge(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Read all waiting records by one transfer and raise at the first that is bad."""
        records, self._records = self._records, []
        vectors = [v for r in records for v in (*r.losses, *([] if r.reading is None else [r.reading.norms]))]
        values = iter(to_host(vectors))
        for position, record in enumerate(records):
            losses = [next(values)[0] for _ in record.losses]
            norms = [] if record.reading is None else next(values)
            current = position == len(records) - 1
            bad_loss = next((loss for loss in losses if not math.isfinite(loss)), None)
            if losses and bad_loss is None and loss_scaler(trainer) is None:
                self._runaway.begin(losses[0])
            if not all(map(math.isfinite, norms)) and current and loss_scaler(trainer) is None:
                norms = norms if record.reading is None else without_overflow(record.reading, norms)
            if bad_loss is None and all(map(math.isfinite, norms)):
                if record.reading is not None:
                    self._skipped = 0
                    self._judge_size(record, norms)
            elif loss_scaler(trainer) is not None:
                self._count_skipped(record, norms)
            elif ranks.together() and all(map(math.isfinite, norms)):
                # Gradients are the same everywhere and tell everyone; of a loss the others must hear first.
                self._untold = self._untold or self._explained(trainer, pl_module, record, bad_loss, norms, False)
            else:
                raise self._of_all(self._explained(trainer, pl_module, record, bad_loss, norms, current))

    def _judge_size(self, record: _Record, norms: list[float]) -> None:
        total = math.hypot(*norms) / record.scale
        first = record.optimizer not in self._begun
        self._begun.setdefault(record.optimizer, record.step)
        self._quiet[record.optimizer] = self._quiet.get(record.optimizer, 0) + 1 if total < VANISHED else 0
        if total >= VANISHED or not (first or self._quiet[record.optimizer] >= QUIET_STEPS):
            return
        assert record.reading is not None
        when = f"at step {record.step}" if first else f"in {QUIET_STEPS} steps running up to step {record.step}"
        if not norms:
            tensor = record.reading.none[0] if record.reading.none else None
            cause = f"no parameter receives a gradient, {tensor} the first: is the loss cut from the graph?"
        else:
            tensor = record.reading.names[0]
            cause = f"the gradient of {tensor} and of all other parameters is zero: does the loss depend on them?"
        raise VanishedGradient(f"total gradient norm {total} {when}: {cause}", tensor=tensor, step=record.step)

    def _count_skipped(self, record: _Record, norms: list[float]) -> None:
        self._skipped += 1
        if self._skipped >= SKIPPED_STEPS:
            name = self._first_bad(record, norms)
            raise Diverged(
                f"the loss scaler has skipped {self._skipped} steps in a row up to step {record.step}: {name} is not "
                "finite at any scale; use bf16-mixed or 32-true, or lower optimizer.lr",
                tensor=name,
                step=record.step - self._skipped + 1,
            )

    def _explained(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        record: _Record,
        bad_loss: float | None,
        norms: list[float],
        current: bool,
    ) -> Diverged:
        # Later steps have overwritten the weights with consequences: only the newest step can be traced to them.
        weight = first_nonfinite_parameter(pl_module) if current and record.reading is not None else None
        at = f"at step {record.step} ({record.place})"
        if weight is not None:
            known = f"last seen finite after step {self._weights_checked}"
            return Diverged(f"{weight} is not finite {at}, before the update ({known})", tensor=weight, step=record.step)
        inputs = nonfinite_entries(self._batch) if current else None
        lr = trainer.optimizers[record.optimizer].param_groups[0]["lr"]
        cause = inputs or f"lower optimizer.lr ({float(lr):g} now) or set trainer.gradient_clip_val"
        if bad_loss is not None:
            return Diverged(f"the training loss is {bad_loss} {at}: {cause}", tensor="loss", step=record.step)
        name = self._first_bad(record, norms)
        message = f"the gradient of {name} is not finite {at}, while the loss is: {cause}"
        return Diverged(message, tensor=name, step=record.step)

    @staticmethod
    def _first_bad(record: _Record, norms: list[float]) -> str:
        names = [] if record.reading is None else record.reading.names
        return next((name for name, norm in zip(names, norms, strict=True) if not math.isfinite(norm)), "loss")

    def _take_losses(self) -> list[Tensor]:
        losses, self._losses = self._losses, []
        return losses

    def _place(self, trainer: L.Trainer) -> str:
        process = f", process {ranks.rank()}" if ranks.together() else ""
        return f"epoch {trainer.current_epoch}, batch {self._batch_idx}{process}"
