"""Shows the run in TensorBoard: charts that belong together side by side, pictures, and the hyperparameters."""

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn

from statewise.callbacks import hparams_tab
from statewise.callbacks.checkpoints import BestAndLast
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.predicted_stretch import STRETCH, predicted_stretch
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.stopping import StoppedEarly
from statewise.callbacks.training_health import TrainingHealth
from statewise.health import Finding
from statewise.health.table import parameter_table
from statewise.health.verdict import primary
from statewise.parallel.shards import sharded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Charts of TensorBoard's custom scalars; the tags are regular expressions that it matches from their start.
LAYOUT = {
    "losses": {
        "training and validation": ["Multiline", ["train/loss$", "train/loss_epoch$", "val/loss$"]],
        "validation error": ["Multiline", ["val/mse$", "val/mae$"]],
    },
    "gradients": {
        "total norm, before and after clipping": ["Multiline", ["grad_norm/total$", "grad_norm/total_clipped$"]],
        "norm of each parameter": ["Multiline", ["grad_norm/(?!total|none_count)"]],
    },
    "stability": {
        "spectral radius of A_bar": ["Multiline", ["spectral_radius/"]],
        "transient growth": ["Multiline", ["transient_growth/"]],
    },
    "health": {
        "findings, and the share of parameters that move": ["Multiline", ["health/findings$", "health/share_moving$"]],
        "update beside the weights, each block": ["Multiline", ["health/update_ratio/"]],
    },
    "learning rate": {
        "learning rate": ["Multiline", ["lr$"]],
    },
}
LARGEST = torch.finfo(torch.float32).max
DPI = 144  # of a narrow picture: TensorBoard halves it without smoothing, and one pixel in two would be lost
COLOURS = 64  # of a picture: it takes a quarter of the bytes, and nobody sees the difference


