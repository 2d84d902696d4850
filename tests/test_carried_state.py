"""Training on chunks with a carried state is training on the whole stream with the gradient cut, for every model."""

import copy
import inspect
import json
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hydra.utils import get_method
from omegaconf import OmegaConf
from torch import Tensor, nn

from statewise import assembly
from statewise.carried import CarriedState, require_state, supervised
from statewise.data.datamodule import WindowsDataModule
from statewise.data.source import Source
from statewise.data.tables.table import Table
from statewise.data.windows.batches import Batch, ContiguousBatch
from statewise.metrics import masked_mean
from statewise.models.state import leaves
from statewise.optim import adam
from statewise.schemas import CONSTRUCTORS
from statewise.task import Forecasting

MODELS = sorted(path.partition("/")[2] for path in CONSTRUCTORS if path.startswith("model/"))
SMALL = {"d_model": 8, "d_state": 4, "n_layers": 2, "headdim": 4, "chunk_size": 3, "look_back": 7, "linear_skip": 3}
HORIZON = 2


class TwoSeries(WindowsDataModule):
    """90 and 70 rows of three columns; the first series has a gap in time after its row 20, the second a missing value.

    Chunks for training: 3 and 7 of the first series, 7 of the second; in 3 streams these are 5 batches of 3 and one of 2.
    """

    def __init__(self, **windows: Any) -> None:
        super().__init__(
            **{
                "window": 5,
                "horizon": HORIZON,
                "batch_size": 3,
                "supervision": "all",
                "sampling": "contiguous",
                "split": ["2024-01-01T01:10", "2024-01-01T01:25"],
                **windows,
            }
        )

    def source(self) -> Source:
        values = np.cumsum(np.random.default_rng(0).normal(size=(160, 3)), axis=0)
        values[100, 1] = np.nan
        minutes = np.concatenate([np.arange(21), np.arange(31, 100), np.arange(30, 100)])
        stamps = np.datetime64("2024-01-01", "ns") + (minutes * 60 * 10**9).astype("timedelta64[ns]")
        frame = pl.DataFrame(values, schema=["x", "y", "z"]).with_columns(
            pl.Series("ts", stamps), pl.Series("who", ["a"] * 90 + ["b"] * 70)
        )
        return Source(Table.of(frame, "ts", "who", ("x", "y", "z")), features=("x", "y", "z"), targets=("x", "y"))


def model_for(name: str) -> nn.Module:
    """A small float64 model of that option whose every parameter matters."""
    factory = get_method(CONSTRUCTORS[f"model/{name}"])
    accepted = inspect.signature(factory).parameters
    torch.manual_seed(0)
    model = factory(
        n_features=3,
        n_outputs=HORIZON * 2,
        horizon=HORIZON,
        target_inputs=(0, 1),
        targets_are_levels=True,
        **{key: value for key, value in SMALL.items() if key in accepted},
    ).double()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return model


def task_for(model: nn.Module, **arguments: Any) -> Forecasting:
    keys = {"target_names": ("x", "y"), "horizon": HORIZON, "supervision": "all", **arguments}
    return Forecasting(model, optimizer=partial(adam, lr=0.01), scheduler=None, **keys)


def batches_of(module: WindowsDataModule) -> list[ContiguousBatch]:
    module.setup()
    return list(module.train_dataloader())


def runs(batches: list[ContiguousBatch]) -> list[list[tuple[int, int]]]:
    """The stretches that a state is carried through, each as places (batch, row)."""
    found: list[list[tuple[int, int]]] = []
    for row in range(len(batches[0].fresh)):
        for k, batch in enumerate(batches):
            if row < len(batch.fresh):
                if batch.fresh[row]:
                    found.append([])
                found[-1].append((k, row))
    return found


def as_long_passes(model: nn.Module, batches: list[ContiguousBatch]) -> list[Tensor]:
    """The prediction for every batch, from one pass over each run that starts from nothing."""
    predictions = [torch.full_like(batch.targets, torch.nan) for batch in batches]
    for run in runs(batches):
        whole = torch.cat([batches[k].inputs[row] for k, row in run])[None]  # (1 run's rows f)
        y = model(whole)[0].reshape(len(run), -1, HORIZON, 2)
        for (k, row), chunk in zip(run, y, strict=True):
            predictions[k][row] = chunk
    return predictions


def largest(one: Tensor, other: Tensor) -> float:
    return float(((one - other).abs().max() / other.abs().max()).detach())


