"""Each cause of a jump where an epoch begins is planted in a tiny real fit and named; what only looks like one is not."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from statewise.borders.curves import read_curves
from statewise.callbacks.border_traces import Weights, forgetful, forgotten
from statewise.callbacks.epoch_borders import EpochBorders, _together

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
]
ROWS, BATCH = 640, 16


class Line(L.LightningModule):
    """A linear map, trained by SGD; with `restart` the rate falls to a hundredth within so many steps, again and again."""

    def __init__(self, width: int = 8, lr: float = 0.05, restart: int | None = None) -> None:
        super().__init__()
        self.net = torch.nn.Linear(width, 1).double()
        self.lr, self.restart = lr, restart

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        if self.restart is None:
            return optimizer
        period = self.restart

        def factor(step: int) -> float:
            return 0.01 + 0.5 * (1 + math.cos(math.pi * (step % period) / period))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Memory(L.LightningModule):
    """Follows a level that only a state knows, carried from batch to batch; it is forgotten, or zeroed, between epochs."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(1, 8).double()
        self.out = torch.nn.Linear(8, 1).double()
        self.how = how
        self.hidden: torch.Tensor | None = None

    def on_train_epoch_start(self) -> None:
        if self.hidden is not None:
            self.hidden = None if self.how == "gone" else torch.zeros_like(self.hidden)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch[0][0], batch[1][0]  # (t b 1)
        hidden = self.hidden if self.hidden is not None else x.new_zeros(x.shape[1], 8)
        errors = []
        for now, level in zip(x, y, strict=True):
            hidden = self.cell(now, hidden)
            errors.append((self.out(hidden) - level).square().mean())
        self.hidden = hidden.detach()
        return torch.stack(errors).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Rescales(L.Callback):
    """Somebody who writes into the weights when an epoch has ended."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.mul_(0.6)


class Forgets(L.Callback):
    """Somebody who makes the optimizer begin anew in every epoch."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.optimizers[0].state.clear()


