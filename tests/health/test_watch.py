"""A plain PyTorch loop inside `with watch(...)`: faults are named, healthy loops left in peace, nothing left behind."""

import copy
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from statewise.health import UnhealthyTraining, watch
from statewise.health.plain.calls import Listener, leave, listen

Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Three linear layers over [batch, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(3, 8)
        self.core = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.core(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(torch.tanh(self.inp(x))))


def batches(count: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(16, 3, generator=generator)
        yield x, x.sum(-1, keepdim=True) + 0.1 * torch.randn(16, 1, generator=generator)


def plain(net: nn.Module, optimizer: Optimizer, steps: int = 8, **settings: Any) -> Any:
    """The loop of every tutorial."""
    with watch(net, optimizer, **settings) as health:
        for x, y in batches(steps):
            F.mse_loss(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return health


# -- the ten most common faults ---------------------------------------------------------------------------------------------


class Detached(Net):
    def middle(self, h: Tensor) -> Tensor:
        return super().middle(h.detach())


class Listed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8)]

    def middle(self, h: Tensor) -> Tensor:
        return super().middle(self.layers[0](h))


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def middle(self, h: Tensor) -> Tensor:
        return F.dropout(self.norm(super().middle(h)), 0.1, training=self.training)


def detach() -> Any:
    net = Detached()
    return plain(net, Adam(net.parameters(), 1e-2), policy="warn")


def layers_in_a_list() -> Any:
    net = Listed()
    return plain(net, Adam(net.parameters(), 1e-2), policy="warn")


def another_copy() -> Any:
    net = Net()
    return plain(net, Adam(copy.deepcopy(net).parameters(), 1e-2), policy="warn")


def learning_rate_zero() -> Any:
    net = Net()
    return plain(net, Adam(net.parameters(), 0.0), policy="warn")


def left_in_evaluation() -> Any:
    net = Normed().eval()
    return plain(net, Adam(net.parameters(), 1e-2), policy="warn")


def zero_grad_missing() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(8):
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    return health


def step_missing() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(8):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
    return health


def loss_rebuilt() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(4):
            torch.tensor(F.mse_loss(net(x), y).item(), requires_grad=True).backward()
            optimizer.step()
    return health


def cleared_before_the_step() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(4):
            F.mse_loss(net(x), y).backward()
            optimizer.zero_grad()
            optimizer.step()
    return health


def result_of_grad_dropped() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(4):
            torch.autograd.grad(F.mse_loss(net(x), y), list(net.parameters()))
            optimizer.step()
    return health


EVERY = {name for name, _ in Net().named_parameters()}

FAULTS = [
    pytest.param(detach, {"graph-cut"}, {"inp.weight", "inp.bias"}, 0, id="a detach"),
    pytest.param(layers_in_a_list, {"hidden-module"}, {"layers[0]"}, 0, id="layers in a list"),
    pytest.param(another_copy, {"stale-optimizer"}, EVERY, 0, id="the optimizer of another copy"),
    pytest.param(learning_rate_zero, {"zero-learning-rate"}, EVERY, 3, id="lr 0"),
    pytest.param(left_in_evaluation, {"evaluation-mode"}, {"norm"}, 0, id="left in evaluation mode"),
    pytest.param(zero_grad_missing, {"gradients-not-cleared"}, EVERY, 5, id="zero_grad missing"),
    pytest.param(step_missing, {"no-optimizer-step"}, EVERY, 0, id="step missing"),
    pytest.param(loss_rebuilt, {"loss-detached"}, EVERY, 0, id="the loss rebuilt"),
    pytest.param(cleared_before_the_step, {"gradients-cleared", "gradients-not-applied"}, EVERY, 0, id="cleared too early"),
    pytest.param(result_of_grad_dropped, {"gradients-not-applied"}, EVERY, 0, id="result of autograd.grad dropped"),
]


@pytest.mark.parametrize(("loop", "ids", "names", "latest"), FAULTS)
def test_a_common_fault_of_a_plain_loop_is_named(loop: Callable[[], Any], ids: set[str], names: set[str], latest: int) -> None:
    first = loop().findings[0]
    assert first.id in ids
    assert first.step <= latest
    assert any(name.startswith(tuple(names)) for name in first.parameters)


def test_autograd_left_off_is_named_before_torch_gives_up() -> None:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    health = watch(net, optimizer, policy="warn")
    x, y = next(batches(1))
    with pytest.raises(RuntimeError, match="does not require grad"), health, torch.no_grad():
        F.mse_loss(net(x), y).backward()
    assert [finding.id for finding in health.findings] == ["autograd-off"]


# -- healthy loops ----------------------------------------------------------------------------------------------------------


def ordinary() -> Any:
    net = Normed()
    return plain(net, AdamW(net.parameters(), 1e-2), 25)


def accumulating() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-2)
    with watch(net, optimizer) as health:
        for number, (x, y) in enumerate(batches(60)):
            (F.mse_loss(net(x), y) / 12).backward()
            if number % 12 == 11:
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    return health


