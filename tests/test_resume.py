"""A run that was stopped and continued ends with the weights of the run that never stopped, to the bit."""

import os
import re
import signal

import pytest
import torch
from omegaconf import OmegaConf

from statewise.callbacks.stopping import Stopping
from statewise.resume import with_parents_overrides, with_parents_values

# 280 training rows in windows of 16 make 265 windows: 5 batches an epoch, the last one smaller.
EXACT = ["model.dropout=0.2", "trainer.max_epochs=3"]


def weights(outcome, name="last.ckpt"):
    return torch.load(outcome.folder / "checkpoints" / name)["state_dict"]


def assert_equal_to_the_bit(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.fixture
def uninterrupted(train):
    outcome = train(*EXACT)
    assert outcome.code == 0, outcome.err
    return outcome


@pytest.mark.parametrize("stop", ["trainer.stop_after_steps=3", "trainer.stop_after_steps=5", "trainer.stop_after_steps=8"])
def test_a_run_stopped_after_steps_and_resumed_equals_the_uninterrupted_one(stop, train, uninterrupted):
    first = train(*EXACT, stop)
    assert first.code == 0
    assert f"continue with: python train.py resume={first.folder}" in first.out
    assert first.summary["steps"] == int(stop.partition("=")[2])
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    assert second.summary["parent"] == str(first.folder / "checkpoints" / "last.ckpt")
    assert second.summary["steps"] == uninterrupted.summary["steps"] == 15
    assert_equal_to_the_bit(weights(second), weights(uninterrupted))
    assert second.summary["test"]["mse"] == uninterrupted.summary["test"]["mse"]


def test_a_run_stopped_after_an_epoch_and_resumed_equals_the_uninterrupted_one(train, uninterrupted):
    first = train(*EXACT, "trainer.stop_after_epochs=1")
    assert first.summary["steps"] == 5
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    assert_equal_to_the_bit(weights(second), weights(uninterrupted))


def test_a_run_resumed_from_its_best_checkpoint_equals_the_uninterrupted_one(train, uninterrupted):
    first = train(*EXACT, "trainer.stop_after_epochs=1")
    second = train(f"resume={first.folder}/checkpoints/best.ckpt", tiny=False)
    assert second.code == 0, second.err
    assert second.summary["steps"] == 15
    assert_equal_to_the_bit(weights(second), weights(uninterrupted))


def test_a_best_checkpoint_written_inside_an_epoch_resumes_exactly(train):
    inside = [*EXACT, "trainer.val_check_interval=2"]
    whole = train(*inside)
    first = train(*inside, "trainer.stop_after_steps=3")
    best = first.folder / "checkpoints" / "best.ckpt"
    assert torch.load(best)["global_step"] == 2
    second = train(f"resume={best}", tiny=False)
    assert second.code == 0, second.err
    assert second.summary["steps"] == 15
    assert_equal_to_the_bit(weights(second), weights(whole))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_work_and_the_run_resumes_exactly(number, code, train, uninterrupted, monkeypatch):
    before = Stopping.on_train_batch_end

    def interrupt_at_step_7(self, trainer, *arguments):
        if trainer.global_step == 7 and not self.requested:
            os.kill(os.getpid(), number)
        before(self, trainer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Stopping, "on_train_batch_end", interrupt_at_step_7)
        first = train(*EXACT)
    assert first.code == code
    assert first.summary["status"] == "interrupted"
    assert f"interrupted by {signal.Signals(number).name} after step 7" in first.err
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    assert_equal_to_the_bit(weights(second), weights(uninterrupted))


def test_the_speed_of_an_epoch_resumed_midway_is_that_of_its_rest(train):
    first = train("trainer.stop_after_steps=3")
    second = train(f"resume={first.folder}", tiny=False)
    speeds = [float(speed.replace(",", "")) for speed in re.findall(r"([\d,]+) samples/s", second.out)]
    assert len(speeds) == 2
    assert min(speeds) > 1


def test_an_override_that_changes_a_shape_is_refused(train):
    first = train("trainer.stop_after_steps=2")
    second = train(f"resume={first.folder}", "model.d_state=8", tiny=False)
    assert second.code == 2
    assert "does not fit this model: ssm_0.A is [4, 4] in the checkpoint and [8, 8] in the model" in second.err
    assert len(second.err.strip().splitlines()) == 1


def test_an_override_that_the_checkpoint_would_undo_is_refused(train):
    first = train("trainer.stop_after_steps=2")
    second = train(f"resume={first.folder}", "optimizer.lr=0.5", tiny=False)
    assert second.code == 2
    assert "optimizer.lr=0.5 would have no effect: a resumed run goes on with the optimizer of its checkpoint" in second.err
    assert len(second.err.strip().splitlines()) == 1


def test_a_longer_plan_is_announced_and_a_finished_run_says_so(train):
    first = train()
    again = train(f"resume={first.folder}", tiny=False)
    assert again.code == 2
    assert "has been trained for 2 epochs already" in again.err
    longer = train(f"resume={first.folder}", "trainer.max_epochs=3", tiny=False)
    assert longer.code == 0, longer.err
    assert "the schedule is planned anew over 3 epochs instead of 2" in longer.out
    assert longer.summary["steps"] == 15


def test_a_checkpoint_that_would_skip_the_rest_of_an_epoch_is_refused(train):
    first = train("trainer.stop_after_steps=3")
    path = first.folder / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path)
    checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] += 1  # as Lightning does after max_steps
    torch.save(checkpoint, path)
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 2
    assert "was written after batch 3 of epoch 1, but counts that epoch as finished" in second.err


def test_an_unreadable_checkpoint_is_refused_before_any_work(train, tmp_path):
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(b"no")
    outcome = train(f"resume={broken}", tiny=False)
    assert outcome.code == 2
    assert f"{broken} cannot be read as a checkpoint" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_this_commands_overrides_win_over_the_parents(tmp_path, monkeypatch):
    entry = {"statewise": {"overrides": ["model.d_state=4", "~callbacks.dashboard", "data=lti", "trainer.stop_after_steps=3"]}}
    monkeypatch.setattr("statewise.resume.find_checkpoint", lambda place, folder: tmp_path)
    monkeypatch.setattr("statewise.resume.read_checkpoint", lambda path: entry)
    arguments = with_parents_overrides(["resume=run", "model.d_state=8"], tmp_path)
    assert arguments == ["~callbacks.dashboard", "data=lti", "resume=run", "model.d_state=8"]


def test_values_the_command_does_not_name_are_the_parents_even_if_a_default_has_changed():
    config = OmegaConf.create({"model": {"d_state": 8, "glu": True}, "resume": "x"})
    parent = {"model": {"d_state": 4, "glu": False}, "resume": None}
    changed = with_parents_values(config, parent, ["resume=x", "model.d_state=8"])
    assert changed == {"model.d_state": (4, 8)}
    assert config == {"model": {"d_state": 8, "glu": False}, "resume": "x"}
