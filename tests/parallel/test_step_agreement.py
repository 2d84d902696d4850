import copy

import pytest
import torch

from statewise.epoch_loss import EpochLoss
from statewise.parallel import ranks, step_agreement
from statewise.parallel.step_agreement import StepAgreement


@pytest.fixture
def together(monkeypatch):
    """Another process that has the same numbers, ten of each more."""
    monkeypatch.setattr(ranks, "together", lambda: True)
    monkeypatch.setattr(ranks, "summed", lambda values: 2 * values + 10)


def test_counts_are_known_for_one_batch(together):
    agreement = StepAgreement()
    agreement.exchange(torch.tensor([3, 0]))
    assert agreement.take().tolist() == [16, 10]
    assert agreement.take() is None


def test_a_copy_on_which_something_is_tried_agrees_with_nobody(together):
    agreement = StepAgreement()
    agreement.exchange(torch.tensor([3]))
    tried = copy.deepcopy(agreement)
    assert (agreement.together, tried.together) == (True, False)
    assert tried.take() is None
    assert tried.summed(torch.tensor([1.0])).tolist() == [1.0]
    assert agreement.take() is not None


def test_one_process_keeps_its_own():
    values = torch.tensor([1.0])
    assert not StepAgreement().together
    assert StepAgreement().summed(values) is values
    assert step_agreement.ranks is ranks


def test_the_loss_of_an_epoch_is_that_of_its_observed_values():
    loss = EpochLoss(StepAgreement())
    assert loss.close() is None
    loss.add(torch.tensor([6.0, 0.0]), torch.tensor([2, 0]))
    loss.add(torch.tensor([3.0, 1.0]), torch.tensor([1, 4]))
    assert loss.close() == pytest.approx((9 / 3 + 1 / 4) / 2)
    assert loss.close() is None


def test_the_loss_of_an_epoch_that_was_interrupted_is_of_all_of_it():
    whole, first, rest = (EpochLoss(StepAgreement()) for _ in range(3))
    one, two = (torch.tensor([0.1]), torch.tensor([3])), (torch.tensor([0.7]), torch.tensor([2]))
    for loss in (whole, first):
        loss.add(*one)
    state = first.state_dict()
    first.add(*two)  # what was saved is not touched
    rest.load_state_dict(state, first=True)
    for loss in (whole, rest):
        loss.add(*two)
    assert torch.equal(rest.close(), whole.close())


def test_between_epochs_there_is_nothing_to_keep():
    loss = EpochLoss(StepAgreement())
    assert loss.state_dict() == {}
    loss.load_state_dict({}, first=True)
    assert loss.close() is None


def test_of_several_processes_one_takes_what_all_had():
    state = {"sums": torch.tensor([4.0], dtype=torch.float64), "counts": torch.tensor([2])}
    parts = [EpochLoss(StepAgreement()) for _ in range(2)]
    for rank, loss in enumerate(parts):
        loss.load_state_dict(state, first=rank == 0)
    assert [loss.state_dict()["sums"].item() for loss in parts] == [4.0, 0.0]
