"""What the original asked of the repaired system (the founding list), on its own shapes: batch 16, sequence 128, d_model 64,
d_state 16, two layers, expand 2, Adam at 1e-3, random data, float64."""

from functools import partial

import lightning as L
import numpy as np
import polars as pl
import pytest
import torch

from statewise.callbacks import GradientNorms, NumericsGuard, SpectralProjection, TrainingHealth
from statewise.data.datamodule import WindowsDataModule
from statewise.data.datasets import Source
from statewise.data.tables.table import Table
from statewise.models.dense_ssm import dense_ssm
from statewise.optim import adam
from statewise.stability import spectral_radii
from statewise.task import Forecasting

MATRICES = [f"ssm_{layer}.{name}" for layer in range(2) for name in ("A", "B", "C", "delta")]
NAMES = tuple(f"x{i}" for i in range(64))


class RandomBars(WindowsDataModule):
    def source(self):
        values = np.random.default_rng(0).standard_normal((480, len(NAMES)))
        table = Table.of(pl.DataFrame(dict(zip(NAMES, values.T, strict=True))), time=None, series=None, columns=NAMES)
        return Source(table, features=NAMES, targets=("x0",))


class Steps(L.Callback):
    def __init__(self):
        self.losses = []
        self.radii = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        self.radii.append(spectral_radii([layer.discrete_transition() for layer in pl_module.model.layers]).max())


def task():
    torch.manual_seed(0)
    model = dense_ssm(
        n_features=64,
        n_outputs=1,
        horizon=1,
        target_inputs=(0,),
        targets_are_levels=True,
        d_model=64,
        expand=2,
        d_state=16,
        n_layers=2,
        init="uniform",
        residual=False,
        activation="none",
        glu=False,
        anchor="none",
    ).double()
    return Forecasting(model, optimizer=partial(adam, lr=1e-3), scheduler=None, target_names=("x0",), horizon=1)


def fit(module, *, epochs, data=None, callbacks=(), **options):
    trainer = L.Trainer(
        accelerator="cpu",
        precision="64-true",
        max_epochs=epochs,
        gradient_clip_val=1.0,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(module, datamodule=data or RandomBars(window=128, batch_size=16))
    return trainer


@pytest.fixture(scope="module")
def ten_epochs():
    module = task()
    before = {name: parameter.detach().clone() for name, parameter in module.model.named_parameters()}
    steps, norms, health = Steps(), GradientNorms(), TrainingHealth()
    fit(module, epochs=10, callbacks=[norms, SpectralProjection(), health, NumericsGuard(), steps])
    return module, before, steps, norms, health


def test_every_matrix_moves_in_ten_epochs(ten_epochs):
    module, before, *_ = ten_epochs
    after = dict(module.model.named_parameters())
    for layer in range(2):
        assert (after[f"ssm_{layer}.A"] - before[f"ssm_{layer}.A"]).abs().mean() > 1e-4
    for name, parameter in after.items():
        assert not torch.equal(parameter, before[name]), name


def test_the_parameters_have_the_names_and_shapes_of_the_exchange_format(ten_epochs):
    module, *_ = ten_epochs
    shapes = {name: tuple(parameter.shape) for name, parameter in module.model.named_parameters()}
    assert [shapes[f"ssm_1.{name}"] for name in ("A", "B", "C", "delta")] == [(16, 16), (16, 128), (128, 16), (64,)]
    assert shapes["input_proj.weight"] == (128, 64)


def test_the_run_is_healthy_and_its_norms_are_all_there(ten_epochs):
    *_, norms, health = ten_epochs
    assert health.report()["verdict"] == "healthy"
    _, names, matrix = norms.history
    assert set(MATRICES) <= {name.removeprefix("model.") for name in names}
    assert np.isfinite(matrix).all()
    assert (matrix > 0).all()


def test_every_step_ends_inside_the_unit_circle(ten_epochs):
    _, _, steps, *_ = ten_epochs
    assert max(steps.radii) < 1.0


def test_one_backward_pass_gives_a_gradient_to_every_matrix_of_every_layer():
    module = task()
    data = RandomBars(window=128, batch_size=16)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    module.shared_step(batch).losses.mean().backward()
    for name in MATRICES:
        gradient = module.model.get_parameter(name).grad
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name


def test_ten_steps_on_one_batch_lower_its_loss():
    steps = Steps()
    fit(task(), epochs=11, callbacks=[steps], limit_train_batches=1, data=RandomBars(window=128, batch_size=400))
    assert len(steps.losses) == 11
    assert steps.losses[10] < steps.losses[0]


def test_the_projection_brings_a_radius_above_one_back_at_the_first_step():
    module = task()
    with torch.no_grad():
        module.model.ssm_0.A.mul_(1.5 / spectral_radii([module.model.ssm_0.A])[0])
    projection = SpectralProjection()
    steps = Steps()
    fit(module, epochs=1, callbacks=[projection, steps], limit_train_batches=1, data=RandomBars(window=128, batch_size=16))
    assert steps.radii[0] < 1.0
    assert {layer for _, layer, _ in projection.radii} == {"ssm_0", "ssm_1"}
    assert max(rho for _, _, rho in projection.radii) < 1.0  # those in force, after the projection
