"""The dashboard is tested through a real fit, by reading back the events that it wrote."""

import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import polars as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG, SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from statewise.callbacks.dashboard import LAYOUT, Dashboard
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.predicted_stretch import predicted_stretch
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth
from statewise.data.datamodule import WindowsDataModule
from statewise.data.segments.missing import Missing
from statewise.data.source import Source
from statewise.data.tables.table import Table
from statewise.health import UnhealthyTraining
from statewise.loggers import Events
from statewise.models.dense_ssm import dense_ssm
from statewise.optim import adamw
from statewise.task import Forecasting

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

EPOCHS = 4
MISSING_ROW = 170


class Waves(WindowsDataModule):
    """200 hourly rows of a wave and of noise; one value of the validation part was never observed."""

    def source(self) -> Source:
        rows = np.arange(200)
        wave = 50 + 10 * np.sin(rows / 5)
        wave[MISSING_ROW] = np.nan
        frame = pl.DataFrame(
            {
                "ts": np.datetime64("2024-01-01", "ns") + rows * np.timedelta64(3600, "s"),
                "wave": wave,
                "noise": np.random.default_rng(0).normal(size=200),
            }
        )
        table = Table.of(frame, time="ts", series=None, columns=("wave", "noise"))
        return Source(table=table, features=("wave", "noise"), targets=("wave",))


def parts() -> tuple[Forecasting, Waves]:
    datamodule = Waves(window=8, batch_size=32, split=[0.7, 0.2, 0.1], missing=Missing(max_fill=2))
    datamodule.setup()
    torch.manual_seed(0)
    model = dense_ssm(
        n_features=2, n_outputs=1, target_inputs=(0,), targets_are_levels=True, horizon=1, d_model=4, d_state=4
    ).double()
    task = Forecasting(
        model, optimizer=partial(adamw, lr=1e-3), scheduler=None, target_names=datamodule.target_names, horizon=1
    )
    return task, datamodule


def trainer(folder: Path, *callbacks: L.Callback, epochs: int = EPOCHS, **settings: Any) -> L.Trainer:
    settings.setdefault("logger", Events(folder, name="", version="", default_hp_metric=False))
    return L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        **settings,
    )


def events(folder: Path) -> EventAccumulator:
    read = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    return read.Reload()


def outcome(read: EventAccumulator) -> int:
    content = read.SummaryMetadata(SESSION_END_INFO_TAG).plugin_data.content
    return int(HParamsPluginData.FromString(content).session_end_info.status)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    dashboard = Dashboard(figures_every_n_epochs=2)
    dashboard.hyperparameters = {"model": {"d_state": 4, "layers": [1, 2]}, "seed": 0, "resume": None}
    task, datamodule = parts()
    callbacks = (dashboard, TrainingHealth(policy="warn"), GradientNorms(), SpectralProjection())
    trainer(folder, *callbacks).fit(task, datamodule=datamodule)
    return folder


def test_pictures_are_drawn_at_the_first_epoch_every_so_many_and_at_the_end(fitted: Path) -> None:
    read = events(fitted)
    per_epoch = 5
    drawn = {tag: [image.step for image in read.Images(tag)] for tag in read.Tags()["images"]}
    assert drawn["figures/prediction_against_truth"] == [per_epoch * epoch for epoch in (1, 3, 4)]
    assert drawn["figures/eigenvalues"] == drawn["figures/prediction_against_truth"]
    assert drawn["figures/gradient_norms"] == drawn["figures/prediction_against_truth"]
    assert all(image.width > 500 for image in read.Images("figures/eigenvalues"))


