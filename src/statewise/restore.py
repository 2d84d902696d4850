"""A trained model back from its run folder, ready to predict.

`restore` reads the run's data again and scales them as the run did; `load_trained` needs the checkpoint only, because it
holds the scaler and the form of the training data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from torch import nn

from statewise import assembly
from statewise.checkpoints import MODEL_PREFIX, read_checkpoint
from statewise.data.datamodule import WindowsDataModule
from statewise.data.form import Form
from statewise.data.preparation.scaling import StandardScaler
from statewise.runs import Run, load_run


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


def restore(folder: Path | str) -> Restored:
    """The model of a run's best checkpoint in evaluation mode, and its data, read again and scaled by the checkpoint.

    Raises:
        FileNotFoundError: there is no such run, it has no checkpoint, or its data are gone.
        ValueError: the checkpoint or the data are not what the configuration says.
    """
    run = load_run(folder)
    checkpoint = read_checkpoint(checkpoint_of(run))
    config = OmegaConf.create(run.config)
    datamodule = assembly.build_data(config)
    datamodule.prepared.adopt(_scaler(checkpoint, config))
    return Restored(_model(run, checkpoint, config, datamodule), datamodule)


def load_trained(folder: Path | str) -> Trained:
    """The model of a run's best checkpoint in evaluation mode, with all that a new file needs; no data are read.

    Raises:
        FileNotFoundError: there is no such run, or it has no checkpoint.
        ValueError: the checkpoint is not what the configuration says.
    """
    run = load_run(folder)
    checkpoint = read_checkpoint(checkpoint_of(run))
    config = OmegaConf.create(run.config)
    state = checkpoint[_data_entry(config)]
    # Checkpoints of earlier versions do not hold it: their data are read once more.
    form = Form.from_state(state["form"]) if "form" in state else assembly.build_data(config).form
    return Trained(run, config, _model(run, checkpoint, config, form), _scaler(checkpoint, config), form)


def checkpoint_of(run: Run) -> Path:
    """The best checkpoint of a run, else its last one.

    Raises:
        FileNotFoundError: it has none.
    """
    path = run.best or run.last
    if path is None:
        raise FileNotFoundError(
            f"{run.folder} holds no checkpoint, so no trained model: the run stopped before its first one; train it anew, or "
            "name another run folder"
        )
    return path


def _scaler(checkpoint: Mapping[str, Any], config: DictConfig) -> StandardScaler:
    scaler = StandardScaler()
    scaler.load_state_dict(checkpoint[_data_entry(config)]["scaler"])
    return scaler


def _data_entry(config: DictConfig) -> str:
    """Where a checkpoint keeps the state of its data module: under the name of the class."""
    return str(config.data._target_).rpartition(".")[2]


def _model(run: Run, checkpoint: Mapping[str, Any], config: DictConfig, shape: WindowsDataModule | Form) -> nn.Module:
    model = assembly.build_model(config, shape)
    weights = {
        name.removeprefix(MODEL_PREFIX): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith(MODEL_PREFIX)
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"the checkpoint of {run.folder} does not fit the model of its configuration: {first[-1]}") from error
    return model.eval()