@pytest.mark.parametrize("name", MODELS)
def test_contiguous_chunks_have_the_loss_of_one_long_pass(name):
    model = model_for(name)
    everything = batches_of(TwoSeries(batch_size=1))
    batches = [everything[k] for k, _ in runs(everything)[1]]
    assert len(batches) == 7
    whole = Batch(*(torch.cat([part[0] for part in parts])[None] for parts in list(zip(*batches, strict=True))[:3]))

    task = task_for(model)
    chunked = torch.stack([task.training_step(batch, k) for k, batch in enumerate(batches)]).mean()

    step = task_for(model).shared_step(whole)
    assert largest(chunked, masked_mean(step.losses, step.observed)) < 1e-12


@pytest.mark.parametrize("supervision", ["all", "last"])
@pytest.mark.parametrize("name", MODELS)
def test_every_stream_keeps_its_state_through_borders_and_a_smaller_batch(name, supervision):
    model = model_for(name)
    everything = batches_of(TwoSeries())
    assert [batch.fresh.int().tolist() for batch in everything] == [
        [1, 1, 1],
        [0, 0, 0],
        [0, 0, 0],
        [1, 0, 0],
        [0, 1, 0],
        [0, 0],
    ]
    expected = as_long_passes(model, everything)

    task, steps = task_for(model, supervision=supervision), slice(-1 if supervision == "last" else None, None)
    for k, batch in enumerate(everything):
        part = batch._replace(targets=batch.targets[:, steps], observed=batch.observed[:, steps])
        loss = task.training_step(part, k)
        error = (expected[k][:, steps] - part.targets).square()
        assert largest(loss, masked_mean(error, part.observed)) < 1e-12, k


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_chunk_is_that_of_the_long_pass_cut_before_it(name):
    model = model_for(name)
    batches = batches_of(TwoSeries(batch_size=1))[:3]
    task = task_for(model)
    for k, batch in enumerate(batches):
        loss = task.training_step(batch, k)
    trained = torch.autograd.grad(loss, list(model.parameters()))

    def gradients(cut: bool) -> tuple[list[Tensor], bool]:
        _, state = model(torch.cat([batch.inputs for batch in batches[:-1]], dim=1))
        learnt = any(leaf.requires_grad for leaf in leaves(state))
        if cut:
            with torch.no_grad():
                _, state = model(torch.cat([batch.inputs for batch in batches[:-1]], dim=1))
        step = task.shared_step(batches[-1], state)
        return list(torch.autograd.grad(masked_mean(step.losses, step.observed), list(model.parameters()))), learnt

    truncated, learnt = gradients(cut=True)
    full, _ = gradients(cut=False)
    assert max(largest(one, other) for one, other in zip(trained, truncated, strict=True)) < 1e-11
    # A state that holds inputs only has nothing to cut.
    assert (max(largest(one, other) for one, other in zip(trained, full, strict=True)) > 1e-4) == learnt


def test_a_batch_with_nothing_observed_moves_the_state_on():
    model = model_for("dense_ssm")
    batches = batches_of(TwoSeries())
    batches[1] = batches[1]._replace(observed=torch.zeros_like(batches[1].observed))
    expected = as_long_passes(model, batches)
    task = task_for(model)

    losses = [task.training_step(batch, k) for k, batch in enumerate(batches)]

    assert losses[1] is None
    assert task.skipped_batches == 1
    for loss, prediction, batch in list(zip(losses, expected, batches, strict=True))[2:]:
        assert largest(loss, masked_mean((prediction - batch.targets).square(), batch.observed)) < 1e-12


def test_the_burn_in_is_for_fresh_rows_only():
    model = model_for("dense_ssm")
    batches = batches_of(TwoSeries())
    k = next(k for k, batch in enumerate(batches) if 0 < int(batch.fresh.sum()) < len(batch.fresh))
    expected = as_long_passes(model, batches)
    task = task_for(model, burn_in=2)
    losses = [task.training_step(batch, k) for k, batch in enumerate(batches)]

    for place in (0, k):
        batch, counted = batches[place], batches[place].observed.clone()
        counted[batch.fresh, :2] = False
        assert largest(losses[place], masked_mean((expected[place] - batch.targets).square(), counted)) < 1e-12
    task.carried.forget()
    early = torch.zeros_like(batches[0].observed)
    early[:, :2] = True
    assert task.training_step(batches[0]._replace(observed=early), 0) is None
    assert task.training_step(batches[1]._replace(observed=early), 1) is not None
    assert torch.equal(supervised(early, 2, Batch(*batches[0][:3])), early[:, 2:])


def test_validation_test_and_copies_leave_the_carried_state_alone():
    task = task_for(model_for("dense_ssm"))
    module = TwoSeries()
    batches = batches_of(module)
    task.training_step(batches[0], 0)
    before = [leaf.clone() for leaf in task.carried.leaves]
    windows = next(iter(module.val_dataloader()))

    with torch.no_grad():
        task.validation_step(windows, 0)
        task.test_step(windows, 0)
        task(windows.inputs)
    copy.deepcopy(task).training_step(batches[1], 1)

    for leaf, was in zip(task.carried.leaves, before, strict=True):
        assert torch.equal(leaf, was)
    assert not any(leaf.requires_grad for leaf in task.carried.leaves)
    task.on_train_epoch_start()
    assert task.carried.leaves == []


