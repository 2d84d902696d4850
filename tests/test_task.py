"""One shared step: the same loss in training and validation, errors of the last step, in the model's dtype, nothing lost."""

import copy
import csv
import logging
from functools import partial
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from statewise.metrics import LOSSES, masked_mean
from statewise.models.dense_ssm import dense_ssm
from statewise.optim import adam, adamw
from statewise.schedules import constant, warmup_cosine
from statewise.task import Forecasting

# Of Lightning 2.6 itself: its use of torch's trees, and its advice on workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class Batch(NamedTuple):
    inputs: Tensor
    targets: Tensor
    observed: Tensor


class Running(nn.Module):
    """A causal model with the forecaster's contract: a linear map of the running mean of the inputs."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.output_proj = nn.Linear(features, outputs)

    def forward(self, x: Tensor, state: Any = None, *, last_only: bool = False) -> tuple[Tensor, Any]:
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return self.output_proj(mean[:, -1:] if last_only else mean), None


class Windows(L.LightningDataModule):
    """n random windows; the same for training, validation and test, in order."""

    def __init__(self, n=10, t=6, features=3, horizon=2, m=2, *, supervision="last", batch_size=4, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        steps = t if supervision == "all" else 1
        self.data = Batch(
            torch.randn(n, t, features, generator=generator, dtype=dtype),
            torch.randn(n, steps, horizon, m, generator=generator, dtype=dtype),
            torch.rand(n, steps, horizon, m, generator=generator) < 0.8,
        )
        self.batch_size = batch_size
        self.horizon, self.m, self.features = horizon, m, features

    def batches(self) -> list[Batch]:
        return [Batch(*parts) for parts in zip(*(part.split(self.batch_size) for part in self.data), strict=True)]

    def train_dataloader(self):
        return DataLoader(self.batches(), batch_size=None)

    val_dataloader = test_dataloader = train_dataloader


class Scaled(Windows):
    def target_scale(self, split: str) -> np.ndarray:
        assert split == "test"
        return np.random.default_rng(0).uniform(1, 10, size=(len(self.data.inputs), self.m))


def task_for(data: Windows, model: nn.Module | None = None, *, lr: float = 1e-2, **arguments: Any) -> Forecasting:
    torch.manual_seed(0)
    defaults: dict[str, Any] = {"optimizer": partial(adam, lr=lr), "scheduler": None}
    return Forecasting(
        model or Running(data.features, data.horizon * data.m),
        target_names=[f"y{k}" for k in range(data.m)],
        horizon=data.horizon,
        **{**defaults, **arguments},
    )


def trainer(**arguments: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        **{
            "max_epochs": 1,
            "precision": "64-true",
            "logger": False,
            "log_every_n_steps": 1,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            **arguments,
        },
    )


def column(folder, name: str) -> dict[int, float]:
    """Step -> value of one metric in the run's metrics.csv."""
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row.get(name)}


def csv_logger(folder) -> CSVLogger:
    return CSVLogger(folder, name=None, version="")


def last_step_errors(task: Forecasting, data: Windows) -> tuple[float, float]:
    with torch.no_grad():
        prediction = task.double()(data.data.inputs.double())
    error = prediction - data.data.targets[:, -1]
    seen = data.data.observed[:, -1]
    return float(masked_mean(error.square(), seen)), float(masked_mean(error.abs(), seen))


# What is measured


@pytest.mark.parametrize("supervision", ["last", "all"])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_training_and_validation_loss_are_the_same_quantity_and_errors_are_of_the_last_step(loss, supervision):
    data = Windows(supervision=supervision)
    task = task_for(data, loss=loss, supervision=supervision, burn_in=2, lr=0.0)
    run = trainer()
    run.fit(task, data)
    logged = {key: float(value) for key, value in run.callback_metrics.items()}
    with torch.no_grad():
        y, _ = task.model(data.data.inputs, last_only=supervision == "last")
    start = 2 if supervision == "all" else 0
    error = (y.view(data.data.targets.shape) - data.data.targets)[:, start:]
    expected = float(masked_mean(LOSSES[loss](error), data.data.observed[:, start:]))
    assert logged["train/loss_epoch"] == pytest.approx(expected, rel=1e-12)
    assert logged["val/loss"] == pytest.approx(expected, rel=1e-12)
    mse, mae = last_step_errors(task, data)
    assert (logged["val/mse"], logged["val/mae"]) == pytest.approx((mse, mae), rel=1e-12)
    tested = run.test(task, data, verbose=False)[0]
    assert (tested["test/mse"], tested["test/mae"]) == pytest.approx((mse, mae), rel=1e-12)


