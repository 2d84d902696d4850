"""Whether a command is one process of several, from its configuration and its environment; nothing heavy is imported."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from statewise import schemas
from statewise.config import CONFIG_ERRORS

CONFIG_DIR = ("--config-dir", "-cd")


def several(hardware: Any) -> bool:
    """Whether this hardware may take more than one process: the node `hardware` of a configuration."""
    if hardware.strategy != "auto" or hardware.num_nodes > 1:
        return True
    devices = hardware.devices
    if isinstance(devices, int):
        return devices > 1
    if isinstance(devices, str) and devices.isdecimal():
        return int(devices) > 1
    return hardware.accelerator != "cpu" and (isinstance(devices, str) or len(devices) > 1)


def has_company() -> bool:
    """Whether torchrun or srun has started others with this process; of the same run or not."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1


def of_one_run(arguments: Sequence[str]) -> bool:
    """Whether what this command line asks for takes several processes; False where it is no such line, which launch says."""
    schemas.register()
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    folders = []
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if option in CONFIG_DIR:
            folders.append(value)
            overrides.remove(value)
        elif option.startswith(f"{CONFIG_DIR[0]}="):
            folders.append(option.partition("=")[2])
    if folders:
        overrides.append(f"hydra.searchpath=[{','.join(f'file://{Path(folder).absolute()}' for folder in folders)}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("statewise.conf", version_base="1.3"):
            return several(compose("train", overrides=overrides).hardware)
    except CONFIG_ERRORS:
        return False
