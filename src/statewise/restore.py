"""A trained model back from its run folder, ready to predict: the configuration builds it, the checkpoint fills it."""

from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf
from torch import nn

from statewise import assembly
from statewise.checkpoints import find_checkpoint, read_checkpoint
from statewise.data.datamodule import WindowsDataModule
from statewise.data.scaling import StandardScaler
from statewise.runs import load_run


class Restored(NamedTuple):
    """What a run has trained, and the data module that scales as the run did."""

    model: nn.Module
    datamodule: WindowsDataModule


def restore(folder: Path | str) -> Restored:
    """The model of a run's best checkpoint in evaluation mode, and its data, read again and scaled by the checkpoint.

    Raises:
        FileNotFoundError: there is no such run, it has no checkpoint, or its data are gone.
        ValueError: the checkpoint or the data are not what the configuration says.
    """
    run = load_run(folder)
    checkpoint = read_checkpoint(run.best or find_checkpoint(str(run.folder), run.folder))
    config = OmegaConf.create(run.config)
    datamodule = assembly.build_data(config)
    scaler = StandardScaler()
    scaler.load_state_dict(checkpoint[type(datamodule).__qualname__]["scaler"])
    datamodule.prepared.adopt(scaler)
    model = assembly.build_model(config, datamodule)
    prefix = "model."
    model.load_state_dict(
        {name.removeprefix(prefix): value for name, value in checkpoint["state_dict"].items() if name.startswith(prefix)}
    )
    return Restored(model.eval(), datamodule)