def test_burn_in_steps_carry_no_loss():
    data = Windows(supervision="all")
    task = task_for(data, supervision="all", burn_in=2).double()
    batch = data.batches()[0]
    spoilt = batch._replace(targets=batch.targets.index_fill(1, torch.arange(2), 1e9))
    assert torch.equal(task.training_step(batch, 0), task.training_step(spoilt, 0))
    noticed = batch._replace(targets=batch.targets.index_fill(1, torch.tensor([2]), 1e9))
    assert not torch.equal(task.training_step(batch, 0), task.training_step(noticed, 0))


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_no_evaluation_figure_depends_on_the_batch_size(precision):
    figures = []
    for batch_size in (1, 4, 10):
        data = Windows(supervision="all", batch_size=batch_size, dtype=torch.float64 if precision[0] == "6" else torch.float32)
        task = task_for(data, supervision="all", burn_in=1)
        run = trainer(precision=precision)
        values = {**run.validate(task, data, verbose=False)[0], **run.test(task, data, verbose=False)[0]}
        figures.append([values[key] for key in ("val/loss", "val/mse", "val/mae", "test/mse", "test/mae")])
        assert task.test_predictions.dtype == torch.float64
    tolerance = 1e-12 if precision == "64-true" else 1e-6
    np.testing.assert_allclose(figures[1:], figures[:1] * 2, rtol=tolerance)


@pytest.mark.parametrize(("n", "batch_size"), [(33, 16), (5, 1)], ids=["last batch of one", "batches of one"])
def test_a_batch_of_one_trains_and_the_loss_is_the_mean_over_samples(n, batch_size):
    data = Windows(n, batch_size=batch_size)
    task = task_for(data, lr=0.0)
    run = trainer()
    run.fit(task, data)
    assert float(run.callback_metrics["train/loss_epoch"]) == pytest.approx(last_step_errors(task, data)[0], rel=1e-12)


def test_test_predictions_come_in_the_loaders_order_and_errors_also_in_original_units():
    data = Scaled()
    task = task_for(data)
    logged = trainer().test(task, data, verbose=False)[0]
    with torch.no_grad():
        torch.testing.assert_close(task.test_predictions, task(data.data.inputs), rtol=1e-13, atol=1e-15)
    error = (task.test_predictions - data.data.targets[:, -1]) * torch.as_tensor(data.target_scale("test"))[:, None]
    seen = data.data.observed[:, -1]
    assert logged["test/mse_original_units"] == pytest.approx(float(masked_mean(error**2, seen)), rel=1e-12)
    assert logged["test/mae_original_units"] == pytest.approx(float(masked_mean(error.abs(), seen)), rel=1e-12)
    second = float(error[..., 1].abs()[seen[..., 1]].mean())
    assert logged["test/mae_original_units/y1"] == pytest.approx(second, rel=1e-12)
    assert float(task.test_errors["mae_original_units_per_target"][1]) == pytest.approx(second, rel=1e-12)
    assert logged["test/mse"] == pytest.approx(np.mean([logged["test/mse/y0"], logged["test/mse/y1"]]), rel=1e-12)


# What does not fit


