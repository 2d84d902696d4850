"""What TensorBoard's hyperparameter tab shows of a run: the settings it began with, and the figures it ended with.

No list of columns is written. TensorBoard would take that of whichever run it reads first for all runs of a folder; without
one it makes its own of everything that the runs have, with those settings in front that differ between them. It shows the first
five figures by their names, which is why the ones to compare stand together under ``final/``, before all other metrics.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import (
    PLUGIN_DATA_VERSION,
    PLUGIN_NAME,
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

BEST, FAILED, STEPS = "final/best_validation", "final/failed", "final/steps"
TEST, TRAINING = "final/test_mse", "final/train_loss"

# What else a configuration holds says how a run is watched, not what it computes.
GROUPS = ("data", "model", "optimizer", "scheduler", "task", "trainer", "fault", "seed")
KEYS = ("hardware.precision", "hardware.devices", "hardware.strategy")

Plain = bool | int | float | str


def shown(config: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, Plain]:
    """The settings of a run that are worth a column: those of `GROUPS` and `KEYS`, and whatever was typed.

    What was constructed stands under the name of its group (``model: dense_ssm``). A value that is None has no place.
    """
    every = flattened(config)
    if every.get("data.seed") == every.get("seed"):
        every.pop("data.seed", None)  # the same once more
    typed = [override.lstrip("+~").partition("=")[::2] for override in overrides]
    wanted = {*KEYS, *(key for key, _ in typed)}
    found = {key: value for key, value in every.items() if key.partition(".")[0] in GROUPS or key in wanted}
    # A group without a constructor: health=off, experiment=lti.
    return found | {key: value for key, value in typed if value and key not in every and "." not in key and "/" not in key}


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Nested settings with dotted names, without None; lists become text, and what a group constructs stands under its name."""
    flat: dict[str, Plain] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        elif key == "_target_" and prefix.count(".") == 1:
            flat[prefix.removesuffix(".")] = str(value).rpartition(".")[2]
        elif value is not None and not key.startswith("_"):
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def overrides_of_this_job() -> list[str]:
    """What was typed for this run; nothing where no command line composed it."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def write_never_begun(folder: Path, config: Mapping[str, Any]) -> None:
    """A run that was refused before its training began, in the tab all the same; nothing where it has events already."""
    if any(folder.glob("events.out.tfevents.*")):
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        file = writer._get_file_writer()
        file.add_summary(session_start(shown(config, overrides_of_this_job())))
        writer.add_scalar(FAILED, 1.0, 0)
        writer.add_scalar(STEPS, 0.0, 0)
        file.add_summary(session_end(succeeded=False))


def session_start(settings: Mapping[str, Plain]) -> Summary:
    """The mark that opens a run in the tab."""
    info = SessionStartInfo(start_time_secs=time.time())
    for key, value in settings.items():
        kind = "bool_value" if isinstance(value, bool) else "string_value" if isinstance(value, str) else "number_value"
        setattr(info.hparams[key], kind, value)
    return _summary(SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info, version=PLUGIN_DATA_VERSION))


def session_end(succeeded: bool) -> Summary:
    """The mark that closes it."""
    status = Status.Value("STATUS_SUCCESS" if succeeded else "STATUS_FAILURE")
    info = SessionEndInfo(status=status, end_time_secs=time.time())
    return _summary(SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info, version=PLUGIN_DATA_VERSION))


def _summary(tag: str, content: HParamsPluginData) -> Summary:
    plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME, content=content.SerializeToString())
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