def rows(seed: int, *, count: int = ROWS, width: int = 8, easier: bool = False) -> TensorDataset:
    """A noisy linear law; `easier` lets the noise fall from the first row to the last."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=chance, dtype=torch.float64)
    law = torch.randn(width, 1, generator=chance, dtype=torch.float64)
    noise = torch.linspace(1.0, 0.25, count, dtype=torch.float64)[:, None] if easier else 0.5
    return TensorDataset(x, x @ law + noise * torch.randn(count, 1, generator=chance, dtype=torch.float64))


def streams(seed: int, chunks: int = 24, t: int = 4, b: int = 16) -> TensorDataset:
    chance = torch.Generator().manual_seed(seed)
    pushes = torch.randn(chunks * t, b, 1, generator=chance, dtype=torch.float64)
    level, levels = 3.0 * torch.randn(b, 1, generator=chance, dtype=torch.float64), []
    for push in pushes:
        level = 0.98 * level + 0.2 * push
        levels.append(level)
    return TensorDataset(pushes.reshape(chunks, t, b, 1), torch.stack(levels).reshape(chunks, t, b, 1))


def fit(
    module: L.LightningModule,
    data: TensorDataset,
    *others: L.Callback,
    seed: int = 0,
    shuffle: bool = True,
    batch_size: int = BATCH,
    resume: Path | None = None,
    **settings: Any,
) -> EpochBorders:
    borders = EpochBorders()
    torch.manual_seed(seed)
    trainer = L.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 6,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [borders, *others],
            **settings,
        }
    )
    trainer.fit(module, DataLoader(data, batch_size=batch_size, shuffle=shuffle), ckpt_path=resume)
    return borders


def causes(borders: EpochBorders) -> list[str]:
    report = borders.report()
    assert report is not None
    return list(report["causes"])


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="statewise")
    return lambda: [r.getMessage() for r in caplog.records if r.getMessage().startswith("epoch_borders")]


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_come_in_the_same_order_are_named_as_the_cause(seed: int, lines: Any) -> None:
    borders = fit(Line(), rows(seed, easier=True), seed=seed, shuffle=False)
    assert causes(borders) == ["order_of_data"]
    assert "the loss follows the place in the epoch" in "".join(lines())


@pytest.mark.parametrize("seed", range(2))
def test_weights_that_somebody_rewrote_are_named_with_how_far_they_are_off(seed: int, lines: Any) -> None:
    borders = fit(Line(), rows(seed), Rescales(), seed=seed)
    assert causes(borders) == ["changed_weights"]
    said = [line for line in lines() if "the weights are not those" in line]
    assert len(said) == 1, "a cause is said once, and then counted"
    assert "net.weight by 40 %" in said[0]
    assert borders.report()["causes"]["changed_weights"]["borders"] >= 3  # type: ignore[index]


def test_a_learning_rate_that_restarts_is_named_with_both_rates(lines: Any) -> None:
    data = rows(0, count=1280, width=64)
    borders = fit(Line(64, lr=0.14, restart=80), data, max_epochs=8)
    assert causes(borders) == ["learning_rate_restart"]
    assert "from 0.00145 to 0.141: a restart" in "".join(lines())


@pytest.mark.parametrize(("how", "words"), [("gone", "is forgotten there"), ("zero", "begins with zeros there")])
def test_a_carried_state_that_begins_anew_is_named(how: str, words: str, lines: Any) -> None:
    borders = fit(Memory(how), streams(0), shuffle=False, batch_size=1, max_epochs=8)
    assert causes(borders) == ["state_reset"]
    assert f"the state `hidden`, carried from batch to batch, {words}" in "".join(lines())


def test_a_jump_without_a_visible_cause_is_said_to_have_none(lines: Any) -> None:
    class Harder(Line):
        """The loss is another one from the fourth epoch on, for no reason that shows."""

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * (9.0 if self.current_epoch >= 3 else 1.0)

    borders = fit(Harder(), rows(0))
    assert causes(borders) == ["no_cause_found"]
    (line,) = lines()
    assert "where epoch 4 begins" in line
    assert "no cause was found" in line


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_noisy_epochs_are_silent(seed: int, lines: Any) -> None:
    borders = fit(Line(), rows(seed), seed=seed, max_epochs=8)
    assert borders.report() is not None
    assert (borders.report() or {})["judged"] == 7
    assert (borders.report() or {})["jumps"] == 0
    assert lines() == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(rows(1, count=ROWS + 1), id="a last batch of one row"),
        pytest.param(rows(2), id="rows of one kind that are not shuffled"),
    ],
)
def test_what_only_looks_like_a_jump_is_silent(data: TensorDataset) -> None:
    assert causes(fit(Line(), data, shuffle=len(data) > ROWS, max_epochs=8)) == []


def test_a_steep_beginning_is_silent() -> None:
    assert causes(fit(Line(lr=0.01), rows(3), max_epochs=5)) == []


def test_weights_that_change_after_every_batch_are_not_blamed_on_the_border() -> None:
    class Trembles(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                for parameter in pl_module.parameters():
                    parameter.mul_(0.99)

    borders = fit(Line(), rows(0, easier=True), Trembles(), shuffle=False)
    assert causes(borders) == ["order_of_data"]


def test_epochs_of_three_batches_are_not_judged() -> None:
    report = fit(Line(), rows(0, count=48), max_epochs=30).report()
    assert report is not None
    assert (report["borders"], report["judged"]) == (29, 0)
    assert report["sentence"].startswith("No border of epochs could be judged")


def test_a_run_of_one_epoch_has_nothing_to_report() -> None:
    assert fit(Line(), rows(0), max_epochs=1).report() is None


def test_what_is_known_survives_a_restart_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    class Saves(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 2:
                trainer.save_checkpoint(tmp_path / "stopped.ckpt")

    data = rows(0, easier=True)
    whole = fit(Line(), data, Saves(), shuffle=False)
    resumed = fit(Line(), data, shuffle=False, resume=tmp_path / "stopped.ckpt")
    assert resumed.report() == whole.report()
    assert causes(whole) == ["order_of_data"]


@pytest.mark.parametrize("sampling", ["shuffled", "contiguous"])
def test_a_run_that_was_stopped_inside_an_epoch_ends_with_the_same_account(sampling: str, train: Any) -> None:
    """27 or 28 batches an epoch; the second part of the run begins inside the third one."""
    command = ["data.batch_size=16", "data.window=8", "data.steps=700", "trainer.max_epochs=4", f"data.sampling={sampling}"]
    command += ["task.supervision=all"]
    whole = train(*command)
    batches = whole.summary["steps"] // 4
    assert batches >= 4
    first = train(*command, f"trainer.stop_after_steps={2 * batches + batches // 2}")
    second = train(*command, f"resume={first.folder}")
    assert second.summary["epoch_borders"] == whole.summary["epoch_borders"]
    assert second.summary["epoch_borders"]["borders"] == 3
    pairs = list(zip(read_curves(second.folder), read_curves(whole.folder), strict=True))
    assert all(np.array_equal(a.loss, b.loss) and np.array_equal(a.place, b.place) for a, b in pairs)


@pytest.mark.parametrize("model", ["dense_ssm", "diagonal_ssm", "mamba2", "gru", "nlinear"])
def test_every_model_of_ours_is_silent_on_shuffled_windows(model: str, train: Any) -> None:
    sizes = {
        "dense_ssm": [],
        "diagonal_ssm": [],
        "mamba2": ["model.headdim=4", "~model.n_layers"],
        "gru": ["~model.d_state"],
        "nlinear": ["~model.d_model", "~model.d_state", "~model.n_layers"],
    }[model]
    chosen = [f"model={model}", "data=lti", "data.steps=500", "data.window=8", "data.batch_size=16", "trainer.max_epochs=6"]
    small = [f"model.{key}" for key in ("d_model=4", "d_state=4", "n_layers=1") if f"~model.{key[:-2]}" not in sizes]
    extra = [option for option in sizes if not option.startswith("~")]
    rest = ["trainer.log_every_n_steps=1", "logger=csv", "report=false"]
    outcome = train(*chosen, *small, *extra, *rest, tiny=False)
    assert outcome.code == 0, outcome.out
    found = outcome.summary["epoch_borders"]
    assert found["judged"] > 0
    assert found["causes"] == {}


def test_testing_an_earlier_checkpoint_does_not_take_back_what_is_known(tmp_path: Path) -> None:
    class Saves(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 2:
                trainer.save_checkpoint(tmp_path / "best.ckpt")

    class Tested(Line):
        def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
            self.training_step(batch, batch_idx)

    borders = fit(module := Tested(), rows(0), Saves())
    known = borders.report()
    trainer = L.Trainer(accelerator="cpu", logger=False, callbacks=[borders], enable_progress_bar=False)
    trainer.test(module, DataLoader(rows(1), batch_size=BATCH), ckpt_path=tmp_path / "best.ckpt", verbose=False)
    assert borders.report() == known


def test_its_memory_is_plain_values_and_tensors(tmp_path: Path) -> None:
    borders = fit(Line(), rows(0))
    torch.save(borders.state_dict(), tmp_path / "state.pt")
    again = EpochBorders()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.report() == borders.report()


def test_a_step_without_a_loss_leaves_its_place_empty() -> None:
    number = torch.tensor(2.0)
    np.testing.assert_array_equal(_together([number, None, number]).numpy(), [2.0, np.nan, 2.0])
    np.testing.assert_array_equal(_together([number, number[None]]).numpy(), [2.0, 2.0])
    assert bool(_together([torch.zeros(3), torch.zeros(3)]).isnan().all())


@pytest.mark.filterwarnings("ignore:.*`training_step` returned `None`")
def test_skipped_batches_do_not_shift_the_others() -> None:
    class Skips(Line):
        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor | None:  # type: ignore[override]
            return None if batch_idx == 5 else super().training_step(batch, batch_idx)

    borders = fit(Skips(), rows(0), max_epochs=2)
    (_, before, after) = borders.around[0]
    assert np.isfinite(before).all()
    assert np.flatnonzero(np.isnan(after)).tolist() == [5]


@pytest.mark.parametrize(
    ("ended", "begins", "found"),
    [
        ({"h": [2.0]}, {"h": [2.0]}, ("", "")),
        ({"h": [2.0]}, {}, ("h", "gone")),
        ({"h": [2.0, 1.0]}, {"h": [0.0, 0.0]}, ("h", "zero")),
        ({}, {"h": [0.0]}, ("", "")),
    ],
)
def test_a_state_is_forgotten_where_it_is_gone_or_zero(ended: Any, begins: Any, found: Sequence[str]) -> None:
    assert forgotten(ended, begins) == found


def test_an_optimizer_that_knows_less_has_begun_anew() -> None:
    assert forgetful({"Adam": [4.0, 20.0]}, {"Adam": [0.0, 0.0]}) == "Adam"
    assert forgetful({"Adam": [4.0, 20.0]}, {"Adam": [4.0, 20.0]}) == ""


def test_weights_are_compared_element_by_element_of_a_sample() -> None:
    module = torch.nn.Linear(64, 64)
    before = Weights.of(module)
    assert before.changes(Weights.of(module)) == []
    with torch.no_grad():
        module.weight.copy_(module.weight.flip(0).flip(1))  # the same norm, the same sum
    ((name, size),) = before.changes(Weights.of(module))
    assert name == "weight"
    assert size > 0.5
