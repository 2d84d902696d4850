"""What is trained: one shared step from a batch to errors, the metrics of every stage, the optimiser."""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from statewise.carried import CarriedState, supervised
from statewise.checkpoints.fit import fitted
from statewise.choices import at_least, one_of
from statewise.epoch_loss import EpochLoss
from statewise.metrics import (
    MaskedErrors,
    MaskedMean,
    elementwise_loss,
    mean_over_targets,
    observed_error,
    observed_sums,
)
from statewise.optim import describe_groups, marked_parameters, parameter_groups
from statewise.parallel import ranks
from statewise.parallel.sharding import shard
from statewise.parallel.step_agreement import StepAgreement
from statewise.shapes import shaped_like_targets
from statewise.tested import WindowsOfTest

log = logging.getLogger(__name__)

SUPERVISION = ("last", "all")
CARRIED = "carried_state"  # the entry of a checkpoint that was written inside an epoch of streams
EPOCH_LOSS = "epoch_loss"  # the entry of one that was written inside any epoch


class StepResult(NamedTuple):
    """Of one batch: the prediction of the time steps the model was asked for, the loss of each supervised value, the state."""

    prediction: Tensor  # (b s horizon m), scaled units
    losses: Tensor  # (b s' horizon m), s' = the steps that carry loss; 0 where nothing was observed
    observed: Tensor  # (b s' horizon m)
    state: Any  # the model's, after the last time step


