"""The hyperparameter tab: which settings it holds, and that no run of a sweep is missing."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from statewise.callbacks.hparams_tab import flattened, shown, write_never_begun

CONFIG: dict[str, Any] = {
    "model": {"_target_": "statewise.models.dense_ssm.dense_ssm", "_partial_": True, "d_state": 8, "dropout": None},
    "data": {"_target_": "statewise.data.datasets.LTI", "split": [0.7, 0.2, 0.1], "seed": 0},
    "callbacks": {"dashboard": {"_target_": "x.Dashboard", "figures_every_n_epochs": 6}},
    "health": {"policy": "error"},
    "hardware": {"precision": "64-true", "devices": 1, "threads": 2},
    "seed": 0,
    "resume": None,
}


def test_nested_settings_become_dotted_names_and_what_a_group_constructs_its_own() -> None:
    assert flattened(CONFIG["model"] | {"inner": {"_target_": "a.b", "flag": True}}, "model.") == {
        "model": "dense_ssm",
        "model.d_state": 8,
        "model.inner.flag": True,
    }


def test_settings_that_only_say_how_a_run_is_watched_have_no_column() -> None:
    assert shown(CONFIG) == {
        "model": "dense_ssm",
        "model.d_state": 8,
        "data": "LTI",
        "data.split": "[0.7, 0.2, 0.1]",
        "hardware.precision": "64-true",
        "hardware.devices": 1,
        "seed": 0,
    }


def test_whatever_was_typed_has_one() -> None:
    typed = ["callbacks.dashboard.figures_every_n_epochs=6", "health=strict", "+experiment=lti", "seed=0", "~callbacks.x"]
    extra = {"callbacks.dashboard.figures_every_n_epochs": 6, "health": "strict", "experiment": "lti"}
    assert shown(CONFIG, typed) == shown(CONFIG) | extra


def settings(folder: Path) -> dict[str, Any]:
    reader = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    (run,) = reader.Runs()
    content = reader.SummaryMetadata(run, SESSION_START_INFO_TAG).plugin_data.content
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    return {key: getattr(value, str(value.WhichOneof("kind"))) for key, value in found.items()}


def test_values_keep_their_kind(tmp_path: Path) -> None:
    write_never_begun(tmp_path, {"model": {"glu": True, "name": "x", "width": 4, "dropout": 0.5}})
    assert settings(tmp_path) == {"model.glu": True, "model.name": "x", "model.width": 4.0, "model.dropout": 0.5}


def test_a_run_with_events_of_its_own_is_left_alone(tmp_path: Path) -> None:
    write_never_begun(tmp_path, {"seed": 1})
    write_never_begun(tmp_path, {"seed": 2})
    assert len(list(tmp_path.iterdir())) == 1
    assert settings(tmp_path) == {"seed": 1.0}


@pytest.mark.parametrize("refused", ["data.window=100000", "model.d_state=-1"])
def test_a_run_that_is_refused_before_it_begins_is_in_the_table_too(train: Any, refused: str) -> None:
    outcome = train("logger=tensorboard", refused)
    assert outcome.code == 2
    key, _, value = refused.partition("=")
    assert settings(outcome.folder)[key] == float(value)
