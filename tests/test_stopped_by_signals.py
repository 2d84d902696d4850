"""Wherever a signal meets a run, the run ends with the signal's exit code and can be continued without losing a bit."""

import os
import signal

import pytest
import torch

from statewise import assembly, run_record
from statewise.callbacks.exact_order import GRADIENTS, ExactOrder
from statewise.task import Forecasting

# 5 batches an epoch, 15 in all.
EXACT = ["model.dropout=0.2", "trainer.max_epochs=3"]


def weights(outcome, name="last.ckpt"):
    return torch.load(outcome.folder / "checkpoints" / name)


def assert_same_end(one, other):
    for name in ("last.ckpt", "best.ckpt"):
        first, second = weights(one, name)["state_dict"], weights(other, name)["state_dict"]
        assert all(torch.equal(first[key], second[key]) for key in first), name
    assert one.summary["test"] == other.summary["test"]


@pytest.fixture
def meets(monkeypatch):
    """Let a signal (or several) meet the process at the n-th call of a method, once."""

    def arm(owner, name, number, *, call=1, times=1):
        original, calls = getattr(owner, name), iter(range(1, 10_000))

        def with_signal(*arguments, **keywords):
            if next(calls) == call:
                for _ in range(times):
                    os.kill(os.getpid(), number)
            return original(*arguments, **keywords)

        monkeypatch.setattr(owner, name, with_signal)

    return arm


@pytest.fixture
def whole(train, known={}):  # noqa: B006  one run for all tests
    if not known:
        known["run"] = train(*EXACT)
    return known["run"]


@pytest.mark.parametrize(
    ("owner", "method", "call", "says"),
    [
        (ExactOrder, "on_train_batch_start", 7, "after step 7"),
        (ExactOrder, "on_train_batch_start", 10, "after step 10"),  # the last batch of an epoch
        (Forecasting, "on_validation_epoch_start", 2, "after step 10"),
        (Forecasting, "on_train_epoch_end", 1, "after step 5"),
        (ExactOrder, "on_train_batch_start", 15, "before the test"),
        (Forecasting, "on_train_epoch_end", 3, "before the test"),
        (Forecasting, "test_step", 1, "interrupted by SIGTERM"),
    ],
    ids=["a step", "the last batch", "validation", "between epochs", "the very last batch", "the very end", "the test"],
)
def test_a_run_that_meets_sigterm_ends_with_143_and_goes_on_exactly(
    owner, method, call, says, train, whole, meets, monkeypatch
):
    meets(owner, method, signal.SIGTERM, call=call)
    first = train(*EXACT)
    assert first.code == 143
    assert says in first.err
    assert len(first.err.strip().splitlines()) == 1
    assert first.summary["status"] == "interrupted"
    monkeypatch.undo()
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    assert_same_end(second, whole)


def test_gradients_that_are_being_accumulated_are_kept(train, meets, monkeypatch):
    accumulated = [*EXACT, "trainer.accumulate_grad_batches=3"]
    whole = train(*accumulated)
    meets(ExactOrder, "on_train_batch_start", signal.SIGINT, call=7)  # the second batch of a step
    first = train(*accumulated)
    assert first.code == 130
    assert "interrupted by SIGINT after step 2;" in first.err
    checkpoint = weights(first)
    assert checkpoint[GRADIENTS].keys() == checkpoint["state_dict"].keys()
    monkeypatch.undo()
    second = train(f"resume={first.folder}", tiny=False)
    assert second.code == 0, second.err
    assert_same_end(second, whole)
    assert GRADIENTS not in weights(second)


def test_before_the_first_step_there_is_nothing_to_keep(train, meets):
    meets(assembly, "build_model", signal.SIGTERM)
    outcome = train(*EXACT)
    assert outcome.code == 143
    assert outcome.err.strip() == "interrupted by SIGTERM"
    assert outcome.summary["status"] == "interrupted"
    assert not (outcome.folder / "checkpoints").exists()


def test_a_run_that_has_ended_completes_its_folder_first(train, meets):
    meets(run_record.console, "print_results", signal.SIGINT)
    outcome = train(*EXACT)
    assert outcome.code == 130
    assert outcome.err.strip() == "interrupted by SIGINT after the run had ended; its folder is complete"
    assert outcome.summary["status"] == "ok"


def test_the_second_signal_ends_a_run_at_once_and_the_last_checkpoint_stays(train, whole, meets, monkeypatch):
    meets(ExactOrder, "on_train_batch_start", signal.SIGTERM, call=7, times=2)
    first = train(*EXACT)
    assert first.code == 143
    assert first.err.strip() == "interrupted by SIGTERM"
    assert weights(first)["global_step"] == 5  # of the end of the epoch before
    assert not list(first.folder.rglob(".*.partial"))
    monkeypatch.undo()
    second = train(f"resume={first.folder}", tiny=False)
    assert_same_end(second, whole)


def test_the_second_signal_while_a_checkpoint_is_written_leaves_the_one_before(train, whole, meets, monkeypatch):
    meets(torch, "save", signal.SIGINT, call=2, times=2)
    first = train(*EXACT)
    assert first.code == 130
    assert weights(first)["global_step"] == 5
    assert not list(first.folder.rglob(".*.partial"))
    monkeypatch.undo()
    assert_same_end(train(f"resume={first.folder}", tiny=False), whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 138), (signal.SIGTERM, 143)])
def test_under_slurm_the_warning_and_the_end_of_time_keep_the_work(number, code, train, whole, meets, monkeypatch):
    job = {"JOB_ID": "7", "NTASKS": "1", "JOB_NAME": "train", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "NODELIST": "n1"}
    with monkeypatch.context() as slurm:
        for key, value in job.items():
            slurm.setenv(f"SLURM_{key}", value)
        slurm.setattr(
            "lightning.pytorch.trainer.connectors.signal_connector.call", lambda *_: pytest.fail("Lightning requeued the job")
        )
        meets(
            ExactOrder, "on_train_batch_start", number, call=15
        )  # in the last epoch, whose end Lightning would take for its own
        first = train(*EXACT)
    assert first.code == code
    assert first.summary["status"] == "interrupted"
    assert sorted(path.name for path in first.folder.rglob("*.ckpt")) == ["best.ckpt", "last.ckpt"]
    monkeypatch.undo()
    assert_same_end(train(f"resume={first.folder}", tiny=False), whole)
