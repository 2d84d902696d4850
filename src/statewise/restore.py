"""A trained model back from its run folder or from a checkpoint file, ready to predict.

`restore` reads the run's data again and scales them as the run did; `load_trained` needs the checkpoint only, because it
holds the scaler and the form of the training data.
"""

from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from torch import nn

from statewise import assembly
from statewise.checkpoints.file import checkpoint_of as checkpoint_of
from statewise.checkpoints.fit import load_strictly
from statewise.checkpoints.recipe import Opened, form_in, opened, scaler_in
from statewise.data.datamodule import WindowsDataModule
from statewise.data.form import Form
from statewise.data.preparation.scaling import StandardScaler
from statewise.runs import Run


class Restored(NamedTuple):
    """What a run has trained, and the data module that scales as the run did."""

    model: nn.Module
    datamodule: WindowsDataModule


class Trained(NamedTuple):
    """What a run has trained, without its data."""

    run: Run
    config: DictConfig
    model: nn.Module
    scaler: StandardScaler
    form: Form


def restore(place: Path | str | Opened) -> Restored:
    """The model of a run's best checkpoint, or of a checkpoint file, in evaluation mode, and its data, read again and scaled
    by the checkpoint.

    Raises:
        FileNotFoundError: there is no such run or file, it has no checkpoint, or its data are gone.
        ValueError: the checkpoint or the data are not what the configuration says.
    """
    found = place if isinstance(place, Opened) else opened(place)
    datamodule = assembly.build_data(found.config)
    datamodule.prepared.adopt(scaler_in(found.checkpoint, found.config))
    return Restored(_model(found, datamodule), datamodule)


def load_trained(place: Path | str) -> Trained:
    """The model of a run's best checkpoint, or of a checkpoint file, in evaluation mode, with all that a new file needs; no
    data are read.

    Raises:
        FileNotFoundError: there is no such run or file, or it has no checkpoint.
        ValueError: the checkpoint is not what the configuration says.
    """
    found = opened(place)
    form = form_in(found.checkpoint, found.config)
    return Trained(found.run, found.config, _model(found, form), scaler_in(found.checkpoint, found.config), form)


def _model(found: Opened, shape: WindowsDataModule | Form) -> nn.Module:
    model = assembly.build_model(found.config, shape)
    load_strictly(model, found.checkpoint["state_dict"], source=found.path)
    return model.eval()
