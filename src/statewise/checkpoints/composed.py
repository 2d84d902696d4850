"""Configurations that do not come from a command line of training: composed anew, or found in a file and not trusted."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from statewise import schemas
from statewise.config import CONFIG_ERRORS, explain

# What our own configurations name beside the constructors of the schemas.
PARTS = (
    "statewise.data.windows.folds.Folds",
    "statewise.data.segments.gaps.Gap",
    "statewise.data.segments.missing.Missing",
)


def compose(overrides: Sequence[str]) -> DictConfig:
    """What `python train.py OVERRIDES` composes, resolved, without what is Hydra's; relative data paths mean this folder.

    Raises:
        ValueError: one line that names the override.
    """
    schemas.register()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("statewise.conf", version_base="1.3"):
            config = hydra_compose("train", overrides=list(overrides))
        if OmegaConf.is_missing(config.data, "path"):
            raise ValueError("data.path has no value: give one with data.path=VALUE")
        path = OmegaConf.select(config, "data.path")
        if isinstance(path, str):
            config.data.path = str(Path.cwd() / Path(path).expanduser())
        return config
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error, overrides)) from error


def with_values(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """The configuration with other values, checked against its schemas.

    Raises:
        ValueError: there is no such key, or the value is of another type.
    """
    OmegaConf.set_struct(config, True)
    for key, value in _leaves(values):
        try:
            OmegaConf.update(config, key, value)
        except CONFIG_ERRORS as error:
            raise ValueError(f"config: {key}: {str(error).splitlines()[0]}") from error
    return config


def known_targets(config: Any, place: str = "config") -> None:
    """Whether a configuration found in a file names constructors of this release only: it is not to choose what is called.

    Raises:
        ValueError: it names something else.
    """
    known = {*schemas.CONSTRUCTORS.values(), *PARTS}
    for key, value in config.items() if isinstance(config, Mapping) else enumerate(config):
        if key == "_target_" and value not in known:
            raise ValueError(f"{place}._target_ is {value!r}, which is no part of this release: it is not called")
        if isinstance(value, Mapping | list):
            known_targets(value, f"{place}.{key}")


def data_entry(config: Mapping[str, Any] | DictConfig) -> str:
    """Where a checkpoint keeps the state of its data module: under the name of the class."""
    return str(config["data"]["_target_"]).rpartition(".")[2]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, name)
        else:
            yield name, value
