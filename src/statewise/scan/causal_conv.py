"""Mamba's short convolution: causal, over time, each channel on its own.

    y_t = bias + sum over i of w_i x_(t-k+1+i)

The channels stay the last axis, as the projections before and after want them. A convolution routine made for images in
that layout is fastest where there is one, in float32 on a CPU; elsewhere it is k shifted multiply-adds, cut so that what
is added up stays in the cache. The backward is the same sum with the taps reversed.

Symbols: b batch, t time, c channels, k taps.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewise.scan.dense import full_precision

# What is worked on together on a CPU: an operand and a result of this size fit a core's cache.
CACHED_BYTES = 2**18


def causal_conv(
    x: Float[Tensor, "b t c"],
    weight: Float[Tensor, "c k"],
    bias: Float[Tensor, " c"] | None,
    past: Float[Tensor, "b k-1 c"],
    *,
    silu: bool = False,
) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "b k-1 c"]]:
    """Outputs of all steps and the inputs that the next call needs; past holds those before x, silu applies SiLU to y."""
    with full_precision(x):
        y, after = _CausalConv.apply(x, weight, bias, past, silu)  # type: ignore[no-untyped-call]
    return y, after


class _CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, silu: bool) -> tuple[Tensor, Tensor]:
        padded = torch.cat([past, x], dim=1)  # (b k-1+t c)
        y = _correlate(padded, weight, bias)  # (b t c)
        ctx.save_for_backward(x, weight, past, y if silu else None)
        ctx.set_materialize_grads(False)
        return F.silu(y) if silu else y, padded[:, x.shape[1] :].clone()

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, dy: Tensor | None, dafter: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, past, y = ctx.saved_tensors
        (b, t, c), before = x.shape, past.shape[1]
        spread = dweight = dbias = None
        if dy is not None:
            # The gradient with zeros before and after, so that the reversed taps reach past and the last inputs alike.
            framed = x.new_zeros(b, t + 2 * before, c)
            d = framed[:, before : before + t]  # (b t c)
            if y is None:
                d.copy_(dy)
            else:
                torch.ops.aten.silu_backward.grad_input(dy, y, grad_input=d)
            with full_precision(x):
                spread = _correlate(framed, weight.flip(1), None)  # (b k-1+t c), for past and x
            dweight = _taps_gradient(d, torch.cat([past, x], dim=1))  # (c k)
            # Over all rows of the frame: torch sums a cut-out many times slower.
            dbias = framed.view(-1, c).sum(0) if ctx.needs_input_grad[2] else None
        if dafter is not None:
            spread = x.new_zeros(b, before + t, c) if spread is None else spread
            spread[:, t:] += dafter
        dpast, dx = (None, None) if spread is None else (spread[:, :before], spread[:, before:])
        return dx, dweight, dbias, dpast, None


def _correlate(padded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """bias + sum over i of w_i padded_(t+i) for the steps that have all their taps, [b, t, c]."""
    b, long, c = padded.shape
    k = weight.shape[1]
    if padded.dtype == torch.float32 and padded.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        image = padded.transpose(1, 2)[:, :, None]  # (b c 1 k-1+t), the channels last in memory
        return F.conv2d(image, weight[:, None, None], bias, groups=c)[:, :, 0].transpose(1, 2)
    t = long - k + 1
    taps = weight.t().contiguous()  # (k c)
    y = padded.new_empty(b, t, c)
    for series, steps in _pieces(b, t, c, padded):
        piece, source = y[series, steps], padded[series, steps.start :]
        m = piece.shape[1]
        if bias is None:
            torch.mul(source[:, :m], taps[0], out=piece)
        else:
            torch.addcmul(bias, source[:, :m], taps[0], out=piece)
        for i in range(1, k):
            piece.addcmul_(source[:, i : i + m], taps[i])
    return y


def _taps_gradient(d: Tensor, padded: Tensor) -> Tensor:
    """dw_i = sum over b and t of d_t padded_(t+i), [c, k]."""
    (b, t, c), k = d.shape, padded.shape[1] - d.shape[1] + 1
    if d.device.type != "cpu":
        return torch.stack([(d * padded[:, i : i + t]).sum((0, 1)) for i in range(k)], dim=1)
    pieces = list(_pieces(b, t, c, d))
    # Piece is added to piece, and only their sum is summed: half the passes of a sum for each.
    total = d.new_zeros(k, *d[pieces[0]].shape)
    for series, steps in pieces:
        piece, source = d[series, steps], padded[series, steps.start :]
        w, m = piece.shape[:2]
        for i, sums in enumerate(total[:, :w, :m]):
            sums.addcmul_(piece, source[:, i : i + m])
    return total.flatten(1, 2).sum(1).T


def _pieces(b: int, t: int, c: int, like: Tensor) -> Iterator[tuple[slice, slice]]:
    """Ranges of the batch and of time that together are everything; one of all on an accelerator."""
    rows = b * t if like.device.type != "cpu" else max(1, CACHED_BYTES // (c * like.element_size()))
    series = max(1, rows // t)
    for first in range(0, b, series):
        for start in range(0, t, rows):
            yield slice(first, first + series), slice(start, min(t, start + rows))
