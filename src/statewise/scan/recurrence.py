"""The linear recurrence, word for word: one step after another, slow and obvious, the reference of all tests.

Symbols: b batch, t time, n state. A_bar is the discrete transition, v the input already projected into the state.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def scan(A_bar: Float[Tensor, "n n"], v: Float[Tensor, "b t n"], h0: Float[Tensor, "b n"]) -> Float[Tensor, "b t n"]:
    """All states of h_t = A_bar h_(t-1) + v_t, starting from h0 (the state before the first step)."""
    h, states = h0, []
    for v_t in v.unbind(1):  # (b n)
        h = h @ A_bar.T + v_t
        states.append(h)
    return torch.stack(states, dim=1)  # (b t n)