class Dashboard(L.Callback):
    """Fills TensorBoard with what scalars alone do not show; without a TensorBoard logger it does nothing.

    The table of parameters with which the run starts, and every finding of TrainingHealth, as text. Prediction against truth
    on the first stretch of the validation part; the eigenvalues of every A_bar in the unit circle and the gradient norms of
    all parameters, from the histories of SpectralProjection and GradientNorms; a layout of the charts; the hyperparameters,
    with the final figures, also of a run that failed.

    Args:
        figures_every_n_epochs: a picture takes up to half a second; they are drawn at the first epoch, then every so
            many, and at the end.

    Attributes:
        hyperparameters: what to show as such, nested or not; None takes the module's `hparams`.

    Raises:
        ValueError: figures_every_n_epochs below 1.
    """

    def __init__(self, figures_every_n_epochs: int = 6) -> None:
        if figures_every_n_epochs < 1:
            raise ValueError(f"callbacks.dashboard.figures_every_n_epochs must be at least 1, got {figures_every_n_epochs}")
        self.figures_every_n_epochs = figures_every_n_epochs
        self.hyperparameters: Mapping[str, Any] | None = None
        self._open = False
        self._last_predicted = -1
        self._table_shown = False
        self._findings_shown: list[Finding] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last_predicted = -1
        self._table_shown = False
        self._findings_shown = []
        self._begin(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._open and not self._table_shown:
            self._show_health(trainer)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._show_health(trainer)
        epoch = trainer.current_epoch
        last = epoch + 1 == trainer.max_epochs
        if trainer.sanity_checking or epoch == self._last_predicted or (epoch % self.figures_every_n_epochs and not last):
            return
        self._last_predicted = epoch
        # The first process draws; where each holds a part of the weights, it cannot predict without the others.
        together = _has_a_board(trainer) and any(sharded(parameter) for parameter in pl_module.parameters())
        frame = predicted_stretch(trainer, pl_module) if self._open or together else None
        if frame is not None and self._open:
            from statewise import figures

            drawn = figures.predictions(frame, rows=STRETCH, where="validation rows", width=figures.NARROW)
            self._show(trainer, "prediction_against_truth", drawn)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch
        if self._open and epoch % self.figures_every_n_epochs == 0 and epoch + 1 != trainer.max_epochs:
            self._show_histories(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._open:
            self._show_health(trainer)
            self._show_histories(trainer)
            self._end(trainer, succeeded=True)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _write_figures(trainer, {hparams_tab.TEST: _metric(trainer, "test/mse")})

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            _write_figures(trainer, {hparams_tab.FAILED: 1.0})
            return
        self._begin(trainer, pl_module)  # where the run failed before it began
        self._show_health(trainer)
        self._end(trainer, succeeded=isinstance(exception, StoppedEarly))

    def _show_health(self, trainer: L.Trainer) -> None:
        """The table of parameters, once the first batch has shown which of them the loss reaches, and the findings so far."""
        health = next((c for c in trainer.callbacks if isinstance(c, TrainingHealth)), None)  # type: ignore[attr-defined]
        if not self._open or health is None or health.monitor.run is None:  # off, or the fit ended before it began
            return
        monitor = health.monitor
        if not self._table_shown:
            table = parameter_table(monitor.inventory, monitor.reached)
            self._write(trainer, "health/parameters", "\n".join(f"    {line}" for line in table.splitlines()))
            self._table_shown = True
        findings = primary(monitor.findings)
        if findings != self._findings_shown:
            self._findings_shown = findings
            self._write(trainer, "health/findings", "\n\n".join(map(_in_markdown, findings)))

    def _write(self, trainer: L.Trainer, tag: str, markdown: str) -> None:
        for writer in writers(trainer):
            writer.add_text(tag, markdown, trainer.global_step)

    def _show_histories(self, trainer: L.Trainer) -> None:
        from statewise import figures

        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, SpectralProjection) and callback.history:
                self._show(trainer, "eigenvalues", figures.eigenvalues(callback.history, width=figures.NARROW))
            if isinstance(callback, GradientNorms):
                steps, names, norms = callback.history
                if len(steps):
                    drawn = figures.gradient_norms(np.asarray(steps), names, norms, width=figures.NARROW)
                    self._show(trainer, "gradient_norms", drawn)

    def _show(self, trainer: L.Trainer, name: str, figure: "Figure") -> None:
        """Hands the finished PNG over: `add_figure` would draw through pyplot, `add_image` would encode it again."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        from statewise import figures

        encoded = figures.png(figure, dpi=DPI, colours=COLOURS)
        width, height = struct.unpack(">II", encoded[16:24])  # the PNG header
        image = Summary.Image(encoded_image_string=encoded, width=width, height=height, colorspace=4)
        summary = Summary(value=[Summary.Value(tag=f"figures/{name}", image=image)])
        for writer in writers(trainer):
            writer._get_file_writer().add_summary(summary, trainer.global_step)

    def _begin(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Written at once, not at the end: a run that is killed then still has its hyperparameters."""
        if self._open or not trainer.is_global_zero:
            return
        chosen = self.hyperparameters if self.hyperparameters is not None else dict(pl_module.hparams)
        start = hparams_tab.session_start(hparams_tab.flattened(chosen))
        for writer in writers(trainer):
            writer.add_custom_scalars(LAYOUT)
            writer._get_file_writer().add_summary(start)
            writer.flush()
            self._open = True

    def _end(self, trainer: L.Trainer, *, succeeded: bool) -> None:
        if not self._open:
            return
        losses = (_metric(trainer, name) for name in ("train/loss_epoch", "train/loss"))
        final = {
            hparams_tab.FAILED: 0.0 if succeeded else 1.0,
            hparams_tab.STEPS: float(trainer.global_step),
            hparams_tab.TRAINING: next((loss for loss in losses if loss is not None), None),
            hparams_tab.BEST: _best(trainer),
        }
        _write_figures(trainer, final)
        for writer in writers(trainer):
            writer._get_file_writer().add_summary(hparams_tab.session_end(succeeded))
            writer.flush()
        self._open = False


def _metric(trainer: L.Trainer, name: str) -> float | None:
    """The last value of a metric; None where there is none, or none that TensorBoard's float32 can hold."""
    value = trainer.callback_metrics.get(name)
    return float(value) if value is not None and abs(float(value)) <= LARGEST else None


def _best(trainer: L.Trainer) -> float | None:
    """The lowest value of what the checkpoints monitor, or else the last error of the validation."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, BestAndLast):
            return None if callback.best_step is None else callback.best_value
    return _metric(trainer, "val/mse")


def _write_figures(trainer: L.Trainer, final: Mapping[str, float | None]) -> None:
    for writer in writers(trainer):
        for tag, value in final.items():
            if value is not None:
                writer.add_scalar(tag, value, trainer.global_step)
        writer.flush()


def _in_markdown(finding: Finding) -> str:
    when = f"step {finding.step}" if finding.step else "before the first update"
    return f"**{finding.severity.value}: {finding.id}**, {when}\n\n{finding.message}"


def _has_a_board(trainer: L.Trainer) -> bool:
    return any(isinstance(logger, TensorBoardLogger) for logger in trainer.loggers)


def writers(trainer: L.Trainer) -> Iterator[Any]:
    """The writers of all TensorBoard loggers of this process."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                yield logger.experiment
