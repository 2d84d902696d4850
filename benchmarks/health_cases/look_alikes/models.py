"""Further look-alikes in the model: frozen norms, sparse units and gradients, fixed tables, complex and computed weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from health_cases.look_alikes.own import Own, classes, network, numbers, own
from health_cases.set_up import Run


class Net(Own):
    """Any network under the mean squared error."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*blocks)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(self.net(x), y)


class Residual(nn.Module):
    """x + f(x), with f left out for some rows in training (stochastic depth)."""

    def __init__(self, branch: nn.Module, left_out: float = 0.0) -> None:
        super().__init__()
        self.branch, self.left_out = branch, left_out

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), *[1] * (x.ndim - 1)) >= self.left_out if self.training else 1.0
        return x + self.branch(x) * kept


class FineTuned(Own):
    """A pretrained convolution whose batch norms are frozen and stay in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16))
        self.head = nn.Linear(16, 5)

    def train(self, mode: bool = True) -> "FineTuned":
        super().train(mode)
        for module in self.body.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval().requires_grad_(False)
        return self

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.head(torch.relu(self.body(x))), y)


class TopK(nn.Module):
    """Only the two largest of 64 units stay: 97 % are zero, different ones for each row."""

    def forward(self, h: Tensor) -> Tensor:
        value, place = torch.relu(h).topk(2, -1)
        return torch.zeros_like(h).scatter(-1, place, value)


class SparseAutoencoder(Own):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.sparse, self.decoder = nn.Linear(8, 64), TopK(), nn.Linear(64, 8)

    def loss_of(self, batch: Any) -> Tensor:
        x, _ = batch
        return F.mse_loss(self.decoder(self.sparse(self.encoder(x))), x)


class FourierFeatures(nn.Module):
    """Tancik's: fixed random directions, called B in the paper and in most code."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("B", torch.randn(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([(x @ self.B).sin(), (x @ self.B).cos()], -1)


class Rollout(nn.Module):
    """Euler steps of a learned field, with a fixed step size dt."""

    def __init__(self) -> None:
        super().__init__()
        self.field = network(8, 8)
        self.dt = torch.tensor(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.dt * self.field(x)
        return x


class HyperNetwork(Own):
    """Weights of one network are the output of another."""

    def __init__(self) -> None:
        super().__init__()
        self.template = nn.Linear(8, 1).requires_grad_(False)
        self.maker = network(4, 9)
        self.code = nn.Parameter(torch.randn(4))

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        made = self.maker(self.code)
        weights = {"weight": made[None, :8], "bias": made[8:]}
        return F.mse_loss(functional_call(self.template, weights, (x,)), y)


class Complex(nn.Module):
    """A Fourier layer with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)


class Experts(nn.Module):
    """Each row goes to the expert that the router likes best; some experts wait for long."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 6)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, share[rows, None] * expert(x[rows]))
        return x + out


class WideNorm(nn.Module):
    """Llama's: the norm in float32 within a bf16 model."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


class SparseEmbedding(Own):
    """Sparse gradients, with the optimizer that takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.table, self.head = nn.Embedding(60, 8, sparse=True), network(8, 5)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.head(self.table((x * 3).long().clamp(-9, 9) + 10).mean(1)), y)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SparseAdam(self.table.parameters(), lr=1e-2), torch.optim.Adam(self.head.parameters(), lr=1e-2)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.loss_of(batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()


def half(run: Run) -> None:
    run.trainer = {"precision": "bf16-true"}


SET_UPS = (
    own("X16", "batch norms frozen in evaluation mode", FineTuned, classes),
    own("X17", "a sparse autoencoder", SparseAutoencoder, numbers),
    own("X18", "Fourier features with a buffer B", lambda: Net(FourierFeatures(), network(32, 1))),
    own("X19", "Euler steps of size dt", lambda: Net(Rollout(), nn.Linear(8, 1))),
    own("X21", "a hypernetwork", HyperNetwork),
    own("X22", "complex weights", lambda: Net(Complex(), network(8, 1))),
    own("X23", "experts chosen by a router", lambda: Net(Experts(), network(8, 1))),
    own("X24", "stochastic depth", lambda: Net(Residual(network(8, 8), 0.3), Residual(network(8, 8), 0.5), nn.Linear(8, 1))),
    own("X25", "a float32 norm within a bf16 model", lambda: Net(nn.Linear(8, 8), WideNorm(), nn.Linear(8, 1)), numbers, half),
    own("X26", "sparse gradients", SparseEmbedding, classes),
)
