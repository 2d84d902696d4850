"""Cuts of the graph that begin in the middle of a run, autograd that is off, and set-ups that only look like it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statewise.health.watch import watch

ONSET = 10
INP, CORE = ["net.inp.weight", "net.inp.bias"], ["net.core.weight", "net.core.bias"]
HEAD = ["net.head.weight", "net.head.bias"]


class Net(nn.Module):
    """Three layers; `change(h)` acts on what the second one is given, from step `since` on."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor] | None = None, since: int = ONSET) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.core, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.change, self.since, self.seen = change, since, 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inp(x))
        changed = self.change is not None and self.seen >= self.since
        self.seen += self.training
        return self.head(torch.tanh(self.change(self, h) if changed else self.core(h)))


def detached(net: Net, h: Tensor) -> Tensor:
    return net.core(h.detach())


@pytest.mark.parametrize("to_none", [True, False])
def test_a_cut_that_begins_late_is_found_within_five_steps_with_its_place(
    regression: Any, findings: Any, to_none: bool
) -> None:
    class Task(regression):
        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            optimizer.zero_grad(set_to_none=to_none)

    (found,) = findings(Task(Net(detached)), steps=18)
    assert (found["id"], found["severity"]) == ("graph-cut", "error")
    assert found["parameters"] == INP
    assert ONSET < found["step"] <= ONSET + 5
    assert (found["evidence"]["kind"], found["evidence"]["after"]) == ("between", "net.core")
    assert f"since step {ONSET}" in found["message"]
    assert "Intended:" in found["message"]


def test_a_loss_that_is_rebuilt_late_is_named(regression: Any, findings: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss.detach().requires_grad_() if self.global_step >= ONSET else loss

    found = findings(Task(Net()), steps=16)[0]
    assert (found["id"], sorted(found["parameters"])) == ("loss-detached", sorted(INP + CORE + HEAD))
    assert ONSET < found["step"] <= ONSET + 5


def test_a_module_that_is_called_no_longer_is_a_fact_after_twenty_steps(regression: Any, findings: Any) -> None:
    (found,) = findings(regression(Net(lambda net, h: h)), steps=34, facts=True)
    assert (found["id"], found["severity"], sorted(found["parameters"])) == ("unused", "info", sorted(CORE))
    assert found["step"] == ONSET + 19


def test_a_step_without_autograd_is_named_before_torch_raises(regression: Any, findings: Any, caplog: Any) -> None:
    class Task(regression):
        @torch.no_grad()
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match="does not require grad"):
        findings(Task(Net()))
    (line,) = [record.message for record in caplog.records if record.message.startswith("autograd-off")]
    assert "calls of modules ran with autograd off" in line
    assert "Intended:" in line


def test_a_loop_that_leaves_out_backward_without_autograd_is_told_why(regression: Any, findings: Any) -> None:
    class Task(regression):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                loss = super().training_step(batch, batch_idx)
            if loss.requires_grad:
                self.manual_backward(loss)
            self.optimizers().step()

    found = findings(Task(Net()))[0]
    assert (found["id"], found["severity"], found["step"]) == ("autograd-off", "error", 0)
    assert sorted(found["parameters"]) == sorted(INP + CORE + HEAD)


def test_autograd_left_off_after_a_validation_is_named_in_a_plain_loop() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, optimizer, policy="warn") as health:
        for step in range(4):
            torch.set_grad_enabled(step < 3)
            loss = net(torch.ones(4, 3)).square().mean()
            if step < 3:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="does not require grad"):
            loss.backward()
        torch.set_grad_enabled(True)
    assert "autograd-off" in {finding.id for finding in health.monitor.findings}


def test_a_loss_without_a_graph_while_autograd_is_on_was_detached(regression: Any, findings: Any, caplog: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx).detach()

    with pytest.raises(RuntimeError, match="does not require grad"):
        findings(Task(Net()))
    assert [r.message.partition(":")[0] for r in caplog.records if "no parameter" in r.message] == ["loss-detached"]


class Experts(Net):
    """One of four second layers, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.core = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.experts[int(torch.randint(4, ()))](torch.tanh(self.inp(x)))))


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        # Re-entrant checkpointing asks for an input with a gradient.
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("build", [Experts, Checkpointed, Net])
def test_what_takes_part_now_and_then_or_hides_its_leaves_is_left_alone(
    regression: Any, findings: Any, build: type[Net]
) -> None:
    assert findings(regression(build()), steps=40) == []


def test_one_batch_without_anything_to_learn_from_is_left_alone(regression: Any, findings: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return torch.zeros((), requires_grad=True) if self.global_step in {9, 10} else loss

    assert findings(Task(Net()), steps=16) == []
