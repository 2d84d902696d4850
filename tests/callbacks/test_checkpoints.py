"""The best checkpoint is the best one, the last one is the newest, and neither is written inside the last batch of an epoch."""

import errno
import math
import os

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.checkpoints import BestAndLast
from statewise.checkpoints import AtomicCheckpointIO


class Scripted(L.LightningModule):
    """Logs the validation errors it is told to."""

    def __init__(self, values):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.values = iter(values)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/mse", torch.tensor(next(self.values), dtype=torch.float64))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Written(BestAndLast):
    """Notes when each file was written."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.written = []

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        self.written.append(trainer.global_step)


def fit(folder, values, *, every_n_steps=None, **options):
    checkpoints = Written(folder, {"schema_version": 1}, monitor="val/mse", every_n_steps=every_n_steps)
    data = DataLoader(TensorDataset(torch.randn(12, 1)), batch_size=2)  # 6 batches an epoch
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=len(values),
        callbacks=[checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(Scripted(values), data, DataLoader(TensorDataset(torch.zeros(1, 1))))
    return checkpoints


def test_the_lowest_value_is_the_best(tmp_path):
    checkpoints = fit(tmp_path, [3.0, 1.0, 2.0])
    assert (checkpoints.best_value, checkpoints.best_step) == (1.0, 12)
    assert torch.load(checkpoints.best)["global_step"] == 12
    assert torch.load(checkpoints.last)["global_step"] == 18


def test_a_value_that_is_no_number_is_never_the_best(tmp_path):
    checkpoints = fit(tmp_path, [float("nan"), 2.0, float("nan")])
    assert torch.load(checkpoints.best)["global_step"] == 12


def test_without_a_finite_value_there_is_no_best(tmp_path):
    checkpoints = fit(tmp_path, [float("nan"), float("inf")])
    assert not checkpoints.best.exists()
    assert checkpoints.last.exists()


def test_steps_between_are_written_but_not_the_last_batch_of_an_epoch(tmp_path):
    checkpoints = fit(tmp_path, [1.0, 2.0], every_n_steps=3)
    # At 3 and 9 for the interval; at 6 and 12 after the epoch has ended.
    assert checkpoints.written == [3, 6, 9, 12]


def test_what_is_due_where_a_validation_follows_is_written_after_it(tmp_path):
    checkpoints = fit(tmp_path, [2.0, 3.0], every_n_steps=2, val_check_interval=4, limit_val_batches=1, max_steps=8)
    assert checkpoints.written == [2, 4, 6, 8, 8]
    # A checkpoint from before the validation would be resumed without it.
    assert best_step_in(checkpoints.last) == 4


def best_step_in(path):
    return torch.load(path)["callbacks"]["Written"]["best_step"]


def test_the_best_is_the_last_one_under_a_second_name(tmp_path):
    checkpoints = fit(tmp_path, [2.0, 1.0])
    assert checkpoints.best.samefile(checkpoints.last)
    worse = fit(tmp_path / "worse", [1.0, 2.0])
    assert not worse.best.samefile(worse.last)
    assert torch.load(worse.best)["global_step"] == best_step_in(worse.last) == 6


def test_a_file_system_without_second_names_gets_a_copy(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    checkpoints = fit(tmp_path, [2.0, 1.0])
    assert not checkpoints.best.samefile(checkpoints.last)
    assert checkpoints.best.read_bytes() == checkpoints.last.read_bytes()


@pytest.mark.parametrize("broken_at", ["replace", "link"])
def test_the_two_belong_together_even_if_writing_is_broken_off(broken_at, tmp_path, monkeypatch):
    class BrokenOff(Exception):
        pass

    def break_off(*_):
        raise BrokenOff

    # Better after every epoch: broken off where the second checkpoint replaces the first, or is about to become the best.
    calls = iter([getattr(os, broken_at), break_off] if broken_at == "link" else [os.replace, os.replace, break_off])
    monkeypatch.setattr(f"os.{broken_at}", lambda *names: next(calls)(*names))
    with pytest.raises(BrokenOff):
        fit(tmp_path, [2.0, 1.0], plugins=[AtomicCheckpointIO()])
    monkeypatch.undo()
    last, best = (torch.load(tmp_path / name) for name in ("last.ckpt", "best.ckpt"))
    assert best["global_step"] == 6
    assert best_step_in(tmp_path / "last.ckpt") in (last["global_step"], best["global_step"])


def test_a_run_that_is_continued_begins_with_both_files(tmp_path):
    parent = fit(tmp_path / "parent", [1.0, 2.0])
    checkpoints = Written(tmp_path / "child", {"schema_version": 1, "child": True}, monitor="val/mse")
    checkpoints.take_over(parent.last, torch.load(parent.last))
    assert checkpoints.best.samefile(parent.best)
    assert torch.load(checkpoints.last)["statewise"]["child"]
    assert torch.load(checkpoints.last)["global_step"] == 12


def test_a_last_one_that_is_itself_the_best_needs_nothing_beside_it(tmp_path):
    parent = fit(tmp_path / "parent", [2.0, 1.0])
    parent.best.unlink()
    checkpoints = Written(tmp_path / "child", {}, monitor="val/mse")
    checkpoints.take_over(parent.last, torch.load(parent.last))
    assert torch.load(checkpoints.best)["global_step"] == 12


def test_without_its_best_one_the_best_from_here_on_counts(tmp_path, caplog):
    parent = fit(tmp_path / "parent", [1.0, 2.0])
    parent.best.unlink()
    checkpoints = Written(tmp_path / "child", {}, monitor="val/mse")
    checkpoints.take_over(parent.last, torch.load(parent.last))
    assert "resume: the best checkpoint so far, of step 6, is not beside" in caplog.text
    assert not checkpoints.best.exists()
    checkpoints.load_state_dict({"best_value": 1.0, "best_step": 6})
    assert checkpoints.best_value == math.inf


def test_a_validation_inside_an_epoch_writes_the_best_at_once(tmp_path):
    checkpoints = fit(tmp_path, [1.0, 2.0], val_check_interval=0.5, limit_val_batches=1, max_steps=6)
    assert torch.load(checkpoints.best)["global_step"] == 3


def test_the_entry_is_in_every_file(tmp_path):
    assert torch.load(fit(tmp_path, [1.0]).last)["statewise"] == {"schema_version": 1}


def test_an_interval_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.checkpoint_every_n_steps must be at least 1 or null, got 0"):
        BestAndLast(tmp_path, {}, monitor="val/mse", every_n_steps=0)
