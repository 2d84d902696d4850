"""The linear recurrences, word for word: one step after another, slow and obvious, the reference of all tests.

    scan       h_t = A_bar h_(t-1) + v_t                                 a dense transition, the same at every step
    ssd        h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t^T, y_t = h_t C_t   one scalar a head, chosen by the input
    diagonal   h_t = A_bar h_(t-1) + B_bar x_t, y_t = 2 Re(C h_t)          conjugate pairs of complex states, one by one

Symbols: b batch, t time, d width, n state, h heads, p head size, g groups of heads. A_bar and B_bar are discrete, v is
the input already projected into the state, dt the step that the input chooses.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def scan(A_bar: Float[Tensor, "n n"], v: Float[Tensor, "b t n"], h0: Float[Tensor, "b n"]) -> Float[Tensor, "b t n"]:
    """All states of h_t = A_bar h_(t-1) + v_t, starting from h0 (the state before the first step)."""
    h, states = h0, []
    for v_t in v.unbind(1):  # (b n)
        h = h @ A_bar.T + v_t
        states.append(h)
    return torch.stack(states, dim=1)  # (b t n)


def ssd(
    x: Float[Tensor, "b t h p"],
    dt: Float[Tensor, "b t h"],
    A: Float[Tensor, " h"],
    B: Float[Tensor, "b t g n"],
    C: Float[Tensor, "b t g n"],
    h0: Float[Tensor, "b h p n"],
) -> tuple[Float[Tensor, "b t h p"], Float[Tensor, "b h p n"]]:
    """Outputs of all steps and the last state of Mamba-2's recurrence; consecutive heads share a group's B and C."""
    heads = x.shape[2] // B.shape[2]
    h, outputs = h0, []
    for x_t, dt_t, B_t, C_t in zip(x.unbind(1), dt.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        B_t, C_t = B_t.repeat_interleave(heads, 1), C_t.repeat_interleave(heads, 1)  # (b h n)
        decay = torch.exp(dt_t * A)  # (b h)
        h = decay[..., None, None] * h + (dt_t[..., None] * x_t)[..., None] * B_t[:, :, None]  # (b h p n)
        outputs.append((h * C_t[:, :, None]).sum(-1))  # (b h p)
    return torch.stack(outputs, dim=1), h


def diagonal(
    A_bar: Complex[Tensor, "d n"],
    B_bar: Complex[Tensor, "d n"],
    C: Complex[Tensor, "d n"],
    x: Float[Tensor, "b t d"],
    h0: Complex[Tensor, "b d n"],
) -> tuple[Float[Tensor, "b t d"], Complex[Tensor, "b d n"]]:
    """Outputs of all steps and the last state, where every channel has n complex states and their conjugates."""
    h, outputs = h0, []
    for x_t in x.unbind(1):  # (b d)
        h = A_bar * h + B_bar * x_t[..., None]  # (b d n)
        outputs.append(2 * (C * h).sum(-1).real)
    return torch.stack(outputs, dim=1), h  # (b t d), (b d n)