def with_closure() -> Any:
    net = Net()
    optimizer = LBFGS(net.parameters(), lr=0.5, max_iter=4)
    with watch(net, optimizer) as health:
        for x, y in batches(8):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(net(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return health


def scaled() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-2)
    # The first steps are skipped, until the scale fits.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with watch(net, optimizer) as health:
        for x, y in batches(25):
            scaler.scale(8 * F.mse_loss(net(x), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert 0 < health.steps < 25
    return health


def two_networks() -> Any:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    first, second = Adam(generator.parameters(), 1e-3), Adam(critic.parameters(), 1e-3)
    with watch({"generator": generator, "critic": critic}, [first, second]) as health:
        for x, _ in batches(25):
            fake = generator(torch.randn(16, 4))
            second.zero_grad()
            (F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
            second.step()
            first.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            first.step()
    return health


class Sharpness(Optimizer):
    """Sharpness-aware minimisation: climbs, asks for the gradient up there, and steps from where it was."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.9})
        self.inner = SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["below"] = parameter.clone()
            parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["below"])
        self.inner.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


def sharpness_aware(closure: bool) -> Any:
    net = Net()
    optimizer = Sharpness(net.parameters(), 0.02)
    with watch(net, optimizer) as health:
        for x, y in batches(25):
            F.mse_loss(net(x), y).backward()
            if closure:
                optimizer.step(lambda x=x, y=y: F.mse_loss(net(x), y).backward())
            else:
                optimizer.climb()
                F.mse_loss(net(x), y).backward()
                optimizer.descend()
    assert health.steps == 25
    return health


def gradient_penalty() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-3)
    with watch(net, optimizer) as health:
        for x, y in batches(25):
            x.requires_grad_()
            prediction = net(x)
            (slope,) = torch.autograd.grad(prediction.sum(), x, create_graph=True)
            optimizer.zero_grad()
            (F.mse_loss(prediction, y) + 0.1 * slope.square().mean()).backward()
            optimizer.step()
    return health


def evaluating() -> Any:
    net = Normed()
    optimizer = Adam(net.parameters(), 1e-2)
    fixed = next(batches(1))[0]
    with watch(net, optimizer) as health:
        for x, y in batches(25):
            # Not everybody turns autograd off to look at a validation batch.
            net.eval()
            net(fixed)
            net.train()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            net.eval()
            with torch.no_grad():
                net(fixed)
            net.train()
    return health


def in_parts() -> Any:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-2)
    with watch(net, optimizer) as health:
        for x, y in batches(25):
            F.mse_loss(net.head(torch.tanh(net.core(net.inp(x)))), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return health


def compiled() -> Any:
    net = Net()
    fast = torch.compile(net, backend="eager", fullgraph=True)
    optimizer = Adam(net.parameters(), 1e-2)
    with watch(net, optimizer) as health:
        for x, y in batches(22):
            F.mse_loss(fast(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return health


class Checkpointed(Net):
    reentrant = True

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(super().middle, h, use_reentrant=self.reentrant)


def checkpointed(reentrant: bool) -> Any:
    net = Checkpointed()
    net.reentrant = reentrant
    return plain(net, Adam(net.parameters(), 1e-2), 22)


HEALTHY = {
    "ordinary": ordinary,
    "accumulation": accumulating,
    "L-BFGS with a closure": with_closure,
    "a GradScaler that skips at first": scaled,
    "two networks and two optimizers": two_networks,
    "sharpness-aware in two steps": lambda: sharpness_aware(closure=False),
    "sharpness-aware with a closure": lambda: sharpness_aware(closure=True),
    "a gradient penalty": gradient_penalty,
    "evaluation in between": evaluating,
    "parts called one by one": in_parts,
    "compiled": compiled,
    "re-entrant checkpointing": lambda: checkpointed(reentrant=True),
    "checkpointing": lambda: checkpointed(reentrant=False),
}


@pytest.mark.parametrize("loop", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_plain_loop_is_left_in_peace(loop: Callable[[], Any]) -> None:
    health = loop()
    assert [f"{f.id}: {f.message}" for f in health.findings if f.severity != "info"] == []
    assert health.report()["verdict"] == "healthy"
    assert next(check for check in health.report()["checks"] if check["name"] == "graph-cut")["ran"]


def test_a_gradient_scaler_that_always_skips_is_named() -> None:
    net = Net()
    optimizer = Adam(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu")
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(14):
            scaler.scale(F.mse_loss(net(x), y) * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert health.steps == 0
    assert {"steps-skipped", "non-finite-gradient"} & {finding.id for finding in health.findings}


@pytest.mark.parametrize("imported", [nn.utils.clip_grad_norm_, None], ids=["norm, imported before", "value"])
def test_gradients_are_seen_before_they_are_clipped_to_almost_nothing(imported: Callable[..., Any] | None) -> None:
    net = Net()
    optimizer = SGD(net.parameters(), 0.1)
    with watch(net, optimizer, policy="warn") as health:
        for x, y in batches(24):
            F.mse_loss(net(x), y).backward()
            (imported or nn.utils.clip_grad_value_)(net.parameters(), 1e-9)
            optimizer.step()
            optimizer.zero_grad()
    assert "clipped-to-nothing" in {finding.id for finding in health.findings}


# -- the block itself -------------------------------------------------------------------------------------------------------

CALLS = [
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.nn.utils, "clip_grad_norm_"),
    (torch.nn.utils, "clip_grad_value_"),
    (torch.nn.utils.clip_grad, "clip_grad_norm_"),
    (torch.amp.GradScaler, "step"),
]


def calls() -> list[Any]:
    return [getattr(owner, name) for owner, name in CALLS]


@pytest.mark.parametrize("broken", [False, True])
def test_nothing_is_left_behind(broken: bool) -> None:
    net, before = Net(), calls()
    optimizer = Adam(net.parameters(), 1e-2)
    try:
        with watch(net, optimizer):
            assert calls() != before
            for x, y in batches(3):
                F.mse_loss(net(x), y).backward()
                optimizer.step()
                if broken:
                    raise ZeroDivisionError
                optimizer.zero_grad()
    except ZeroDivisionError:
        assert broken
    assert calls() == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    assert not optimizer._optimizer_step_pre_hooks  # type: ignore[attr-defined]
    assert not optimizer._optimizer_step_post_hooks  # type: ignore[attr-defined]


def test_blocks_may_overlap_and_each_hears_the_calls_until_it_ends() -> None:
    class Counts(Listener):
        backwards = 0

        def before_backward(self, tensors: Any, inputs: Any) -> None:
            self.backwards += 1

    before, first, second = calls(), Counts(), Counts()
    weight = torch.ones(2, requires_grad=True)
    listen(first)
    listen(second)
    weight.sum().backward()
    leave(first)
    weight.sum().backward()
    leave(second)
    weight.sum().backward()
    assert (first.backwards, second.backwards) == (1, 2)
    assert calls() == before


def test_a_watched_loop_ends_with_the_same_bits() -> None:
    ends = []
    for policy in ("off", "error"):
        torch.manual_seed(3)
        net = Normed()
        plain(net, AdamW(net.parameters(), 1e-2), 12, policy=policy)
        ends.append(net.state_dict() | {"random": torch.get_rng_state()})
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())


def test_under_error_the_loop_stops_before_the_first_update() -> None:
    net = Detached()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(UnhealthyTraining, match=r"step 0, graph-cut: .*`inp\.weight`.*Intended:"):
        plain(net, Adam(net.parameters(), 1e-2))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_the_block_ends_with_one_verdict_line_and_shows_three_findings_at_most(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="statewise"):
        detach()
        assert sum(record.levelno == logging.ERROR for record in caplog.records) <= 3
    assert "training health: error: graph-cut" in caplog.messages[-1]
    assert "(6 parameters, 8 steps," in caplog.messages[-1]


def test_declared_names_and_plans_are_passed_on() -> None:
    net = Detached()
    optimizer = Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    health = plain(net, optimizer, conditional=["inp"], causal=["core"], schedulers=[schedule], planned_steps=8, accumulate=2)
    assert health.monitor.patterns["causal"] == ("core",)
    setting = health.monitor.setting
    assert health.report()["verdict"] == "healthy"
    assert (setting.planned_steps, setting.accumulate, setting.plain) == (8, 2, True)
    assert (setting.schedules[0].optimizer, setting.scheduled) == (0, {0})


def test_off_looks_at_nothing_and_says_so() -> None:
    net, before = Detached(), calls()
    with watch(net, Adam(net.parameters()), policy="off") as health:
        assert calls() == before
    assert health.report() == {"verdict": "not_checked", "findings": [], "checks": []}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"policy": "strict"}, "health.policy must be one of error, warn, off"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings: dict[str, Any], text: str) -> None:
    net = Net()
    with pytest.raises(ValueError, match=text):
        watch(net, Adam(net.parameters()), **settings)


def test_what_is_no_optimizer_or_no_module_is_refused_in_one_line() -> None:
    net = Net()
    # Without the checks of types that the tests put around every function.
    unchecked = inspect.unwrap(watch)
    with pytest.raises(ValueError, match=r"optimizer must be a torch.optim.Optimizer or a list of them, got float"):
        unchecked(net, [Adam(net.parameters()), 0.1])
    with pytest.raises(ValueError, match=r"model must be a torch.nn.Module or several of them, got Tensor"):
        unchecked([net, torch.ones(1)], Adam(net.parameters()))