class Fixed(nn.Module):
    """Gives one shape, whatever is asked."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor, state: Any = None, *, last_only: bool = False) -> tuple[Tensor, Any]:
        return self.value, None


@pytest.mark.parametrize(
    ("output", "targets", "message"),
    [
        ((4, 1, 1), (4,), r"prediction has shape \[4, 1, 1, 1\].*targets \[4\]: data.supervision and task.supervision=last"),
        ((4, 1, 1), (4, 6, 1), r"\[4, 1, 1, 1\].*\[4, 6, 1\]: data.supervision and task.supervision=last"),
        ((4, 1, 1), (4, 6, 1, 1), r"\[4, 1, 1, 1\].*\[4, 6, 1, 1\]: data.supervision and task.supervision=last"),
        ((4, 6, 1), (4, 1, 1, 1), r"\[4, 6, 1, 1\].*\[4, 1, 1, 1\]: data.supervision and task.supervision=last"),
        ((4, 1, 1), (4, 1, 3, 1), r"\[4, 1, 1, 1\].*\[4, 1, 3, 1\]: data.horizon and the task's horizon=1"),
        ((4, 1, 1), (4, 1, 1, 2), r"\[4, 1, 1, 1\].*\[4, 1, 1, 2\]: data.targets and the task's targets \(y0\)"),
        ((1, 1, 1), (4, 1, 1, 1), r"\[1, 1, 1, 1\].*\[4, 1, 1, 1\]: the data module's inputs and targets"),
        ((4, 1), (4, 1, 1, 1), r"output has shape \[4, 1\], data.horizon=1 and 1 data.targets need \[batch, time, 1\]"),
        ((4, 1, 3), (4, 1, 1, 1), r"output has shape \[4, 1, 3\], data.horizon=1 and 1 data.targets need"),
    ],
    ids=str,
)
def test_targets_that_do_not_fit_stop_the_first_batch_with_both_shapes_and_keys(output, targets, message):
    data = Windows(4, horizon=1, m=1)
    data.data = data.data._replace(targets=torch.zeros(targets), observed=torch.ones(targets, dtype=torch.bool))
    task = task_for(data, Fixed(*output))
    run = trainer()
    with pytest.raises(ValueError, match=message) as error:
        run.fit(task, data)
    assert "\n" not in str(error.value)
    assert run.global_step == 0


def test_a_burn_in_that_leaves_no_step_is_refused():
    data = Windows(supervision="all")
    with pytest.raises(ValueError, match=r"task.burn_in must be below data.window=6, got 6"):
        trainer(limit_val_batches=0).fit(task_for(data, supervision="all", burn_in=6), data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"supervision": "lst"}, r"task.supervision must be one of last, all, got 'lst'; did you mean last\?"),
        ({"burn_in": -1}, "task.burn_in must be at least 0, got -1"),
        ({"loss": "rmse"}, r"task.loss must be one of mse, mae, huber, got 'rmse'; did you mean mse\?"),
        ({"horizon": 0}, "data.horizon must be at least 1, got 0"),
        ({"target_names": []}, "data.targets must name at least one column"),
    ],
)
def test_arguments_out_of_range_are_refused_with_their_key(arguments, message):
    settings = {"optimizer": adam, "scheduler": None, "target_names": ["y"], "horizon": 1}
    with pytest.raises(ValueError, match=message):
        Forecasting(nn.Linear(1, 1), **{**settings, **arguments})


# What was not observed


def test_a_batch_with_nothing_observed_is_skipped_counted_and_moves_nothing(caplog):
    data = Windows(8, batch_size=4)
    data.data.observed[4:] = False
    data.data.targets[4:] = float("nan")
    task = task_for(data, optimizer=partial(adamw, lr=1e-2, weight_decay=0.5))
    after: list[Tensor] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            after.append(pl_module.model.output_proj.weight.detach().clone())

    before = task.model.output_proj.weight.detach().double()
    with caplog.at_level(logging.WARNING, logger="statewise.task"):
        run = trainer(callbacks=Watch())
        run.fit(task, data)
    assert task.skipped_batches == 1
    assert not torch.equal(before, after[0])
    assert torch.equal(after[0], after[1])
    assert "1 training batches held no observed target and were skipped" in caplog.text
    assert torch.isfinite(run.callback_metrics["train/loss_epoch"])
    assert torch.isfinite(run.callback_metrics["val/loss"])


def test_under_all_only_targets_after_the_burn_in_make_a_batch_worth_training():
    data = Windows(4, supervision="all")
    data.data.observed[:, 3:] = False
    task = task_for(data, supervision="all", burn_in=3)
    trainer(limit_val_batches=0).fit(task, data)
    assert task.skipped_batches == 1


# Dtype, and what reaches the log


def test_a_whole_fit_in_float64_agrees_with_a_plain_loop_and_creates_nothing_in_float32(tmp_path):
    assert torch.get_default_dtype() == torch.float32
    data = Windows(supervision="all")
    task = task_for(data, supervision="all", burn_in=1, optimizer=partial(adam, lr=1e-2))
    seen: list[torch.dtype] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(outputs["loss"].dtype)

    run = trainer(max_epochs=3, logger=csv_logger(tmp_path), callbacks=Watch())
    run.fit(task, data)
    run.test(task, data, verbose=False)
    assert set(seen) == {torch.float64}
    assert {parameter.dtype for parameter in task.parameters()} == {torch.float64}
    assert task.test_predictions.dtype == torch.float64
    assert {value.dtype for value in run.callback_metrics.values()} == {torch.float64}

    torch.manual_seed(0)
    reference = Running(3, 4).double()
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        for batch in data.batches():
            error = (reference(batch.inputs)[0].view(batch.targets.shape) - batch.targets)[:, 1:]
            loss = masked_mean(error.square(), batch.observed[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    for ours, theirs in zip(task.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    logged = column(tmp_path, "train/loss")
    assert list(logged) == list(range(9))
    assert list(logged.values()) == pytest.approx(losses, rel=1e-13)


def test_the_dense_model_trains_in_float64_throughout():
    data = Windows()
    model = dense_ssm(n_features=3, n_outputs=4, target_inputs=(0, 1), targets_are_levels=True, horizon=2, d_model=4, d_state=4)
    task = task_for(data, model, lr=1e-2, scheduler=partial(warmup_cosine, warmup_steps=2))
    before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    dtypes: set[torch.dtype] = set()
    model.register_forward_hook(lambda module, args, result: dtypes.update((args[0].dtype, result[0].dtype)))
    run = trainer(max_epochs=2)
    run.fit(task, data)
    run.test(task, data, verbose=False)
    assert dtypes == {torch.float64}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]


def test_mixed_precision_keeps_the_loss_in_float32():
    data = Windows(dtype=torch.float32)
    task = task_for(data, optimizer=partial(adam, fused=False))
    run = trainer(precision="bf16-mixed", gradient_clip_val=1.0)
    run.fit(task, data)
    assert run.callback_metrics["train/loss"].dtype == torch.float32
    assert run.callback_metrics["val/mse"].dtype == torch.float64
    assert float(run.callback_metrics["val/mse"]) == pytest.approx(last_step_errors(task, data)[0], rel=0.02)


def test_one_part_in_a_billion_of_the_loss_survives_the_way_into_the_log(tmp_path):
    data = Windows(8, horizon=1, m=1)
    data.data = data.data._replace(
        targets=torch.full((8, 1, 1, 1), 1 + 1e-9, dtype=torch.float64), observed=torch.ones(8, 1, 1, 1, dtype=torch.bool)
    )
    model = Running(3, 1)
    nn.init.zeros_(model.output_proj.weight)
    nn.init.zeros_(model.output_proj.bias)
    task = task_for(data, model, loss="mae", lr=0.0, scheduler=partial(constant, warmup_steps=0))
    run = trainer(logger=csv_logger(tmp_path), max_epochs=2)
    run.fit(task, data)
    for name in ("train/loss", "train/loss_epoch", "val/loss", "val/mae"):
        values = column(tmp_path, name)
        assert len(values) >= 2
        assert set(values.values()) == {1 + 1e-9}, name
    assert float(run.callback_metrics["train/loss"]) == 1 + 1e-9


def test_the_loss_and_the_rate_of_a_step_are_logged_on_the_interval(tmp_path):
    data = Windows(28, batch_size=4)
    logged: dict[int, float] = {}

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            logged[trainer.global_step - 1] = outputs["loss"].item()

    task = task_for(data, optimizer=partial(adam, lr=0.1), scheduler=partial(warmup_cosine, warmup_steps=7))
    trainer(logger=csv_logger(tmp_path), log_every_n_steps=3, max_epochs=2, callbacks=Watch()).fit(task, data)
    losses, rates = column(tmp_path, "train/loss"), column(tmp_path, "lr")
    assert list(losses) == list(rates) == [2, 5, 8, 11]
    assert losses == {step: logged[step] for step in losses}
    expected = [0.1 * 3 / 7, 0.1 * 6 / 7, *(0.05 * (1 + np.cos(np.pi * k / 7)) for k in (1, 4))]
    assert list(rates.values()) == pytest.approx(expected, rel=1e-14)


def test_callbacks_can_read_the_mean_training_loss_when_an_epoch_ends():
    read: list[float] = []

    class Reader(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            read.append(float(trainer.callback_metrics["train/loss_epoch"]))

    data = Windows()
    task = task_for(data, lr=0.1)
    trainer(max_epochs=2, callbacks=Reader()).fit(task, data)
    assert read[1] < read[0]


def test_an_epoch_cut_short_still_logs_its_mean_loss():
    run, data = trainer(max_steps=2, max_epochs=-1), Windows(12)
    run.fit(task_for(data), data)
    assert torch.isfinite(run.callback_metrics["train/loss_epoch"])


def test_a_training_step_never_asks_a_device_for_a_number():
    """On a GPU each such question halts the queue: none in a step, whether it is logged or not."""

    class Questions(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Questions.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    class Watched(Forecasting):
        steps = 0

        def training_step(self, batch, batch_idx):
            Watched.steps += 1
            with Questions():
                return super().training_step(batch, batch_idx)

    data = Windows()
    task = Watched(Running(3, 4), optimizer=adam, scheduler=None, target_names=["a", "b"], horizon=2)
    trainer(log_every_n_steps=2, limit_val_batches=0).fit(task, data)
    assert Watched.steps == 3
    with Questions():
        torch.ones(()).item()
    assert Questions.count == 1  # the one just asked, so the counter works


# Around the step


def test_the_schedule_is_planned_in_optimiser_steps_over_the_whole_run():
    planned: list[float] = []

    def schedule(optimizer, total_steps):
        planned.append(total_steps)
        return constant(optimizer, total_steps)

    data = Windows()  # 3 batches an epoch
    trainer(max_epochs=4, accumulate_grad_batches=2).fit(task_for(data, scheduler=schedule), data)
    assert planned == [8]


def test_the_groups_are_logged_and_cover_the_model(caplog):
    data = Windows()
    with caplog.at_level(logging.INFO, logger="statewise.task"):
        trainer().fit(task_for(data, optimizer=adamw), data)
    assert "decay: 1 parameters (12 values), lr 0.003, weight decay 0.1" in caplog.text
    assert "  bias: model.output_proj.bias" in caplog.text


def test_marks_of_other_libraries_outlive_a_copy_of_the_task():
    data = Windows()
    model = Running(3, 4)
    model.output_proj.weight._no_weight_decay = True
    task = task_for(data, model, optimizer=adamw)
    optimizer = copy.deepcopy(task).configure_optimizers()
    assert [group["name"] for group in optimizer.param_groups] == ["no_decay"]


def test_a_checkpoint_holds_the_model_only_and_loads_the_safe_way(tmp_path):
    data = Windows()
    task = task_for(data, scheduler=warmup_cosine)
    run = trainer()
    run.fit(task, data)
    run.save_checkpoint(tmp_path / "x.ckpt")
    stored = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert list(stored["state_dict"]) == ["model.output_proj.weight", "model.output_proj.bias"]


def test_a_step_can_be_called_by_hand_before_and_after_a_fit():
    data = Windows()
    task = task_for(data).double()
    assert task.training_step(data.batches()[0], 0).requires_grad
    trainer().fit(task, data)
    assert task.training_step(data.batches()[0], 0).requires_grad


def test_training_lowers_the_loss():
    data = Windows(32)
    with torch.no_grad():
        truth = Running(3, 4).double()
        data.data = data.data._replace(targets=truth(data.data.inputs, last_only=True)[0].view(32, 1, 2, 2))
    values: list[float] = []

    class Reader(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            values.append(float(trainer.callback_metrics["val/mse"]))

    torch.manual_seed(3)
    task = task_for(data, lr=0.3)
    trainer(max_epochs=6, callbacks=Reader()).fit(task, data)
    assert values[-1] < 0.5 * values[0]
