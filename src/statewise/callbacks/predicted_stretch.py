"""What a model that is being trained predicts on the first rows of the validation part, for a picture."""

from itertools import islice
from typing import TYPE_CHECKING

import lightning as L
import numpy as np
import torch

from statewise import runs
from statewise.data.datamodule import WindowsDataModule
from statewise.task import Forecasting

if TYPE_CHECKING:
    import polars as pl

STRETCH = 240  # windows


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
