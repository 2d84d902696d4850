"""A run stops where its numbers stop being numbers, before the weights are lost, and says what and when."""

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.nonfinite import first_nonfinite_parameter, nonfinite_entries
from statewise.callbacks.numerics_guard import Diverged, NumericsGuard, VanishedGradient
from statewise.callbacks.runaway import Runaway

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Task(L.LightningModule):
    """A two-layer regression; what goes wrong in it is planted by the tests."""

    def __init__(self, lr: float = 0.01, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lr = lr
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | dict[str, Tensor] | None:
        x, y = batch
        return (self.model(x) - y).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/mse", Task.training_step(self, batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def data(batches: int = 12, dtype: torch.dtype = torch.float64) -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(2 * batches, 3, dtype=dtype), 5 + torch.randn(2 * batches, 1, dtype=dtype))


def fit(
    module: L.LightningModule,
    callbacks: list[L.Callback],
    rows: TensorDataset | None = None,
    val: TensorDataset | None = None,
    **trainer,
) -> L.Trainer:
    runner = L.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "callbacks": callbacks,
            "log_every_n_steps": 4,
            "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 1.0 if val is not None else 0,
            **trainer,
        }
    )
    loader = None if val is None else DataLoader(val, batch_size=2)
    runner.fit(module, DataLoader(rows if rows is not None else data(), batch_size=2), loader)
    return runner


def finite(module: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in module.parameters())


def test_a_healthy_run_is_left_alone() -> None:
    guard = NumericsGuard()
    assert fit(Task(), [guard], val=data(2)).state.finished
    assert guard.state_dict().items() >= {"begun": {0: 1}, "quiet": {0: 0}, "skipped": 0}.items()


def test_a_planted_nan_batch_stops_the_run_at_its_step_and_spares_the_weights(tmp_path: Path) -> None:
    rows = data()
    rows.tensors[0][12, 1] = math.nan  # batches hold two rows: the seventh
    module = Task()
    checkpoint = ModelCheckpoint(tmp_path, filename="step{step}", every_n_train_steps=1, auto_insert_metric_name=False)
    with pytest.raises(Diverged, match=r"the training loss is nan at step 7 \(epoch 0, batch 6\)") as caught:
        fit(module, [NumericsGuard(), checkpoint], rows)
    assert "batch.0 holds 1 values that are not finite" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (caught.value.step, caught.value.tensor) == (7, "loss")
    assert finite(module)
    assert [path.name for path in tmp_path.iterdir()] == ["step6.ckpt"]
    kept = torch.load(checkpoint.best_model_path)["state_dict"]
    assert all(torch.equal(kept[name], value) for name, value in module.state_dict().items())


def test_a_nan_in_an_accumulating_batch_is_found_at_its_step() -> None:
    rows = data()
    rows.tensors[1][8] = math.inf  # batch 5 of 12, the first of step 3 with two batches a step
    module = Task()
    with pytest.raises(Diverged, match="the training loss is inf at step 3") as caught:
        fit(module, [NumericsGuard()], rows, accumulate_grad_batches=2)
    assert caught.value.step == 3
    assert finite(module)


def test_a_learning_rate_of_a_million_stops_the_run_and_the_earlier_checkpoint_stays_best(tmp_path: Path) -> None:
    class Exploding(Task):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 1:
                self.optimizers().param_groups[0]["lr"] = 1e6

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return (self.model[0](batch[0]).sum(1, keepdim=True) ** 3 - batch[1]).square().mean()

    module = Exploding(lr=1e-4)
    best = ModelCheckpoint(tmp_path, monitor="val/mse", filename="best-{epoch}")
    with pytest.raises(Diverged) as caught:
        fit(module, [best, NumericsGuard()], val=data(2), max_epochs=5)
    assert "lower optimizer.lr (1e+06 now)" in str(caught.value)
    assert caught.value.step is not None
    assert 13 < caught.value.step <= 18
    assert finite(module)
    assert Path(best.best_model_path).name == "best-epoch=0.ckpt"
    assert all(bool(v.isfinite().all()) for v in torch.load(best.best_model_path)["state_dict"].values())


class Adam(Task):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def test_a_run_that_ends_out_of_all_proportion_has_diverged_though_every_number_is_finite() -> None:
    says = r"val/mse is \S+e\+\d+ after step 12, and the training began at a loss of \d+\.?\d*: the run has diverged"
    with pytest.raises(Diverged, match=says):
        fit(Adam(lr=1e9), [NumericsGuard()], val=data(2))