def test_the_charts_of_the_layout_find_the_tags_that_a_run_writes(fitted: Path) -> None:
    read = events(fitted)
    layout = layout_pb2.Layout.FromString(read.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == list(LAYOUT)
    import re

    written = read.Tags()["scalars"]
    for category in layout.category:
        for chart in category.chart:
            for tag in chart.multiline.tag:
                found = [name for name in written if re.match(tag, name)]
                assert found, f"no metric matches {tag} of chart {chart.title}"
    each = re.compile(LAYOUT["gradients"]["norm of each parameter"][1][0])
    assert not each.match("grad_norm/total_clipped")
    assert each.match("grad_norm/ssm_0.A")


def texts(read: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in read.Tensors(f"{tag}/text_summary")]


def test_the_table_of_parameters_is_shown_once_as_text(fitted: Path) -> None:
    ((step, table),) = texts(events(fitted), "health/parameters")
    assert step == 1
    assert "    model.ssm_0.A " in table
    assert "not yet known" not in table
    assert "health/findings/text_summary" not in events(fitted).Tags()["tensors"]


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_findings_are_shown_as_text_also_where_they_stop_the_run(tmp_path: Path, policy: str) -> None:
    task, datamodule = parts()
    task.model.ssm_0.A.requires_grad_(False)  # type: ignore[union-attr]
    fit = trainer(tmp_path, TrainingHealth(policy=policy), Dashboard(), epochs=1)
    with contextlib.suppress(UnhealthyTraining):
        fit.fit(task, datamodule=datamodule)
    ((_, said),) = texts(events(tmp_path), "health/findings")
    assert said.startswith("**error: frozen-by-mistake**, before the first update\n\n`model.ssm_0.A`")
    assert texts(events(tmp_path), "health/parameters")


def test_hyperparameters_are_shown_flat_and_a_good_end_is_marked(fitted: Path) -> None:
    read = events(fitted)
    start = HParamsPluginData.FromString(read.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content)
    shown = start.session_start_info.hparams
    assert shown["model.d_state"].number_value == 4
    assert shown["model.layers"].string_value == "[1, 2]"
    assert "resume" not in shown
    assert outcome(read) == Status.Value("STATUS_SUCCESS")


def test_the_charts_stand_in_the_order_in_which_one_reads_a_run() -> None:
    assert list(LAYOUT) == ["losses", "gradients", "stability", "health", "learning rate"]


def final(read: EventAccumulator) -> dict[str, float]:
    tags = [tag for tag in read.Tags()["scalars"] if tag.startswith("final/")]
    return {tag.removeprefix("final/"): read.Scalars(tag)[-1].value for tag in tags}


def test_the_final_figures_of_a_run_stand_before_all_other_metrics(fitted: Path) -> None:
    read = events(fitted)
    found = final(read)
    assert found["failed"] == 0
    assert found["steps"] == 5 * EPOCHS
    assert found["train_loss"] == pytest.approx(read.Scalars("train/loss_epoch")[-1].value)
    assert found["best_validation"] == pytest.approx(read.Scalars("val/mse")[-1].value)
    assert sorted(read.Tags()["scalars"])[:4] == [f"final/{name}" for name in sorted(found)]


def test_the_error_on_test_rows_joins_the_final_figures(tmp_path: Path) -> None:
    task, datamodule = parts()
    fit = trainer(tmp_path, Dashboard(), epochs=1)
    fit.fit(task, datamodule=datamodule)
    (found,) = fit.test(task, datamodule=datamodule, verbose=False)
    assert final(events(tmp_path))["test_mse"] == pytest.approx(found["test/mse"])


def test_pictures_are_light(fitted: Path) -> None:
    read = events(fitted)
    sizes = [len(image.encoded_image_string) for tag in read.Tags()["images"] for image in read.Images(tag)]
    assert max(sizes) < 25_000


class Fails(L.Callback):
    def __init__(self, where: str) -> None:
        setattr(self, where, self.fail)

    def fail(self, *_: object, **__: object) -> None:
        raise RuntimeError("planted")


@pytest.mark.parametrize("where", ["setup", "on_train_batch_end"])
def test_a_run_that_fails_early_or_late_still_has_its_hyperparameters(tmp_path: Path, where: str) -> None:
    task, datamodule = parts()
    dashboard = Dashboard()
    dashboard.hyperparameters = {"seed": 3}
    with pytest.raises(RuntimeError, match="planted"):
        trainer(tmp_path, dashboard, Fails(where), epochs=1).fit(task, datamodule=datamodule)
    read = events(tmp_path)
    start = HParamsPluginData.FromString(read.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content)
    assert start.session_start_info.hparams["seed"].number_value == 3
    assert outcome(read) == Status.Value("STATUS_FAILURE")
    found = final(read)
    assert found["failed"] == 1
    assert found["steps"] == (1 if where == "on_train_batch_end" else 0)
    assert "best_validation" not in found  # never a NaN


def test_a_run_that_fails_on_its_test_rows_is_marked(tmp_path: Path) -> None:
    task, datamodule = parts()
    fit = trainer(tmp_path, Dashboard(), Fails("on_test_batch_end"), epochs=1)
    fit.fit(task, datamodule=datamodule)
    with pytest.raises(RuntimeError, match="planted"):
        fit.test(task, datamodule=datamodule, verbose=False)
    assert final(events(tmp_path))["failed"] == 1


def test_a_run_that_is_killed_has_left_its_hyperparameters_by_then(tmp_path: Path) -> None:
    class Looks(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            read = events(tmp_path)
            found.append(bool(read.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content))

    found: list[bool] = []
    task, datamodule = parts()
    trainer(tmp_path, Dashboard(), Looks(), epochs=1, limit_train_batches=2).fit(task, datamodule=datamodule)
    assert found == [True, True]


def test_without_a_tensorboard_logger_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dashboard, "_show", lambda *_: pytest.fail("drew a picture"))
    task, datamodule = parts()
    logger = CSVLogger(tmp_path, name="", version="csv")
    fit = trainer(tmp_path, Dashboard(), GradientNorms(), SpectralProjection(), epochs=1, logger=logger)
    fit.fit(task, datamodule=datamodule)
    assert list(tmp_path.glob("**/events*")) == []


def test_pictures_do_not_change_the_training(tmp_path: Path) -> None:
    def weights(*callbacks: L.Callback) -> list[torch.Tensor]:
        task, datamodule = parts()
        L.seed_everything(0, verbose=False)
        trainer(tmp_path, *callbacks, epochs=2).fit(task, datamodule=datamodule)
        return [parameter.detach().clone() for parameter in task.parameters()]

    for with_pictures, without in zip(weights(Dashboard(1)), weights(), strict=True):
        assert torch.equal(with_pictures, without)


def test_the_drawn_stretch_is_what_the_model_predicts_in_original_units() -> None:
    task, datamodule = parts()
    task.eval()
    fit = L.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    fit.datamodule = datamodule  # type: ignore[attr-defined]
    frame = predicted_stretch(fit, task)
    assert frame is not None
    n = datamodule.n_windows("val")
    assert len(frame) == n
    rows = np.arange(140, 140 + n)
    assert frame["time"].to_numpy()[0] == np.datetime64("2024-01-01", "ns") + 140 * np.timedelta64(3600, "s")
    truth = frame["target"].to_numpy()
    assert np.flatnonzero(np.isnan(truth)).tolist() == [MISSING_ROW - 140]
    np.testing.assert_allclose(truth[:20], 50 + 10 * np.sin(rows[:20] / 5))
    batch = next(datamodule.evaluation_batches("val", 1000))
    expected = datamodule.to_original("val", task(batch.inputs).detach().numpy())
    np.testing.assert_allclose(frame["prediction"].to_numpy(), expected[:, 0, 0])


def test_a_module_that_is_not_ours_gets_no_prediction_but_all_the_rest(tmp_path: Path) -> None:
    class Foreign(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.net(batch).square().mean()

        validation_step = training_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4)
    trainer(tmp_path, Dashboard(), GradientNorms(), epochs=1).fit(Foreign(), batches, batches)
    read = events(tmp_path)
    assert read.Tags()["images"] == ["figures/gradient_norms"]
    assert outcome(read) == Status.Value("STATUS_SUCCESS")


def test_a_pace_below_one_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"callbacks\.dashboard\.figures_every_n_epochs must be at least 1, got 0"):
        Dashboard(0)