def test_the_kept_state_holds_its_own_numbers_only():
    carried, history = CarriedState(), torch.randn(2, 1000, 3)
    carried.keep((history[:, -1], history[:1]))

    assert [leaf.untyped_storage().nbytes() for leaf in carried.leaves] == [2 * 3 * 4, 1000 * 3 * 4]


@pytest.mark.parametrize("name", MODELS)
def test_a_state_that_is_not_known_is_refused_rather_than_taken_for_nothing(name):
    batches = batches_of(TwoSeries())
    task = task_for(model_for(name))
    with pytest.raises(ValueError, match="goes on with streams whose state is not known: begin with the first batch"):
        task.training_step(batches[1], 1)
    last = batches[-1]
    task.training_step(last._replace(fresh=torch.ones_like(last.fresh)), 0)
    with pytest.raises(ValueError, match=f"has 3 streams and the one before had {len(last.fresh)}: .* only become smaller"):
        task.training_step(batches[1], 1)


class Stateless(nn.Module):
    def forward(self, x: Tensor, *, last_only: bool = False) -> tuple[Tensor, None]:
        return x, None


class Halfway(Stateless):
    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch)


@pytest.mark.parametrize("model", [Stateless(), Halfway()], ids=["no initial state", "a forward without it"])
def test_a_model_without_a_state_is_refused_at_setup_in_one_line(model):
    message = f"data.sampling=contiguous hands the model's state .*, and {type(model).__name__} has none.*=shuffled"
    with pytest.raises(ValueError, match=message):
        require_state(model)
    with pytest.raises(ValueError, match=message):
        assembly.build_task(OmegaConf.create({}), TwoSeries(), model)


# 280 training rows in chunks of 16 are 17: 4 streams and 5 batches an epoch, the last one of 1.
EXACT = [
    "data.sampling=contiguous",
    "data.batch_size=4",
    "task.supervision=all",
    "task.burn_in=3",
    "model.dropout=0.2",
    "trainer.max_epochs=3",
]


def checkpoint(outcome):
    return torch.load(outcome.folder / "checkpoints" / "last.ckpt")


def findings(outcome):
    return json.loads((outcome.folder / "health.json").read_text())["findings"]


def assert_equal_weights(one, other):
    one, other = checkpoint(one)["state_dict"], checkpoint(other)["state_dict"]
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_a_run_stopped_inside_an_epoch_of_streams_resumes_to_the_bit_and_stays_healthy(train):
    whole = train(*EXACT)
    assert whole.code == 0, whole.err
    assert "train, contiguous: chunks of 16 rows: 17, streams: 4, batches in an epoch: 5" in whole.out
    assert whole.summary["steps"] == 15
    assert (whole.summary["health"]["verdict"], findings(whole)) == ("healthy", [])
    assert "carried_state" not in checkpoint(whole)

    first = train(*EXACT, "trainer.stop_after_steps=8")
    # The state of the layer, and the linear skip's history, which is empty without one.
    assert [leaf.shape for leaf in checkpoint(first)["carried_state"]] == [(4, 4), (4, 0, 6)]
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    assert_equal_weights(second, whole)
    assert second.summary["test"]["mse"] == whole.summary["test"]["mse"]
    assert findings(second) == []


def test_neither_training_health_nor_a_validation_in_between_moves_the_state(train):
    looked_at = train(*EXACT, "trainer.val_check_interval=2")
    assert looked_at.code == 0, looked_at.err
    assert_equal_weights(looked_at, train(*EXACT, "health=off", "callbacks=none"))


@pytest.mark.parametrize("extra", [[], ["trainer.accumulate_grad_batches=2", "hardware.precision=bf16-mixed"]])
def test_two_series_with_gaps_train_on_streams(train, tmp_path, extra):
    TwoSeries().source().table.frame.write_csv(tmp_path / "rows.csv")
    outcome = train(
        "data=file",
        f"data.path={tmp_path / 'rows.csv'}",
        "data.window=5",
        "data.series=who",
        "data.targets=[x,y]",
        "data.sampling=contiguous",
        "data.batch_size=3",
        "task.supervision=all",
        "model.d_model=4",
        "model.d_state=4",
        "scheduler.warmup_steps=2",
        "trainer.max_epochs=2",
        "logger=csv",
        "report=false",
        *extra,
        tiny=False,
    )
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"]["verdict"] == "healthy"
    assert 0 < outcome.summary["test"]["mse"] < 100