def test_a_run_that_stays_out_of_all_proportion_is_stopped_at_its_third_validation() -> None:
    with pytest.raises(Diverged, match="after step 36") as caught:
        fit(Adam(lr=1e9), [NumericsGuard()], val=data(2), max_epochs=9)
    assert caught.value.step == 36


def test_a_run_that_comes_back_is_left_alone() -> None:
    class Planted(Task):
        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.log("val/mse", torch.tensor(1e40 if self.current_epoch in {0, 1, 3} else 1.0, dtype=torch.float64))

    assert fit(Planted(), [NumericsGuard()], val=data(2), max_epochs=5).state.finished


@pytest.mark.parametrize("first", [0.0, 1e-300, 1e30])
def test_far_is_in_proportion_to_the_first_loss_and_in_itself(first: float) -> None:
    runaway = Runaway()
    runaway.begin(first)
    runaway.begin(1e300)
    assert not runaway.has_run_away(1e3, last=True)
    assert not runaway.has_run_away(first, last=True)
    assert runaway.has_run_away(max(1e13, 1e13 * first), last=True)


def test_how_the_training_began_survives_a_restart() -> None:
    guard, again = NumericsGuard(), NumericsGuard()
    fit(Task(), [guard])
    again.load_state_dict(guard.state_dict())
    assert guard.state_dict()["runaway"]["first"] > 0
    assert again.state_dict() == guard.state_dict()


class Plant(L.Callback):
    """Writes a value into a tensor after a number of batches."""

    def __init__(self, after: int, write) -> None:
        self.after, self.write = after, write

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if batch_idx + 1 == self.after:
            with torch.no_grad():
                self.write(pl_module)


def test_an_infinite_weight_is_named_before_the_loss_that_it_spoils() -> None:
    def write(module: Task) -> None:
        module.model[2].weight[0, 1] = math.inf

    with pytest.raises(Diverged, match=r"^2.weight is not finite at step 6 \(epoch 0, batch 5\), before") as caught:
        fit(Task(), [NumericsGuard(), Plant(5, write)])
    assert caught.value.tensor == "2.weight"


def test_an_infinite_weight_that_spoils_no_loss_is_found_at_the_next_logged_step() -> None:
    class Unused(Task):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(3))

    def write(module: Unused) -> None:
        module.unused[1] = -math.inf

    expected = r"^unused is not finite after step 8 \(last seen finite after step 4\)"
    with pytest.raises(Diverged, match=expected):
        fit(Unused(), [NumericsGuard(), Plant(6, write)])


