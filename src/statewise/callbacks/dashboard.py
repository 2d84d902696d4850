"""Shows the run in TensorBoard: charts that belong together side by side, pictures, and the hyperparameters."""

import struct
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from statewise import runs
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.stopping import StoppedEarly
from statewise.callbacks.training_health import TrainingHealth
from statewise.data.datamodule import WindowsDataModule
from statewise.health import Finding
from statewise.health.table import parameter_table
from statewise.health.verdict import primary
from statewise.task import Forecasting

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

# Charts of TensorBoard's custom scalars; the tags are regular expressions that it matches from their start.
LAYOUT = {
    "training": {
        "loss": ["Multiline", ["train/loss$", "train/loss_epoch$", "val/loss$"]],
        "validation error": ["Multiline", ["val/mse$", "val/mae$"]],
        "learning rate": ["Multiline", ["lr$"]],
    },
    "gradients": {
        "total norm, before and after clipping": ["Multiline", ["grad_norm/total$", "grad_norm/total_clipped$"]],
        "norm of each parameter": ["Multiline", ["grad_norm/(?!total|none_count)"]],
    },
    "health": {
        "findings, and the share of parameters that move": ["Multiline", ["health/findings$", "health/share_moving$"]],
        "update beside the weights, each block": ["Multiline", ["health/update_ratio/"]],
    },
    "stability": {
        "spectral radius of A_bar": ["Multiline", ["spectral_radius/"]],
        "transient growth": ["Multiline", ["transient_growth/"]],
    },
}
# What the hyperparameter tab compares: tags that the run writes anyway.
COMPARED = ("val/mse", "val/loss", "test/mse", "test/mae")
STRETCH = 240  # windows of the validation part that are drawn
DPI = 80


class Dashboard(L.Callback):
    """Fills TensorBoard with what scalars alone do not show; without a TensorBoard logger it does nothing.

    The table of parameters with which the run starts, and every finding of TrainingHealth, as text. Prediction against truth
    on the first stretch of the validation part; the eigenvalues of every A_bar in the unit circle and the gradient norms of
    all parameters, from the histories of SpectralProjection and GradientNorms; a layout of the charts; the hyperparameters,
    with the outcome also of a run that failed.

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
        if not self._open or trainer.sanity_checking or epoch == self._last_predicted:
            return
        if not last and epoch % self.figures_every_n_epochs:
            return
        self._last_predicted = epoch
        frame = predicted_stretch(trainer, pl_module)
        if frame is not None:
            from statewise import figures

            drawn = figures.predictions(frame, rows=STRETCH, where="validation rows")
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

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
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
                self._show(trainer, "eigenvalues", figures.eigenvalues(callback.history))
            if isinstance(callback, GradientNorms):
                steps, names, norms = callback.history
                if len(steps):
                    drawn = figures.gradient_norms(np.asarray(steps), names, norms)
                    self._show(trainer, "gradient_norms", drawn)

    def _show(self, trainer: L.Trainer, name: str, figure: "Figure") -> None:
        """Hands the finished PNG over: `add_figure` would draw through pyplot, `add_image` would encode it again."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        from statewise import figures

        encoded = figures.png(figure, dpi=DPI)
        width, height = struct.unpack(">II", encoded[16:24])  # the PNG header
        image = Summary.Image(encoded_image_string=encoded, width=width, height=height, colorspace=4)
        summary = Summary(value=[Summary.Value(tag=f"figures/{name}", image=image)])
        for writer in writers(trainer):
            writer._get_file_writer().add_summary(summary, trainer.global_step)

    def _begin(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Written at once, not at the end: a run that is killed then still has its hyperparameters."""
        if self._open or not trainer.is_global_zero:
            return
        from torch.utils.tensorboard.summary import hparams

        chosen = self.hyperparameters if self.hyperparameters is not None else dict(pl_module.hparams)
        experiment, start, _ = hparams(flattened(chosen), dict.fromkeys(COMPARED, 0.0))  # type: ignore[no-untyped-call]
        for writer in writers(trainer):
            writer.add_custom_scalars(LAYOUT)
            writer._get_file_writer().add_summary(experiment)
            writer._get_file_writer().add_summary(start)
            self._open = True

    def _end(self, trainer: L.Trainer, *, succeeded: bool) -> None:
        if not self._open:
            return
        for writer in writers(trainer):
            writer._get_file_writer().add_summary(session_end(succeeded))
            writer.flush()
        self._open = False


def _in_markdown(finding: Finding) -> str:
    when = f"step {finding.step}" if finding.step else "before the first update"
    return f"**{finding.severity.value}: {finding.id}**, {when}\n\n{finding.message}"


def writers(trainer: L.Trainer) -> Iterator[Any]:
    """The writers of all TensorBoard loggers of this process."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                yield logger.experiment


def predicted_stretch(trainer: L.Trainer, pl_module: L.LightningModule) -> "pl.DataFrame | None":
    """The first windows of the validation part, predicted: a frame as in predictions.parquet.

    To be called while the model is in evaluation mode. None where task or data are not ours and cannot be asked.
    """
    datamodule = getattr(trainer, "datamodule", None)
    if not isinstance(datamodule, WindowsDataModule) or not isinstance(pl_module, Forecasting):
        return None
    batch = next(islice(datamodule.evaluation_batches("val", batch_size=STRETCH), 1), None)
    if batch is None:
        return None
    with torch.no_grad(), trainer.precision_plugin.val_step_context():
        scaled = pl_module(batch.inputs.to(pl_module.device)).double().cpu().numpy()  # (b horizon m)
    observed = batch.observed[:, -1].cpu().numpy()
    truth = np.where(observed, batch.targets[:, -1].double().cpu().numpy(), np.nan)
    series, times = datamodule.target_positions("val")
    return runs.predictions_frame(
        series=series[: len(scaled)],
        times=times[: len(scaled)],
        names=datamodule.target_names,
        truth=_original(datamodule, truth),
        prediction=_original(datamodule, scaled),
    )


def _original(datamodule: WindowsDataModule, first: np.ndarray) -> np.ndarray:
    """The first windows in original units: the data module converts the predictions of all windows at once."""
    padded = np.full((datamodule.n_windows("val"), *first.shape[1:]), np.nan)
    padded[: len(first)] = first
    return datamodule.to_original("val", padded)[: len(first)]


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Nested settings with dotted names; what the hyperparameter tab cannot hold (lists, None) becomes text."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def session_end(succeeded: bool) -> Any:
    """The mark that closes a run in the hyperparameter tab."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.metadata import PLUGIN_DATA_VERSION, PLUGIN_NAME, SESSION_END_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = Status.Value("STATUS_SUCCESS" if succeeded else "STATUS_FAILURE")
    info = SessionEndInfo(status=status, end_time_secs=time.time())
    content = HParamsPluginData(session_end_info=info, version=PLUGIN_DATA_VERSION).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME, content=content)
    return Summary(value=[Summary.Value(tag=SESSION_END_INFO_TAG, metadata=SummaryMetadata(plugin_data=plugin))])