class Forecasting(L.LightningModule):
    """Trains any model that maps ``[b, t, features]`` to ``([b, s, horizon * targets], state)``.

    The loss (``train/loss``, ``val/loss``) is of the supervised time steps; ``val/mse``, ``val/mae`` and everything
    under ``test`` are of the last one. Sums and counts are float64 whatever the model's precision.

    Training batches that say which rows are ``fresh`` (``data.sampling=contiguous``) begin in the state in which their
    streams ended in the batch before, see carried.py. Validation and test always begin in a state of nothing.

    Args:
        model: called as ``model(inputs, last_only=...)``, and with a state to begin from after the inputs.
        optimizer: makes an optimiser of parameter groups (`statewise.optim.adamw` with its settings bound).
        scheduler: makes a schedule in optimiser steps of (optimizer, total_steps); None keeps the learning rate.
        target_names: of the targets, in order.
        horizon: steps ahead that each prediction covers.
        supervision: ``last`` puts the loss on the last time step of a window or chunk, ``all`` on every one.
        burn_in: first steps that carry no loss under ``all``, because the state starts from nothing: not in rows that go on
        with a carried state. No meaning under ``last``.
        loss: mse, mae or huber (delta 1).

    Raises:
        ValueError: an argument is out of range, or (at the first batch) targets do not have the shape of the
        prediction.

    Where several processes train together, each has its share of the rows of every batch (data/windows/shares.py). The
    loss that a process differentiates is that of its own rows over the observed targets of all, times the number of
    processes, so that the mean of their gradients is the gradient of the whole batch; what is logged is the whole loss.

    After ``Trainer.test``: `test_predictions` ``[n, horizon, m]`` (float64, scaled, in the order of the windows, on the CPU;
    of several processes on the first) and `test_errors`, the values of `MaskedErrors`, also in original units if the data
    module tells its scale.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[..., LRScheduler] | None,
        target_names: Sequence[str],
        horizon: int,
        supervision: str = "last",
        burn_in: int = 0,
        loss: str = "mse",
    ) -> None:
        super().__init__()
        one_of("task.supervision", supervision, SUPERVISION)
        at_least(0, task__burn_in=burn_in)
        at_least(1, data__horizon=horizon)
        if not target_names:
            raise ValueError("data.targets must name at least one column, got none")
        self.model = model
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.target_names = tuple(target_names)
        self.horizon = horizon
        self.supervision = supervision
        self.burn_in = burn_in if supervision == "all" else 0
        self.loss_name = loss
        self.elementwise_loss = elementwise_loss(loss)
        # Read now: copying a model loses attributes of tensors.
        self.no_decay_marks = marked_parameters(self)

        m = len(self.target_names)
        self.val_loss = MaskedMean(m)
        self.val_errors = MaskedErrors(m)
        self.tested = WindowsOfTest(m)

        self.agreement = StepAgreement()
        self.carried = CarriedState()
        self.skipped_batches = 0
        self.test_predictions: Tensor | None = None
        self.test_errors: dict[str, Tensor] = {}
        self._epoch_loss = EpochLoss(self.agreement)
        self._any_observed: bool | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """The prediction after the last time step, ``[b, horizon, m]``, scaled."""
        y: Tensor = self.model(inputs, last_only=True)[0]
        return y[:, -1].reshape(len(y), self.horizon, len(self.target_names))

    def shared_step(self, batch: Any, state: Any = None) -> StepResult:
        """What training, validation and test do alike with a batch (inputs, targets, observed), from a state or from nothing.

        Raises:
            ValueError: the targets do not have the shape of the prediction, or burn_in leaves no step.
        """
        inputs, targets, observed = batch[:3]
        if self.burn_in >= inputs.shape[1]:
            raise ValueError(f"task.burn_in must be below data.window={inputs.shape[1]}, got {self.burn_in}")
        given = (inputs,) if state is None else (inputs, state)
        y, state = self.model(*given, last_only=self.supervision == "last")  # (b s horizon*m)
        settings: dict[str, Any] = {"horizon": self.horizon, "names": self.target_names, "supervision": self.supervision}
        prediction = shaped_like_targets(y, targets, **settings)  # (b s horizon m)
        seen = supervised(observed, self.burn_in, batch)  # (b s' horizon m)
        steps = slice(targets.shape[1] - seen.shape[1], None)
        error = observed_error(prediction[:, steps], targets[:, steps], seen)
        return StepResult(prediction, self.elementwise_loss(error), seen, state)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        before = self.carried.before(self.model, batch)
        of_all = self.agreement.take()
        if not (self._has_observed(batch) if of_all is None else bool(of_all.any())):
            self.skipped_batches += 1
            # Lightning warns that None might not be on purpose. It is, and the count is logged at the end.
            warnings.filterwarnings("ignore", message=".*`training_step` returned `None`", category=UserWarning)
            self.carried.pass_over(self.model, batch, before)
            return None
        step = self.shared_step(batch, before)
        if before is not None:
            self.carried.keep(step.state)
        sums, counts = observed_sums(step.losses, step.observed)
        if of_all is None:
            loss = mean_over_targets(sums, counts)
        else:
            loss = ranks.world_size() * mean_over_targets(sums, of_all.to(sums.device, non_blocking=True))
        if self._trainer is not None and self._trainer.training:  # else called by hand: nothing to log to
            self._epoch_loss.add(sums.detach(), counts)
            self._log_on_interval(loss.detach(), sums.detach(), of_all)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        step = self.shared_step(batch)
        self.val_loss.update(step.losses, step.observed)
        self.val_errors.update(step.prediction[:, -1], batch.targets[:, -1], batch.observed[:, -1])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        prediction = self.shared_step(batch).prediction[:, -1]  # (b horizon m)
        self.tested.add(
            self._places_of_test(batch_idx, len(prediction)), prediction, batch.targets[:, -1], batch.observed[:, -1]
        )

    def _places_of_test(self, batch_idx: int, size: int) -> range:
        """Which of the test windows are in this process's part of a batch."""
        if ranks.together():
            own: range = self.trainer.datamodule.places("test", batch_idx)  # type: ignore[attr-defined]
            return own
        return range(self.tested.seen, self.tested.seen + size)

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        """Asks what is observed, by all processes, while the batch is on the CPU: asking a GPU would halt it at every step.

        Lightning's own method of this place, because the public hook makes it warn in every run with a data module. Were
        it gone, `training_step` would ask itself.
        """
        batch = super()._on_before_batch_transfer(batch, dataloader_idx)
        if self.trainer.training:
            if self.agreement.together:
                self.agreement.exchange(self._observed_counts(batch))
            else:
                self._any_observed = self._observes_anything(batch)
        return batch

    def on_train_epoch_start(self) -> None:  # not called where an epoch is resumed midway
        self.carried.forget()

    def on_train_epoch_end(self) -> None:
        self._log_epoch_loss()  # where the epoch ended before its last batch, or that batch was skipped
        self.carried.forget()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.carried.leaves:
            checkpoint[CARRIED] = self.carried.of_all()
        if epoch_loss := self._epoch_loss.state_dict():
            checkpoint[EPOCH_LOSS] = epoch_loss

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        tell_share = getattr(getattr(self._trainer, "datamodule", None), "share", None)
        rows = tell_share("train").rows if tell_share else slice
        self.carried.leaves = [leaf[rows(len(leaf))] for leaf in checkpoint.get(CARRIED, ())]
        first = self._trainer is None or self.trainer.global_rank == 0
        self._epoch_loss.load_state_dict(checkpoint.get(EPOCH_LOSS, {}), first=first)
        if "state_dict" in checkpoint:  # which may have the prefixes of a wrapper, and Lightning takes names as they are
            checkpoint["state_dict"] = fitted(checkpoint["state_dict"], self.state_dict(), source="the checkpoint")
        if self._trainer is not None and self.trainer.testing:
            # Lightning would set every callback back to what it knew when the best checkpoint was written: later findings,
            # norms and eigenvalues of this run would be gone.
            checkpoint.pop("callbacks", None)

    def on_fit_end(self) -> None:
        if self.skipped_batches:
            log.warning("%d training batches held no observed target and were skipped", self.skipped_batches)

    def on_validation_epoch_start(self) -> None:
        self.val_loss.reset()
        self.val_errors.reset()

    def on_validation_epoch_end(self) -> None:
        errors = self.val_errors.compute()
        # The metrics have summed over all processes: there is nothing to synchronise.
        self.log("val/loss", self.val_loss.compute(), prog_bar=True)
        self.log("val/mse", errors["mse"])
        self.log("val/mae", errors["mae"])

    def on_test_epoch_start(self) -> None:
        tell_scale = getattr(getattr(self.trainer, "datamodule", None), "target_scale", None)
        self.tested.begin(tell_scale("test") if tell_scale else None)

    def on_test_epoch_end(self) -> None:
        self.test_predictions, self.test_errors = self.tested.conclude()
        for key, value in self.test_errors.items():
            if value.ndim == 0:
                self.log(f"test/{key}", value)
            elif len(value) > 1:
                name = key.removesuffix("_per_target")
                self.log_dict({f"test/{name}/{target}": v for target, v in zip(self.target_names, value, strict=True)})

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """The carried state is an input, no weight; and under burn_in rows that go on with one have more steps with a loss than
        a validation window, which never has one.
        """
        carried = tuple(f"carried.leaves[{i}]" for i in range(len(self.carried.leaves)))
        sampling = getattr(getattr(self._trainer, "datamodule", None), "sampling", None)
        intended: tuple[str, ...] = ()
        if sampling == "contiguous":
            intended = ("leaking-state", "supervision-mismatch") if self.burn_in else ("leaking-state",)
        return {"trainable": (), "constants": carried, "intended": intended}

    def configure_model(self) -> None:
        """Under hardware=fsdp the strategy has a mesh of processes: the model is cut over it, once."""
        if self._device_mesh is not None:
            shard(self.model, self._device_mesh["data_parallel"])

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.make_optimizer(parameter_groups(self, exempt=self.no_decay_marks))
        log.info("%s", describe_groups(optimizer))
        if self.make_scheduler is None:
            return optimizer
        scheduler = self.make_scheduler(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _observes_anything(self, batch: Any) -> bool:
        observed = self._supervised(batch)
        return observed is None or bool(observed.any())

    def _observed_counts(self, batch: Any) -> Tensor:
        """How many values of each target carry loss in this batch, `[m]`."""
        observed, m = self._supervised(batch), len(self.target_names)
        return torch.ones(m, dtype=torch.int64) if observed is None else observed.reshape(-1, m).sum(0)

    def _supervised(self, batch: Any) -> Tensor | None:
        """Which targets carry loss; None where burn_in leaves no step, and the shared step says what is wrong."""
        observed: Tensor = batch.observed
        if not self.burn_in:
            return observed
        if observed.ndim < 2 or observed.shape[1] <= self.burn_in:
            return None
        return supervised(observed, self.burn_in, batch)

    def _has_observed(self, batch: Any) -> bool:
        known, self._any_observed = self._any_observed, None
        return self._observes_anything(batch) if known is None else known

    def _log_on_interval(self, loss: Tensor, sums: Tensor, of_all: Tensor | None) -> None:
        """Logging every step costs as much as Lightning's whole loop, so only the steps that reach a logger are logged.

        Moved to the CPU: Lightning reads a value of the progress bar at every step, from where it lies. Tensors in
        float64: Lightning makes a float32 of a Python number.
        """
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by Lightning's connector
        if every and (self.trainer.global_step + 1) % every == 0:
            if of_all is not None:
                loss = mean_over_targets(self.agreement.summed(sums), of_all)
            lr = self.trainer.optimizers[0].param_groups[0]["lr"]  # of this step: the schedule moves after it
            self.log("train/loss", loss.cpu(), prog_bar=True, on_step=True, on_epoch=False)
            self.log("lr", torch.tensor(lr, dtype=torch.float64), on_step=True, on_epoch=False)
        if self.trainer.is_last_batch:  # before the epoch ends, so that callbacks can read it when it does
            self._log_epoch_loss()

    def _log_epoch_loss(self) -> None:
        if (mean := self._epoch_loss.close()) is not None:
            self.log("train/loss_epoch", mean, on_step=False, on_epoch=True, batch_size=1)
