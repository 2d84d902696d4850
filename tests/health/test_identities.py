"""What became another object, and whether an optimizer still holds the old one."""

import torch
from torch import nn

from statewise.health.identities import Identities
from statewise.health.setting import Setting

NOTHING = {"frozen": (), "constants": (), "conditional": (), "causal": ()}


def taken(model: nn.Module) -> Identities:
    return Identities(model, [torch.optim.SGD(model.parameters(), lr=0.1)], NOTHING, Setting())


def test_nothing_has_changed_until_something_is_another_object() -> None:
    model = nn.Linear(2, 1)
    identities = taken(model)
    assert not identities.changed()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert not identities.changed()
    model.weight = nn.Parameter(torch.ones(1, 2))
    assert identities.changed()
    identities.take(Setting())
    assert not identities.changed()


def test_a_parameter_made_anew_under_its_optimizer_is_news_once_a_batch_has_run() -> None:
    model = nn.Linear(2, 1)
    identities = taken(model)
    model.weight = nn.Parameter(torch.ones(1, 2))
    assert identities.recreation(Setting(), batch=0) is None
    news = identities.recreation(Setting(), batch=4)
    assert news is not None
    assert (news.names, news.batch, news.times) == (("weight",), 4, 2)


def test_hidden_tensors_that_ask_for_gradients_are_left_to_the_real_graph() -> None:
    model = nn.Linear(2, 1)
    model.asking, model.silent = torch.ones(2, requires_grad=True), torch.ones(3)
    identities = taken(model)
    names = [{fact.name for fact, _ in identities.tensors(without_gradient=only).values()} for only in (False, True)]
    assert names == [{"asking", "silent"}, {"silent"}]
