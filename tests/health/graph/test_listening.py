"""Which batches are listened to, and what is known afterwards."""

import torch
from torch import nn

from statewise.health.graph.listening import Listening
from statewise.health.graph.walk import walk


def test_the_first_batch_is_listened_to_and_others_when_somebody_asks() -> None:
    model, listening = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), Listening()
    assert listening.due
    listening.begin(model, None)
    assert (listening.due, listening.attached) == (False, True)
    graph = walk(model(torch.ones(1, 2)).sum())
    listening.end([graph])
    assert not listening.attached
    assert {call.name for call in listening.calls} >= {"0", "1"}
    listening.forget()
    assert listening.flow is None
    assert listening.calls


def test_what_lies_in_no_compiled_module_is_not_unseen() -> None:
    model, listening = nn.Linear(2, 1), Listening()
    listening.begin(model, None)
    listening.end([walk(model(torch.ones(1, 2)).sum())])
    assert listening.unseen(["weight", "bias"]) == frozenset()


def test_a_bias_that_feeds_a_batch_norm_is_known() -> None:
    model, listening = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), Listening()
    assert listening.biases_before_norms() == frozenset()
    listening.begin(model, None)
    model(torch.randn(4, 2))
    assert listening.biases_before_norms() == {"0.bias"}
    listening.forget()