def test_weights_that_are_not_finite_are_never_written_to_a_checkpoint(tmp_path: Path) -> None:
    class Unused(Task):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(3))

    def write(module: Unused) -> None:
        module.unused[1] = math.nan

    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    with pytest.raises(Diverged, match=r"unused is not finite after step 3"):
        fit(Unused(), [Plant(2, write), NumericsGuard(), checkpoint])
    assert list(tmp_path.iterdir()) == []
    assert checkpoint.best_model_path == ""

    class Saving(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            if batch_idx == 2:
                trainer.save_checkpoint(tmp_path / "by_hand.ckpt")

    with pytest.raises(Diverged, match=r"unused is not finite after step 3"):
        fit(Unused(), [Plant(2, write), NumericsGuard(), Saving()])
    assert list(tmp_path.iterdir()) == []


def test_a_run_does_not_begin_with_weights_that_are_not_finite() -> None:
    module = Task()
    with torch.no_grad():
        module.model[0].bias[0] = math.nan
    with pytest.raises(Diverged, match=r"0.bias is not finite at the start"):
        fit(module, [NumericsGuard()])


class NanInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad * math.nan


def test_a_gradient_that_is_not_finite_under_a_finite_loss_is_named() -> None:
    class BadBackward(Task):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            hidden = self.model[1](self.model[0](batch[0]))
            hidden = NanInBackward.apply(hidden) if batch_idx == 2 else hidden
            return (self.model[2](hidden) - batch[1]).square().mean()

    module = BadBackward()
    with pytest.raises(Diverged, match=r"the gradient of 0.weight is not finite at step 3 .* while the loss is"):
        fit(module, [NumericsGuard()])
    assert finite(module)


def test_a_norm_that_overflows_is_no_infinite_gradient() -> None:
    class Steep(Task):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * 1e25

    module = Steep(lr=1e-27, dtype=torch.float32)
    assert fit(module, [NumericsGuard()], data(dtype=torch.float32)).state.finished
    with torch.no_grad():
        module.model[0].weight.fill_(1e30)
    assert first_nonfinite_parameter(module) is None


class Zero(Task):
    """Has a gradient of exactly zero in the batches named."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.at = at

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 0 if batch_idx in self.at else loss


def test_a_zero_gradient_at_the_first_step_stops_the_run() -> None:
    with pytest.raises(VanishedGradient, match=r"total gradient norm 0.0 at step 1: the gradient of 0.weight") as caught:
        fit(Zero({0}), [NumericsGuard()])
    assert caught.value.step == 1
    assert isinstance(caught.value, Diverged)


def test_five_zero_gradients_running_stop_the_run_and_four_do_not() -> None:
    with pytest.raises(VanishedGradient, match=r"total gradient norm 0.0 in 5 steps running up to step 9"):
        fit(Zero({4, 5, 6, 7, 8}), [NumericsGuard()])
    assert fit(Zero({1, 2, 3, 4, 6, 7, 8, 9}), [NumericsGuard()]).state.finished


def test_parameters_without_any_gradient_stop_the_run() -> None:
    class Cut(Task):
        def __init__(self) -> None:
            super().__init__()
            self.elsewhere = torch.ones(1, requires_grad=True)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx).detach() * self.elsewhere.sum()

    with pytest.raises(VanishedGradient, match=r"norm 0.0 at step 1: no parameter receives a gradient, 0.weight the first"):
        fit(Cut(), [NumericsGuard(), GradientNorms()])


def test_a_gradient_that_is_small_but_not_zero_for_all_purposes_trains_on() -> None:
    class Faint(Task):
        factor = 1e-11

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * self.factor

    assert fit(Faint(), [NumericsGuard()]).state.finished
    Faint.factor = 1e-15
    with pytest.raises(VanishedGradient, match="at step 1"):
        fit(Faint(), [NumericsGuard()])


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None.")
def test_a_batch_without_loss_is_no_vanished_gradient() -> None:
    class Skipping(Task):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
            return None if batch_idx < 6 else super().training_step(batch, batch_idx)

    assert fit(Skipping(), [NumericsGuard()]).state.finished


def test_a_validation_metric_that_is_not_finite_stops_the_run_before_a_checkpoint_is_called_best(tmp_path: Path) -> None:
    val = data(2)
    best = ModelCheckpoint(tmp_path, monitor="val/mse")

    class Breaking(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 1:
                val.tensors[1][0] = math.nan

    with pytest.raises(Diverged, match="val/mse is nan after step 24") as caught:
        fit(Task(), [best, NumericsGuard(), Breaking()], val=val, max_epochs=3)
    assert caught.value.tensor == "val/mse"
    assert Path(best.best_model_path).name == "epoch=0-step=12.ckpt"
    assert [path.name for path in tmp_path.iterdir()] == ["epoch=0-step=12.ckpt"]


class LossScaling(MixedPrecision):
    """A GradScaler around full precision."""

    def __init__(self, scale: float = 65536.0) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))

    def forward_context(self) -> AbstractContextManager:
        return nullcontext()


@pytest.mark.parametrize("fused", [False, True], ids=["unscaled_before_the_step", "unscaled_inside_the_step"])
@pytest.mark.parametrize(("bad", "stops"), [(9, False), (10, True)])
def test_ten_skipped_steps_in_a_row_stop_the_run_and_nine_do_not(bad: int, stops: bool, fused: bool) -> None:
    class Adam(Task):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.001, fused=fused)

    rows = data(dtype=torch.float32)
    rows.tensors[0][2 : 2 + 2 * bad] = math.inf
    module = Adam(dtype=torch.float32)
    with pytest.raises(Diverged, match="skipped 10 steps in a row up to step 11") if stops else nullcontext() as caught:
        fit(module, [NumericsGuard()], rows, plugins=[LossScaling()])
    assert finite(module)
    if stops:
        assert caught.value.step == 2


def test_a_zero_gradient_is_seen_through_the_loss_scale() -> None:
    class Faint(Task):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * 1e-15

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.001, fused=True)

    with pytest.raises(VanishedGradient, match="at step 1"):
        fit(Faint(dtype=torch.float32), [NumericsGuard()], data(dtype=torch.float32), plugins=[LossScaling()])


class Manual(Task):
    """Two optimisers; with or without Lightning's own backward."""

    def __init__(self, hooked: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.hooked = hooked

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        for optimizer in self.optimizers():
            loss = super().training_step(batch, batch_idx)
            optimizer.zero_grad()
            self.manual_backward(loss) if self.hooked else loss.backward()
            optimizer.step()
        return loss

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (self.model[0], self.model[2])]


@pytest.mark.parametrize("hooked", [True, False], ids=["manual_backward", "plain_backward"])
def test_manual_optimisation_with_two_optimisers_is_guarded(hooked: bool) -> None:
    assert fit(Manual(hooked), [NumericsGuard()]).state.finished
    rows = data()
    rows.tensors[0][4] = math.nan
    module = Manual(hooked)
    with pytest.raises(Diverged, match=r"nan|not finite") as caught:
        fit(module, [NumericsGuard()], rows)
    assert caught.value.step == 5  # the first of the third batch's two
    assert finite(module)


def test_a_loss_that_is_not_finite_is_seen_where_nothing_steps() -> None:
    class Idle(Manual):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return torch.tensor(math.nan if batch_idx == 3 else 1.0)

    with pytest.raises(Diverged, match=r"the training loss is nan at step 0 \(epoch 0, batch 3\)"):
        fit(Idle(False), [NumericsGuard()])


class LineSearch(Task):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), max_iter=4, line_search_fn="strong_wolfe")


