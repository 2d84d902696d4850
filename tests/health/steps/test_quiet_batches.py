"""Batches of a long run that nobody watches: what is seen in them all the same, through real fits."""

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from statewise.callbacks.training_health import TrainingHealth
from statewise.health.steps import duty

ONSET = 100


class Network(L.LightningModule):
    """Goes wrong, in the way it is told, when so many steps were made."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.first, self.drop, self.last = nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)
        self.slept: list[bool] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        late = self.global_step >= ONSET
        if late and self.fault == "evaluation-mode":
            self.eval()
        hidden = torch.tanh(self.first(batch))
        if late and self.fault == "graph":
            hidden = hidden.detach()
        return (self.last(self.drop(hidden)) - batch.sum(1, keepdim=True)).square().mean()

    def on_train_batch_end(self, *rest: object) -> None:
        self.slept.append(next(c for c in self.trainer.callbacks if isinstance(c, TrainingHealth)).monitor.attention.asleep)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fitted(fault: str, monkeypatch: pytest.MonkeyPatch, steps: int = 160, **trainer: object) -> tuple[Network, TrainingHealth]:
    # Nothing may be spent: after the beginning only a suspicion, on credit, is followed up.
    monkeypatch.setattr(duty, "allowance", lambda step: 0.0)
    module, health = Network(fault), TrainingHealth(policy="warn")

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *rest: object) -> None:
            trainer.should_stop = trainer.global_step >= steps

    L.Trainer(
        accelerator="cpu",
        max_steps=1000,
        callbacks=[health, Stop()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **trainer,
    ).fit(module, DataLoader(torch.randn(2000, 8, generator=torch.Generator().manual_seed(1)), batch_size=4))
    return module, health


def test_most_batches_are_slept_through_and_a_healthy_run_stays_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    module, health = fitted("none", monkeypatch)
    assert not any(module.slept[: duty.FULL_STEPS])
    assert sum(module.slept[duty.FULL_STEPS + 10 :]) > 70
    assert health.monitor.findings == []
    assert health.monitor.run is not None
    assert health.monitor.run.batch == 160


def test_slept_batches_of_an_accumulating_loop_end_between_two_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    module, health = fitted("none", monkeypatch, steps=100, accumulate_grad_batches=3)
    assert any(module.slept)
    assert health.monitor.findings == []
    # A nap covers whole updates.
    assert all(
        (number + 1) % 3 == 0 for number in range(1, len(module.slept)) if module.slept[number] > module.slept[number - 1]
    )


@pytest.mark.parametrize(
    ("fault", "finding", "latest"),
    [("graph", "graph-cut", 40), ("evaluation-mode", "evaluation-mode", 6)],
)
def test_a_late_fault_is_met_in_a_quiet_stretch(fault: str, finding: str, latest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, health = fitted(fault, monkeypatch)
    found = {one.id: one.step for one in health.monitor.findings}
    assert finding in found
    assert ONSET <= found[finding] <= ONSET + latest
