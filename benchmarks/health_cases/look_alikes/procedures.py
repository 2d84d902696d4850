"""Further look-alikes in the procedure: data that repeat, weights written from outside, unfreezing, other optimizers."""

import copy
from collections import deque
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import BackboneFinetuning, Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from health_cases.families import BATCH
from health_cases.look_alikes.models import Net
from health_cases.look_alikes.own import Own, classes, network, numbers, own
from health_cases.set_up import Run


def regression() -> Net:
    return Net(network(8, 1))


def full_batch(run: Run) -> None:
    run.batches = DataLoader(run.batches.dataset, batch_size=250)


def one_batch(run: Run) -> None:
    run.batches = DataLoader(TensorDataset(*run.batches.dataset[:BATCH]), batch_size=BATCH)


def with_replacement(run: Run) -> None:
    few = TensorDataset(*run.batches.dataset[:12])
    run.batches = DataLoader(few, batch_size=BATCH, sampler=RandomSampler(few, replacement=True, num_samples=800))


class Stream(IterableDataset):
    """Rows without an end."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Any:
        while True:
            yield self.data[int(torch.randint(len(self.data), ()))]


def streamed(run: Run) -> None:
    run.batches = DataLoader(Stream(run.batches.dataset), batch_size=BATCH)
    run.validation, run.trainer = None, {"limit_val_batches": 0}


class UnitRows(Callback):
    """Every row of every matrix is brought back to length one after each step."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        with torch.no_grad():
            for p in pl_module.parameters():
                if p.ndim == 2:
                    p.div_(p.norm(dim=1, keepdim=True))


class Lookahead(Callback):
    """Every fifth step the weights return half of the way to where they were five steps before."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.slow = [p.detach().clone() for p in pl_module.parameters()]

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if trainer.global_step % 5 == 0:
            with torch.no_grad():
                for slow, fast in zip(self.slow, pl_module.parameters(), strict=True):
                    slow.lerp_(fast, 0.5)
                    fast.copy_(slow)


class Unfreezing(Own):
    """For Lightning's BackboneFinetuning: the optimizer begins with the head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 5)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.head(self.backbone(x)), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=self.lr)


class DeepQ(Own):
    """Q-learning: the network plays, learns from its memory, and asks a target network that is renewed every 25 steps.

    The loader only counts the steps: batches are not looked at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = network(3, 2)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.memory: deque[tuple[Tensor, int, Tensor, Tensor]] = deque(maxlen=500)
        self.place = torch.zeros(3)

    def play(self) -> None:
        action = int(torch.randint(2, ()))
        after = (0.9 * self.place + 0.3 * torch.randn(3) + (0.2 if action else -0.2)).detach()
        self.memory.append((self.place, action, -after.square().sum(), after))
        self.place = after

    def loss_of(self, batch: Any) -> Tensor:
        while len(self.memory) < 64:
            self.play()
        self.play()
        drawn = [self.memory[int(i)] for i in torch.randint(len(self.memory), (32,))]
        before, after = (torch.stack([step[i] for step in drawn]) for i in (0, 3))
        value = self.net(before).gather(1, torch.tensor([step[1] for step in drawn])[:, None])[:, 0]
        goal = torch.stack([step[2] for step in drawn]) + 0.9 * self.target(after).max(1).values
        return F.smooth_l1_loss(value, goal)

    def on_train_batch_end(self, *args: Any) -> None:
        if self.global_step % 25 == 0:
            self.target.load_state_dict(self.net.state_dict())


class Signs(torch.optim.Optimizer):
    """Lion: the sign of a running mean of gradients, with decoupled weight decay."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(mean.lerp(p.grad, 0.1).sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 0.01)
        return loss


class ByItsOwn(Net):
    """The regression under another optimizer."""

    def __init__(self, make: Any) -> None:
        super().__init__(network(8, 1))
        self.make = make

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())


class LargeLoss(Net):
    """A loss a million times as large, clipped to a norm of one: to Adam all scales are the same."""

    def loss_of(self, batch: Any) -> Tensor:
        return 1e6 * super().loss_of(batch)


def clipped(run: Run) -> None:
    run.trainer = {"gradient_clip_val": 1.0}


class TwoTasks(Own):
    """Two heads on one body; every batch has targets for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.even, self.odd = network(8, 8), nn.Linear(8, 5), nn.Linear(8, 5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        head = self.odd if batch_idx % 2 else self.even
        return F.cross_entropy(head(self.body(x)), y)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        h = self.body(x)
        return (F.cross_entropy(self.even(h), y) + F.cross_entropy(self.odd(h), y)) / 2


def called_back(*callbacks: Callback) -> Any:
    def change(run: Run) -> None:
        run.callbacks = [copy.deepcopy(callback) for callback in callbacks]

    return change


def unfreezing(run: Run) -> None:
    run.callbacks = [BackboneFinetuning(unfreeze_backbone_at_epoch=3)]


def adafactor() -> ByItsOwn:
    return ByItsOwn(lambda p: torch.optim.Adafactor(p, lr=1e-2))


SET_UPS = (
    own("X27", "the whole data set as one batch", regression, numbers, full_batch),
    own("X28", "a data set of sixteen rows", regression, numbers, one_batch),
    own("X29", "sampling with replacement", regression, numbers, with_replacement),
    own("X30", "a stream without an end", regression, numbers, streamed),
    own("X31", "rows of length one after each step", regression, numbers, called_back(UnitRows())),
    own("X32", "lookahead", regression, numbers, called_back(Lookahead())),
    own("X33", "a backbone that is unfrozen later", Unfreezing, classes, unfreezing),
    own("X34", "Q-learning from a memory", DeepQ, validated=False),
    own("X35", "an optimizer of one's own", lambda: ByItsOwn(lambda p: Signs(p, 1e-3))),
    own("X36", "Adafactor", adafactor),
    own("X37", "a large loss under clipping", lambda: LargeLoss(network(8, 1)), numbers, clipped),
    own("X38", "two tasks in turn", TwoTasks, classes),
)
