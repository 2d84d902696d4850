"""Parameters cut by torch's fully_shard, on a mesh of one process: who is who, and what long runs are watched for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from statewise.health import watch
from statewise.health.steps.duty import BURST, FULL_STEPS, LONGEST_PAUSE, Duty

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.*all_gather_into_tensor. is deprecated")


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(3, 8)
        self.core = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)
        self.still = False

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inp(x))
        core = self.core(h)
        return self.head(torch.tanh(core if not self.still else core.detach() + 0.0 * core))


def train(mesh: Any, steps: int, still_from: int | None = None, **settings: Any) -> Any:
    """As fully_shard is used: block by block, and the outermost module, which stays whole after a validation pass."""
    model = Net()
    fully_shard(model.core, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    with watch(model, optimizer, policy="warn", planned_steps=steps, **settings) as health:
        for step in range(steps):
            model.train()
            model.still = still_from is not None and step >= still_from
            x = torch.randn(16, 3, generator=generator)
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    model(x)
    return health


@pytest.mark.parametrize("steps", [60, 420])
def test_a_healthy_run_has_no_findings(mesh: Any, steps: int) -> None:
    report = train(mesh, steps).report()
    assert report["findings"] == []
    assert report["verdict"] == "healthy"
    ran = {check["name"] for check in report["checks"] if check["ran"]}
    assert {"not-in-optimizer", "graph-cut", "zero-gradient", "update-lost-to-rounding", "parameter-recreated"} <= ran


def test_a_gradient_that_vanishes_late_is_met_by_the_next_burst(mesh: Any) -> None:
    found = train(mesh, FULL_STEPS + LONGEST_PAUSE + 60, still_from=FULL_STEPS + 10).findings
    assert [finding.id for finding in found] == ["zero-gradient"]
    assert {"inp.weight", "core.weight"} <= set(found[0].parameters)
    assert FULL_STEPS + 10 < found[0].step <= FULL_STEPS + LONGEST_PAUSE + 30


def test_a_forgotten_parameter_is_named_by_its_own_name(mesh: Any) -> None:
    model = Net()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if name != "core.weight"], lr=1e-3)
    with watch(model, optimizer, policy="warn") as health:
        for _ in range(3):
            F.mse_loss(model(torch.randn(16, 3)), torch.zeros(16, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [(finding.id, finding.parameters) for finding in health.findings] == [("not-in-optimizer", ("core.weight",))]


def test_processes_that_count_together_watch_by_the_number_of_steps() -> None:
    duty = Duty(clock=lambda: 0.0)
    duty.planned, duty.by_count = 2000, True
    watched = [duty.next(suspicion=False) for _ in range(1000)]
    assert all(watched[: FULL_STEPS - 1])
    assert sum(watched[FULL_STEPS : FULL_STEPS + LONGEST_PAUSE - 1]) <= 1
    assert sum(watched[FULL_STEPS : FULL_STEPS + 2 * (LONGEST_PAUSE + BURST)]) == pytest.approx(2 * BURST, abs=2)
    assert duty.next(suspicion=True), "a suspicion is followed up at once"
