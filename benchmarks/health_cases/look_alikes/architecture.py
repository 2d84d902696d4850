"""Look-alikes in the model: zero gradients, unused parts, shared weights and buffers that are all as they should be."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from health_cases.families import VOCABULARY, WIDTH, Task, overriding
from health_cases.set_up import SetUp, before_head, changed


def inserted(block: Callable[[], nn.Module], **contract: list[str]) -> Callable[..., Any]:
    """A set-up with one more block in front of the last layer."""
    return changed(lambda task: before_head(task, block()), **contract)


def zero_head(task: Task) -> None:
    for parameter in task.head.parameters():
        nn.init.zeros_(parameter)


class ReZero(nn.Module):
    """h + gamma f(h) with gamma = 0 at first: f has no gradient in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.gamma * self.branch(h)


class LoRA(nn.Module):
    """A frozen linear layer and a trained correction of rank 2, zero at first."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(2, inner.in_features) / inner.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(inner.out_features, 2))

    @property
    def weight(self) -> Tensor:
        return self.inner.weight

    @property
    def in_features(self) -> int:
        return self.inner.in_features

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 8 * F.linear(F.linear(x, self.lora_A), self.lora_B)


def over_trainable(task: Task) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=task.lr)


def lora(task: Task) -> None:
    task.net.requires_grad_(False)
    for name, module in list(task.net.named_modules()):
        # The output projection of attention is read by its weight, not called.
        if type(module) is nn.Linear:
            parent, _, leaf = name.rpartition(".")
            setattr(task.net.get_submodule(parent), leaf, LoRA(module))
    overriding(task, configure_optimizers=over_trainable)


class LayerDrop(nn.Module):
    """A residual branch that half of the training batches skip."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        if self.training and torch.rand(()) < 0.5:
            return h
        return h + torch.tanh(self.branch(h))


class RareExpert(nn.Module):
    """Two experts, the second for one batch in ten."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += self.training
        return h + torch.tanh(self.rare(h) if self.training and self.calls % 10 == 0 else self.usual(h))


class Categories(nn.Module):
    """A table of forty rows, of which the data ever ask for eight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.table((h[..., 0].detach().sigmoid() * 8).long().clamp(0, 7))


def larger_vocabulary(task: Task) -> None:
    if isinstance(task.inp, nn.Embedding):
        setattr(task.net, task.places.inp, nn.Embedding(4 * VOCABULARY, WIDTH))
    else:
        before_head(task, Categories())


class Normed(nn.Module):
    """A bias that the batch norm behind it takes out again: its gradient is rounding noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.relu(self.norm(self.linear(h).flatten(0, -2))).view_as(h)


class Tied(nn.Module):
    """An autoencoder's residual: the same matrix on the way down and, transposed, on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bias = nn.Linear(WIDTH, 4), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h + F.linear(torch.tanh(self.down(h)), self.down.weight.T, self.bias)


class Shared(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, h: Tensor) -> Tensor:
        return h + self.second(torch.tanh(self.first(h)))


class Constants(nn.Module):
    """Tables that shape the output and are no parameters: rotations, a filter, a mask, a HiPPO matrix."""

    def __init__(self) -> None:
        super().__init__()
        angle = torch.arange(WIDTH // 2) * 0.3
        self.register_buffer("rope_cos", angle.cos())
        self.register_buffer("rope_sin", angle.sin(), persistent=False)
        self.register_buffer("fir", torch.tensor([0.25, 0.5, 0.25]))
        self.register_buffer("mask", (torch.arange(WIDTH) % 5 > 0).float())
        n = torch.arange(WIDTH, dtype=torch.float32)
        root = (2 * n + 1).sqrt()
        self.register_buffer("hippo", -torch.tril(root[:, None] * root, -1) - torch.diag(n + 1))
        self.register_buffer("never_used", torch.zeros(7))

    def forward(self, h: Tensor) -> Tensor:
        even, odd = h.flatten(0, -2).chunk(2, -1)
        turned = torch.cat([even * self.rope_cos - odd * self.rope_sin, even * self.rope_sin + odd * self.rope_cos], -1)
        smooth = F.conv1d(turned[:, None], self.fir[None, None], padding=1)[:, 0]
        return h + (smooth * self.mask + 0.001 * turned @ self.hippo.T).view_as(h)


class RunningStatistics(nn.Module):
    """Statistics as buffers that the forward pass writes: of a batch norm, an instance norm, and our own."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(WIDTH)
        self.instance = nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.lerp_(h.abs().mean(), 0.1)
        rows = self.batch(h.flatten(0, -2))
        columns = self.instance(torch.stack([rows, rows.roll(1, -1)], -1)).mean(-1)
        return h / self.scale + (rows + columns).view_as(h)


class Parametrised(nn.Module):
    """Weights computed from other parameters in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.bounded = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
        self.turning = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.turning(torch.tanh(self.bounded(torch.tanh(self.normed(h)))))


SET_UPS = (
    SetUp("T1", "the output layer starts at zero", changed(zero_head)),
    SetUp("T2a", "ReZero: a residual branch starts at zero", inserted(ReZero)),
    SetUp("T2b", "LoRA: B starts at zero, all else is frozen", changed(lora)),
    SetUp("T7a", "LayerDrop: a branch is left out of half of the batches", inserted(LayerDrop, conditional=["*branch*"])),
    SetUp("T7b", "an expert for one batch in ten", inserted(RareExpert, conditional=["*rare*"])),
    SetUp("T8", "rows of an embedding that no batch asks for", changed(larger_vocabulary)),
    SetUp("T9", "a bias before batch norm", inserted(Normed)),
    SetUp("T13a", "tied weights within a block", inserted(Tied)),
    SetUp("T13b", "two layers with one weight", inserted(Shared)),
    SetUp("T20", "rotations, filters, masks and HiPPO as buffers", inserted(Constants, constants=["*rope*", "*fir", "*mask"])),
    SetUp("T23", "running statistics, the norms' and one's own", inserted(RunningStatistics)),
    SetUp("T24", "parametrised layers", inserted(Parametrised)),
)
