"""One chunk of Mamba-2's recurrence and its gradients: the parts that ssd.py puts together.

    within     y_i = sum over j of M_ij x_j with M_ij = (C_i B_j^T) exp(s_i - s_j) dt_j for j <= i, and D on the diagonal
    entering   what the steps add to the state at the end, sum over j of exp(s_k - s_j) dt_j x_j B_j^T
    left       what step i reads of the state at the start, exp(s_i) S C_i

s_i is the sum of dt A up to step i of the chunk. Exponents are never positive, and never so low that a product with what
they give is a denormal number: that is slow by a factor of a hundred. s_i is kept as a whole number and a rest, so that a
difference of two is exact to the last digits even after steps that forget everything.

The decay of step s is in M_ij for j < s <= i, so its gradient is the sum of dM_ij M_ij over those: of rows from s on less
columns from s on, the diagonal left out. `Gradients.decay` holds rows less columns, to be summed from the end.

Symbols: w series of the batch, m steps, h heads, p head size, g groups of heads, r heads in a group, n state. Layouts: x
and y [w, m, h, p]; B and C [w*g, m, n]; states [w*g, n, r*p], so that their products need no transposes.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Steps(NamedTuple):
    """What belongs to the steps: [b, h, c, k] for all chunks, [w, h, m] for some series of one chunk."""

    dt: Tensor
    whole: Tensor
    """s_i rounded to whole numbers,"""
    rest: Tensor
    """and what is left of it."""
    start: Tensor
    """exp(s_i): what step i has left of the state at the start."""
    end: Tensor
    """exp(s_k - s_i): what the end has left of step i."""
    alive: Tensor
    """Whether the step leaves anything at all; a gradient of its decay would be rounding errors, times a large A."""

    @classmethod
    def of(cls, dt: Tensor, A: Tensor, k: int) -> "Steps":
        """Of dt [b, t, h] and A [h], in chunks of k steps; dt is 0 where the last one is shorter."""
        b, t, h = dt.shape
        c = -(-t // k)
        dt = F.pad(dt.transpose(1, 2), (0, c * k - t)).view(b, h, c, k)
        a = dt * A[:, None, None]  # (b h c k)
        alive = a > _lowest(a)
        # Less than nothing is left nowhere, and sums of larger numbers would have fewer digits.
        a.clamp_(min=_lowest(a))
        whole = a.round()
        rest = (a - whole).cumsum(-1)
        whole = whole.cumsum(-1)
        # Summed from the end: a difference of sums would lose what is small there.
        after = F.pad(a[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
        return cls(dt, whole, rest, _exp(whole + rest), _exp(after), alive)

    def piece(self, series: slice, j: int, m: int) -> "Steps":
        """Of some series and the first m steps of chunk j."""
        return Steps(*(tensor[series, :, j, :m] for tensor in self))


class Gradients(NamedTuple):
    """Of the part within a chunk."""

    x: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    dt: Tensor
    """Of dt where it weighs x, [w, h, m]."""
    decay: Tensor
    """Rows less columns of dM M, [w, h, m]."""


def within(X: Tensor, B: Tensor, C: Tensor, D: Tensor | None, here: Steps) -> Tensor:
    """What the steps read of each other, [w, m, h, p]."""
    w = X.shape[0]
    G = _scores(B, C, w)
    return _from_head(torch.bmm(_matrix(_decay(here), G, D, here), _by_head(X)), w)


def within_backward(dY: Tensor, X: Tensor, B: Tensor, C: Tensor, D: Tensor | None, here: Steps) -> Gradients:
    w, m, h = X.shape[:3]
    G = _scores(B, C, w)  # (w g 1 m m)
    g = G.shape[1]
    L = _decay(here)  # (w h m m)
    dYh = _by_head(dY)  # (w*h m p)
    dM = torch.bmm(dYh, _by_head(X).transpose(1, 2)).view(w, h, m, m)
    dD = dM.diagonal(dim1=2, dim2=3).sum((0, 2))
    dM *= L
    Q = (dM.view(w, g, -1, m, m) * G).view(w, h, m, m)  # dM M / dt
    diagonal = Q.diagonal(dim1=2, dim2=3)  # (w h m)
    own = diagonal.clone()
    diagonal.zero_()
    columns = Q.sum(2)  # (w h m)
    rows = torch.bmm(Q.view(w * h, m, m), here.dt.reshape(w * h, m, 1)).view(w, h, m)
    dG = dM.mul_(here.dt[:, :, None]).view(w, g, -1, m, m).sum(2).view(w * g, m, m).tril_()
    dX = _from_head(torch.bmm(_matrix(L, G, D, here).transpose(1, 2), dYh), w)
    dB, dC = torch.bmm(dG.transpose(1, 2), C), torch.bmm(dG, B)  # (w*g m n)
    return Gradients(dX, dB, dC, dD, own + columns, rows - columns * here.dt)


def entering(X: Tensor, B: Tensor, here: Steps, out: Tensor, *, fresh: bool) -> Tensor:
    """What the steps add to the state [w*g, n, r*p]: added to `out`, or written there where that is fresh memory."""
    weighted = by_group(X * beside(here.dt * here.end), B.shape[0] // X.shape[0])  # (w*g m r*p)
    return out.baddbmm_(B.transpose(1, 2), weighted, beta=0 if fresh else 1)


def entering_backward(dS: Tensor, X: Tensor, B: Tensor, here: Steps) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x before its weight [w, m, h, p], of B, and of the weight [w, h, m]."""
    w, _, h, _ = X.shape
    dX = from_group(torch.bmm(B, dS), w, h)
    weighted = by_group(X * beside(here.dt * here.end), B.shape[0] // w)  # (w*g m r*p)
    return dX, torch.bmm(weighted, dS.transpose(1, 2)), (dX * X).sum(3).transpose(1, 2)


def left(S: Tensor, C: Tensor, here: Steps) -> tuple[Tensor, Tensor]:
    """What the steps read of the state and what decays it, as two factors, [w, m, h, p] and [w, m, h, 1]."""
    w, h, _ = here.start.shape
    return from_group(torch.bmm(C, S), w, h), beside(here.start)


def left_backward(dY: Tensor, S: Tensor, C: Tensor, here: Steps) -> tuple[Tensor, Tensor, Tensor]:
    """dY decayed to the start [w*g, m, r*p], whose product with C is the state's gradient, and those of C and s."""
    w, m, h, p = dY.shape
    g, n = C.shape[0] // w, C.shape[2]
    dY = dY * beside(here.start)
    heads = S.view(w, g, n, -1, p).permute(0, 1, 3, 4, 2).reshape(w * h, p, n)
    each = torch.bmm(_by_head(dY), heads).view(w, g, -1, m, n)  # (w g r m n): the gradient of C by every head
    dC = each.sum(2).view(w * g, m, n)
    return by_group(dY, g), dC, each.mul_(C.view(w, g, 1, m, n)).sum(4).view(w, h, m)


def kept(here: Steps, g: int) -> Tensor:
    """What the end has left of the state at the start, beside a state [w, g, n, r, p]: [w, g, 1, r, 1]."""
    w, h, _ = here.start.shape
    return here.start[:, :, -1].reshape(w, g, 1, h // g, 1)


def beside(v: Tensor) -> Tensor:
    """A number of every head and step, [w, h, m], beside x: [w, m, h, 1]."""
    return v.transpose(1, 2)[..., None]


def by_group(v: Tensor, g: int) -> Tensor:
    """[w, m, h, p] as [w*g, m, r*p], and [w, m, g, n] as [w*g, m, n]: views where w or g is 1."""
    w, m = v.shape[:2]
    return v.reshape(w, m, g, -1).transpose(1, 2).reshape(w * g, m, -1)


def from_group(v: Tensor, w: int, h: int) -> Tensor:
    """[w*g, m, r*p] as [w, m, h, p], and with h = g [w*g, m, n] as [w, m, g, n]."""
    return v.view(w, -1, *v.shape[1:]).transpose(1, 2).reshape(w, v.shape[1], h, -1)


def _by_head(v: Tensor) -> Tensor:
    """[w, m, h, p] as [w*h, m, p]: a view where w or h is 1."""
    return v.transpose(1, 2).reshape(-1, v.shape[1], v.shape[3])


def _from_head(v: Tensor, w: int) -> Tensor:
    """[w*h, m, p] as [w, m, h, p], a view."""
    return v.view(w, -1, v.shape[1], v.shape[2]).transpose(1, 2)


def _scores(B: Tensor, C: Tensor, w: int) -> Tensor:
    """C_i B_j^T for j <= i, [w, g, 1, m, m]: once for all heads of a group."""
    G = torch.bmm(C, B.transpose(1, 2)).tril_()
    return G.view(w, -1, 1, *G.shape[1:])


def _decay(here: Steps) -> Tensor:
    """exp(s_i - s_j) of every two steps, [w, h, m, m]; above the diagonal, where nothing is used, from 0 to 1."""
    L = here.whole[..., :, None] - here.whole[..., None, :]
    L.add_(here.rest[..., :, None]).sub_(here.rest[..., None, :])
    # A quarter of the exponents stays free for what this is multiplied with.
    return L.clamp_(0.75 * _lowest(L), 0).exp_()


def _matrix(L: Tensor, G: Tensor, D: Tensor | None, here: Steps) -> Tensor:
    """M [w*h, m, m], in the place of L."""
    w, h, m, _ = L.shape
    L.mul_(here.dt[:, :, None]).view(w, G.shape[1], -1, m, m).mul_(G)
    if D is not None:
        L.diagonal(dim1=2, dim2=3).add_(D[:, None])
    return L.view(w * h, m, m)


def _exp(log: Tensor) -> Tensor:
    """exp, and 0 where that would be no normal number."""
    lowest = _lowest(log)
    return log.clamp(min=lowest).exp_().mul_(log > lowest)


def _lowest(like: Tensor) -> float:
    return math.log(torch.finfo(like.dtype).tiny)