def test_lbfgs_is_guarded_at_the_weights_and_not_at_trial_points() -> None:
    class WildTrials(LineSearch):
        calls = 0

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.calls = 0 if batch_idx != getattr(self, "last", -1) else self.calls + 1
            self.last = batch_idx
            loss = super().training_step(batch, batch_idx)
            return loss * math.inf if self.calls == 1 else loss

    assert fit(LineSearch(), [NumericsGuard()]).state.finished
    rows = data()
    rows.tensors[1][6] = math.nan
    with pytest.raises(Diverged, match="the training loss is nan at step 4"):
        fit(LineSearch(), [NumericsGuard()], rows)
    module = WildTrials()
    assert fit(module, [NumericsGuard()]).state.finished  # the line search steps back from an infinite trial point
    assert finite(module)


class OnDevice(NumericsGuard):
    """Reads as seldom as on an accelerator."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        self._pace = trainer.log_every_n_steps


@pytest.mark.parametrize(("row", "step"), [(0, 1), (4, 3), (12, 7)])
def test_numbers_that_are_read_late_still_give_the_true_first_step(row: int, step: int) -> None:
    rows = data()
    rows.tensors[0][row, 0] = math.nan
    with pytest.raises(Diverged, match=f"the training loss is nan at step {step} ") as caught:
        fit(Task(), [OnDevice()], rows)
    assert caught.value.step == step


def test_late_reading_takes_one_transfer_for_all_steps_since(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    original = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: reads.append(self.numel()) or original(self))
    fit(Task(), [OnDevice()], log_every_n_steps=6)
    numbers = 5  # a loss and four norms
    weights = 4
    assert reads == [weights, numbers, 5 * numbers, weights, 6 * numbers, weights]


def test_late_reading_comes_before_a_checkpoint(tmp_path: Path) -> None:
    rows = data()
    rows.tensors[0][4, 0] = math.nan
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=5)
    with pytest.raises(Diverged, match="at step 3 "):
        fit(Task(), [OnDevice(), checkpoint], rows, log_every_n_steps=10)
    assert list(tmp_path.iterdir()) == []
    assert checkpoint.best_model_path == ""


def test_the_count_of_quiet_steps_survives_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "half.ckpt"
    fit(Zero({9, 10, 11}), [NumericsGuard()]).save_checkpoint(path)
    kept = torch.load(path)["callbacks"]["NumericsGuard"]
    assert kept.pop("runaway")["first"] > 0
    assert kept == {"begun": {0: 1}, "quiet": {0: 3}, "skipped": 0, "weights_checked": 12}
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        callbacks=[NumericsGuard()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=4,
    )
    with pytest.raises(VanishedGradient, match="in 5 steps running up to step 14"):
        trainer.fit(Zero({0, 1}), DataLoader(data(), batch_size=2), ckpt_path=path)


class Pair(NamedTuple):
    inputs: Tensor
    targets: dict[str, Tensor]


def test_bad_values_in_a_batch_are_named_by_their_place() -> None:
    bad = torch.tensor([1.0, math.nan, math.inf])
    assert nonfinite_entries(Pair(torch.ones(2), {"y": bad})) == "batch.targets.y holds 2 values that are not finite"
    assert nonfinite_entries([torch.ones(2), torch.ones(2, dtype=torch.int64), "text"]) is None
