"""Gradients and updates that go missing between backward and the values are named by what happened to them."""

from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches.*"),
    pytest.mark.filterwarnings("ignore:.*GPU available.*"),
]
ALL = {"net.1.weight", "net.1.bias", "net.3.weight", "net.3.bias"}


class Task(L.LightningModule):
    """Two layers and plain descent; `late` is the step at which a fault begins."""

    late = 0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 1))

    @property
    def begun(self) -> bool:
        return self.global_step >= self.late

    def loss(self, batch: Any) -> Tensor:
        return F.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(Task):
    """The same in a loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        self.between(optimizer)
        optimizer.step()

    def between(self, optimizer: Any) -> None:
        pass


class NeverCleared(Task):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if not self.begun:
            optimizer.zero_grad()


class NeverClearedLate(NeverCleared):
    late = 7


class HeadNeverCleared(Task):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        self.net[1].zero_grad()


class ClearedInBetween(Manual):
    def between(self, optimizer: Any) -> None:
        if self.begun:
            optimizer.zero_grad(set_to_none=False)


class ClearedInBetweenLate(ClearedInBetween):
    late = 7


class ClippedToZero(Manual):
    def between(self, optimizer: Any) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 0.0)


class ClippedToNothing(Task):
    def configure_gradient_clipping(self, optimizer: Any, *arguments: Any, **settings: Any) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 1e-7 if self.begun else 1.0)


class ClippedToNothingLate(ClippedToNothing):
    late = 7


class LeavesEarly(Task):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        if self.begun:
            closure()
        else:
            optimizer.step(closure=closure)


class LeavesEarlyLate(LeavesEarly):
    late = 7


class Declining(torch.optim.Adam):
    """Makes no step where the gradient is larger than its threshold."""

    def step(self, closure: Any = None) -> Any:
        return None if closure is None else closure()


class Declines(Task):
    def configure_optimizers(self) -> Any:
        return Declining(self.parameters(), lr=0.1)


class Recreated(Task):
    late = 3

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step == self.late:
            self.net[1].weight = nn.Parameter(self.net[1].weight.detach().clone())
        return self.loss(batch)


class Pinned(Task):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def on_train_batch_end(self, *rest: Any) -> None:
        with torch.no_grad():
            self.net[1].weight.clamp_(-1e-5, 1e-5)


class PutBack(Task):
    late = 7

    def on_train_batch_end(self, *rest: Any) -> None:
        if self.global_step == self.late:
            self.kept = self.net[1].weight.detach().clone()
        elif self.global_step > self.late:
            self.net[1].weight.data.copy_(self.kept)


@pytest.mark.parametrize(
    ("make", "expected", "names", "latest"),
    [
        (NeverCleared, "gradients-not-cleared", ALL, 5),
        (NeverClearedLate, "gradients-not-cleared", ALL, 12),
        (HeadNeverCleared, "gradients-not-cleared", {"net.3.weight", "net.3.bias"}, 5),
        (ClearedInBetween, "gradients-cleared", ALL, 5),
        (ClearedInBetweenLate, "gradients-cleared", ALL, 12),
        (ClippedToZero, "clipped-to-nothing", ALL, 5),
        (ClippedToNothing, "clipped-to-nothing", ALL, 5),
        (ClippedToNothingLate, "clipped-to-nothing", ALL, 12),
        (LeavesEarly, "no-optimizer-step", ALL, 3),
        (LeavesEarlyLate, "steps-skipped", ALL, 17),
        (Declines, "steps-skipped", ALL, 10),
        (Recreated, "parameter-recreated", {"net.1.weight"}, 5),
        (Pinned, "pinned-at-bound", {"net.1.weight"}, 23),
        (PutBack, "written-back", {"net.1.weight"}, 12),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_fault_is_named_with_its_parameters_in_time(
    make: type[Task], expected: str, names: set[str], latest: int, findings: Any
) -> None:
    first, *others = findings(make(), steps=24, trainer={"max_epochs": 5})
    assert not [other["id"] for other in others if other["step"] <= latest]
    assert first["id"] == expected
    assert set(first["parameters"]) == names
    assert first["step"] <= latest
    assert ". Intended: " in first["message"]


class AccumulatesByHand(Manual):
    """Four backward passes to a step."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 4)
        if batch_idx % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


class ClearsToZeros(Task):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


class Adversarial(Task):
    """The first layer's loss fills the head's gradients too; those are cleared before their own backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[place].parameters(), lr=0.05) for place in (1, 3)]


class SearchesLines(Task):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class ClampsSome(Task):
    def on_train_batch_end(self, *rest: Any) -> None:
        with torch.no_grad():
            self.net[1].weight.clamp_(-0.15, 0.15)


class ClipsAsUsual(Task):
    def configure_gradient_clipping(self, optimizer: Any, *arguments: Any, **settings: Any) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 1e-2)


class LeavesOutSome(Task):
    """Two steps at the start are left out, as a loss scaler does."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        if batch_idx < 2 and self.trainer.current_epoch == 0:
            closure()
        else:
            optimizer.step(closure=closure)


class SwapsForValidation(Task):
    """Other weights while an epoch ends, the own ones again afterwards."""

    def on_train_epoch_end(self) -> None:
        own = self.net[1].weight.detach().clone()
        self.net[1].weight.data.zero_()
        self.net[1].weight.data.copy_(own)


@pytest.mark.parametrize(
    "make",
    [AccumulatesByHand, ClearsToZeros, Adversarial, SearchesLines, ClampsSome, ClipsAsUsual, LeavesOutSome, SwapsForValidation],
)
def test_a_healthy_look_alike_is_left_in_peace(make: type[Task], findings: Any) -> None:
    assert findings(make(), steps=26, trainer={"max_epochs": 12}) == []
