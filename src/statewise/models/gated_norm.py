"""RMSNorm of a gated stream, norm(y silu(z)), as Mamba-2 has it (Dao and Gu 2024, arXiv 2405.21060).

    u = y silu(z)        output = weight u / sqrt(mean(u^2) + eps)

One autograd function that keeps y, z and the roots only, row by row in pieces that stay in the cache: written with torch's
own operations it is a dozen passes over the stream, and as many tensors to remember.

Symbols: r rows (batch and time), d width, g groups of channels that are normalised each by itself.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from statewise.scan.dense import full_precision

# Numbers that are worked on together on a CPU: an operand and a result of this size fit a core's cache.
CACHED_NUMBERS = 2**16


class GatedRMSNorm(nn.Module):
    """Multiply by silu(gate), divide by the root mean square of each group of channels, multiply by the weight."""

    def __init__(self, width: int, *, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, y: Float[Tensor, "*b d"], gate: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        weight = self.weight.to(y.dtype)
        normed: Tensor = _GatedNorm.apply(y, gate, weight, self.groups, self.eps)  # type: ignore[no-untyped-call]
        return normed

    def plain(self, y: Float[Tensor, "*b d"], gate: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The same, written down with torch's own operations: the definition, and faster for a single step."""
        u = (y * F.silu(gate)).view(*y.shape[:-1], self.groups, -1)  # (... g d/g)
        normed = u * torch.rsqrt(u.square().mean(-1, keepdim=True) + self.eps)
        return normed.view(y.shape) * self.weight.to(y.dtype)


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, z: Tensor, weight: Tensor, groups: int, eps: float) -> Tensor:
        d = y.shape[-1]
        out = torch.empty_like(y, memory_format=torch.contiguous_format)
        scale = y.new_empty(y.numel() // d, groups)  # (r g): one over the root mean square
        flat = [tensor.reshape(-1, d) for tensor in (y, z, out)]
        for rows, columns in _pieces(scale.shape[0], d, groups, y):
            y_, z_, out_ = (tensor[rows, columns] for tensor in flat)
            u = F.silu(z_).mul_(y_)
            root = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
            s = torch.rsqrt_(root.square_().div_(u.shape[1]).add_(eps))  # (r 1)
            torch.mul(u, s, out=out_).mul_(weight[columns])
            scale[rows, columns.start * groups // d] = s[:, 0]
        ctx.save_for_backward(y, z, weight, scale)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        y, z, weight, scale = ctx.saved_tensors
        d, groups = y.shape[-1], scale.shape[1]
        dy, dz = (torch.empty_like(y, memory_format=torch.contiguous_format) for _ in range(2))
        dweight = torch.zeros_like(weight)
        flat = [tensor.reshape(-1, d) for tensor in (y, z, g, dy, dz)]
        with full_precision(y):
            for rows, columns in _pieces(scale.shape[0], d, groups, y):
                y_, z_, g_, dy_, dz_ = (tensor[rows, columns] for tensor in flat)
                s, w = scale[rows, columns.start * groups // d], weight[columns]  # (r), (d/g)
                gate = F.silu(z_)
                u = gate * y_
                along = u * g_
                dweight[columns].addmv_(along.T, s)
                # du = s w g - u s^3 mean(u w g)
                share = torch.mv(along, w).mul_(s).mul_(s).mul_(s).div_(-u.shape[1])  # (r)
                du = torch.mul(g_, w, out=along).mul_(s[:, None]).addcmul_(u, share[:, None])
                torch.mul(du, gate, out=dy_)
                torch.ops.aten.silu_backward.grad_input(du.mul_(y_), z_, grad_input=dz_)
        return dy, dz, dweight, None, None


def _pieces(rows: int, d: int, groups: int, like: Tensor) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows and of one group's channels that together are everything; all rows at once on an accelerator."""
    width = d // groups
    step = rows if like.device.type != "cpu" else max(1, CACHED_NUMBERS // width)
    for start in range(0, rows, step):
        for column in range(0, d, width):
            yield slice(start, start + step), slice(column, column + width)
