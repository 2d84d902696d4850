"""The probes of a forward pass alone, as a loop of one's own has it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.health.attributes import scan_attributes
from statewise.health.probes.forward import probe_forward
from statewise.health.probes.mixing import RowsAlone
from statewise.health.probes.reduction import Halves
from statewise.health.probes.repetition import Repeated, Reseeded
from statewise.health.probes.rows import NoRows, chosen, leaves, odd_row, repeated, row_count
from statewise.health.probes.stage import Feed, Stage
from statewise.health.probes.sub_batch import SubBatch


class Net(nn.Module):
    """[batch, time, 3] to [batch, 1], with everything that a trial could disturb."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1)
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls += 1
        h = self.middle(self.norm(self.inp(x).mean(1)) * scale)
        return self.head(h)

    def middle(self, h: Tensor) -> Tensor:
        return h


def asked(module: nn.Module, *args: Any, feed: Feed | None = None, **kwargs: Any) -> dict[type, Any]:
    given = {"stage": Stage(feed=feed)} if feed else {}
    candidates = scan_attributes(module)
    signals, unable = probe_forward(module, args, kwargs, candidates=candidates, **given)
    return {type(signal): signal for signal in signals} | {"unable": unable}


X = torch.randn(8, 6, 3, generator=torch.Generator().manual_seed(1))


def test_a_healthy_module_gives_the_same_alone_again_and_from_another_state() -> None:
    told = asked(Net(), X, scale=2.0)
    assert told[RowsAlone] == RowsAlone(8, 4)
    assert told[SubBatch].error == ""
    assert not told[Repeated].leaks
    assert told[Reseeded].module is None
    assert Halves in told["unable"]


def test_the_module_its_modes_its_buffers_and_all_random_states_are_as_before() -> None:
    module = Net()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    asked(module, X)
    assert torch.equal(torch.rand(3), expected)
    assert (module.training, module.norm.training, module.calls) == (True, False, 0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize(
    ("change", "kind", "field", "value"),
    [
        (lambda self, h: h * F.softmax(h, 0), RowsAlone, "kind", "mixed"),
        (lambda self, h: h.mean(0, keepdim=True).expand_as(h), RowsAlone, "kind", "identical"),
        (lambda self, h: h + torch.zeros(8, 8), SubBatch, "module", ""),
        (lambda self, h: F.dropout(h), Reseeded, "sampled", False),
        (lambda self, h: h + torch.randn_like(h) * h.exp(), Reseeded, "sampled", True),
    ],
    ids=["softmax", "mean", "state", "dropout", "noise"],
)
def test_a_module_that_misbehaves_is_told(change: Any, kind: type, field: str, value: Any) -> None:
    class Changed(Net):
        middle = change

    told = asked(Changed(), X)[kind]
    assert getattr(told, field) == value
    assert told.module == ""


def test_a_state_that_stays_is_told_with_its_attribute() -> None:
    class Kept(Net):
        kept: Any = 0

        def middle(self, h: Tensor) -> Tensor:
            h, self.kept = h + self.kept, h.detach().mean(0)
            return h

    told = asked(Kept(), X)[Repeated]
    assert told.leaks
    assert told.deviation > 0.01
    assert told.holders == ("kept",)


def test_casts_that_autocast_keeps_are_no_state_of_a_batch() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert not asked(Net(), X)[Repeated].leaks


def test_rows_are_not_judged_where_they_may_lie_on_either_axis() -> None:
    class TokenWise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0]

    assert "first axis of the batch or the second" in asked(TokenWise(), X)["unable"][RowsAlone]
    assert asked(TokenWise(), X, feed=Feed(batch_size=8))[RowsAlone].kind == "mixed"
    assert asked(TokenWise(), X, feed=Feed(batch_size=6))[RowsAlone].kind == ""


def test_a_module_that_cannot_be_tried_says_why() -> None:
    class Broken(Net):
        def middle(self, h: Tensor) -> Tensor:
            if not self.training:
                raise RuntimeError("for training only")
            return h

    assert asked(Broken(), X)["unable"][Repeated] == "the step fails in evaluation mode: RuntimeError: for training only"
    large = nn.Linear(2**14, 2**14 + 1, device="meta")
    assert "too much to copy" in asked(large, X)["unable"][RowsAlone]


def test_every_shape_of_a_batch_is_cut_and_put_together_again() -> None:
    @dataclass
    class Record:
        x: Tensor
        names: list[str]

    batch = [{"a": torch.arange(4), "b": np.arange(4.0)}, Record(torch.ones(4, 2), ["p", "q", "r", "s"]), (None, "text", 2.5)]
    assert [name for name, _ in leaves(batch)][:3] == ["batch[0]['a']", "batch[0]['b']", "batch[1].x"]
    assert row_count(batch) == 4
    last = chosen(batch, slice(2, 4), 4)
    assert (last[0]["a"].tolist(), last[0]["b"].tolist()) == ([2, 3], [2.0, 3.0])
    assert (last[1].x.shape, last[1].names, last[2]) == ((2, 2), ["r", "s"], (None, "text", 2.5))
    assert repeated(batch, 0, 1)[0]["a"].tolist() == [1, 1, 1, 1]
    assert (odd_row(batch[0]["a"]), odd_row(batch[1].x)) == (0, None)
    for bad, why in (
        ((torch.ones(4, 2), torch.ones(3)), "batch[0] has 4 rows and batch[1] has 3"),
        ((torch.ones(4, 4), torch.ones(4)), "batch[0] has the 4 rows on both axes"),
        ({"x": torch.ones(4), "n": 4}, "batch['n'] may say how many rows there are"),
        (object(), "batch is a object, which cannot be cut into rows"),
    ):
        with pytest.raises(NoRows) as error:
            row_count(bad)
        assert str(error.value) == why
