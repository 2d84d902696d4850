"""The table of parameters is text in columns."""

import torch
from torch import nn

from statewise.health.parameters import take_inventory
from statewise.health.table import parameter_table


def test_columns_stand_under_their_titles_and_numbers_end_together() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD([{"params": net[0].parameters(), "lr": 0.5}, {"params": net[1].parameters(), "lr": 1e-4}])
    lines = parameter_table(take_inventory(net, [optimizer], frozenset()), frozenset({"0.weight"})).splitlines()
    assert lines[0] == "4 parameters"
    ends = {line.index(lr) + len(lr) for line, lr in zip(lines[2:], ["0.5", "0.5", "0.0001", "0.0001"], strict=True)}
    assert ends == {lines[1].index("lr") + len("lr")}
    assert [line.split()[-1] for line in lines[2:]] == ["yes", "no", "no", "no"]
    assert lines[2].split()[:3] == ["0.weight", "8x3", "float32"]


def test_a_long_list_ends_with_how_many_more_there_are() -> None:
    net = nn.Sequential(*(nn.Linear(1, 1) for _ in range(150)))
    assert parameter_table(take_inventory(net, [], frozenset()), None).splitlines()[-1] == "... and 100 more"
