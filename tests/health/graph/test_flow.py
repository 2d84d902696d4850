"""Where the way from a parameter to the loss is cut, told from the calls of one batch."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statewise.health.graph.flow import Call, Cut, FlowRecorder, locate
from statewise.health.graph.walk import walk


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


def recorded(module: nn.Module, x: Tensor | None = None) -> tuple[Call, ...]:
    x = torch.randn(4, 2) if x is None else x
    recorder = FlowRecorder(module, x)
    graph = walk(module(x).sum())
    recorder.detach()
    return recorder.calls([graph])


def cut(module: nn.Module, *owners: str, reached: tuple[str, ...] = ()) -> list[Cut]:
    return locate(recorded(module), {owner: [f"{owner}.weight"] for owner in owners}, frozenset(reached))


def test_every_call_of_a_whole_chain_is_reached() -> None:
    calls = recorded(Chain())
    assert [call.name for call in calls] == ["first", "second", "third", ""]
    assert all(call.out_reached and call.out_grad and call.grad_enabled for call in calls)
    # The batch itself is no computed input: it has no gradient by rights.
    assert [call.in_grad for call in calls] == [None, True, True, None]


def test_modules_before_one_detach_share_one_cut() -> None:
    module = Chain()
    module.third.register_forward_pre_hook(lambda _, args: (args[0].detach(),))
    assert cut(module, "first", "second") == [Cut("between", "second", "third", ("first.weight", "second.weight"))]


def test_a_detach_in_a_forward_is_inside_that_module() -> None:
    class Detaches(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.detach())

    module = Chain()
    module.third = Detaches(2, 1)
    assert cut(module, "first", "second") == [Cut("inside", "second", "third", ("first.weight", "second.weight"))]


def test_a_cut_within_a_container_is_placed_between_its_children() -> None:
    module = Chain()
    module.second = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module.second[1].register_forward_pre_hook(lambda _, args: (args[0].detach(),))
    assert cut(module, "first") == [Cut("between", "first", "second.1", ("first.weight",))]
    assert cut(module, "second.0") == [Cut("between", "second.0", "second.1", ("second.0.weight",))]


def test_autograd_that_is_off_is_named_after_the_outermost_module_it_is_off_in() -> None:
    class Off(nn.Sequential):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    module = Chain()
    module.second = Off(nn.Linear(2, 2), nn.Linear(2, 2))
    names = ("first.weight", "second.0.weight", "second.1.weight")
    assert cut(module, "first", "second.0", "second.1") == [Cut("disabled", "second", None, names)]


def test_a_module_that_swallows_its_gradient_is_named() -> None:
    module = Chain()
    module.second.register_forward_hook(lambda *_: _[2].round().detach())
    assert cut(module, "first", "second") == [Cut("lost", "second", None, ("first.weight", "second.weight"))]


def test_what_checkpointing_calls_again_in_the_backward_pass_hides_no_cut() -> None:
    class Checkpointed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    module, x = Checkpointed(), torch.randn(4, 2)
    module.third.register_forward_pre_hook(lambda _, args: (args[0].detach(),))
    recorder = FlowRecorder(module, x)
    loss = module(x).sum()
    graph = walk(loss)
    loss.backward()
    calls = recorder.calls([graph])
    recorder.detach()
    assert [call.name for call in calls] == ["first", "second", "third", ""]
    expected = Cut("between", "second", "third", ("first.weight", "second.weight"))
    assert locate(calls, {name: [f"{name}.weight"] for name in ("first", "second")}, frozenset()) == [expected]


def test_an_output_that_nothing_uses_is_dropped_and_a_module_that_is_not_called_is_absent() -> None:
    class Extra(Chain):
        def __init__(self) -> None:
            super().__init__()
            self.dropped, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.dropped(x)
            return super().forward(x)

    kinds = {c.before: c.kind for c in cut(Extra(), "dropped", "idle")}
    assert kinds == {"dropped": "dropped", "idle": "absent"}


def test_one_parameter_of_a_reached_module_is_a_member() -> None:
    assert cut(Chain(), "second", reached=("second",)) == [Cut("member", "second", None, ("second.weight",))]


def test_only_the_output_that_the_loss_uses_is_reached() -> None:
    class Splits(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.split(1, dim=-1)

    class Uses(Chain):
        def __init__(self) -> None:
            super().__init__()
            self.split, self.other, self.third = Splits(), nn.Identity(), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            used, unused = self.split(self.second(self.first(x)))
            self.other(unused)
            return self.third(used)

    calls = {call.name: call for call in recorded(Uses())}
    assert calls["split"].out_reached
    assert not calls["other"].in_reached


class Encoder(Chain):
    """A tensor of its own, a layer that attention uses without calling it, and a choice without a gradient after them."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(4, 2))
        self.attention = nn.MultiheadAttention(2, 1)
        self.second = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.second.register_forward_hook(lambda *_: _[2].round().detach())

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.position
        return self.third(self.second(h + self.attention(h, h, h, need_weights=False)[0]))


def test_everything_before_one_cut_shares_it_however_it_is_used() -> None:
    owners = ("", "first", "attention", "attention.out_proj", "second.0")
    names = tuple(f"{owner}.weight" for owner in owners)
    assert cut(Encoder(), *owners) == [Cut("lost", "second", None, names)]


def test_a_tensor_of_a_whole_chain_is_lost_on_its_own() -> None:
    class Shifted(Chain):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + self.shift.detach())

    assert cut(Shifted(), "") == [Cut("unread", "", None, (".weight",))]


def test_a_module_that_passes_its_input_on_leaves_its_own_tensor_unread() -> None:
    class LeftOut(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1

    module = Chain()
    module.second = LeftOut(2, 2)
    assert cut(module, "second") == [Cut("unread", "second", None, ("second.weight",))]


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.InstanceNorm1d(2)])
def test_modules_that_feed_a_norm_are_known(norm: nn.Module) -> None:
    module = Chain()
    module.second = norm
    x = torch.randn(4, 2, 2) if isinstance(norm, nn.InstanceNorm1d) else torch.randn(4, 2)
    recorder = FlowRecorder(module, x)
    module(x)
    assert recorder.feeding_norms() == {"first"}
    recorder.clear()
    assert not module.first._forward_hooks
