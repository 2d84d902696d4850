"""Mamba-2's recurrence, fast: same results and gradients as recurrence.ssd.

    h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t^T        y_t = h_t C_t (+ D x_t)

Dao and Gu, "Transformers are SSMs" (2024, arXiv 2405.21060), section 6: inside a chunk of steps the recurrence is a
product with a masked matrix, between chunks it is a state. The parts of a chunk are in ssd_chunk.py.

What makes it fast on a CPU: the decay is one exp of differences; C B^T is made once for all heads of a group; no product
needs a transposed copy of a state; the batch is cut so that what belongs to a chunk stays in the cache; and one autograd
function keeps its arguments and the states between chunks only, and computes the rest again in its backward. A sequence of
one chunk from no state has no state at all, but for its end.

Symbols: b batch, t time, h heads, p head size, g groups of heads, r heads in a group, n state, k steps of a chunk, c number
of chunks, w series of the batch that are worked on together, m steps of one chunk (the last may be shorter).
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewise.scan import ssd_chunk as chunk
from statewise.scan.dense import full_precision

# Numbers in the matrices of a chunk that are worked on together on a CPU: fewer pay for the calls, more leave the cache.
CACHED_NUMBERS = 2**17


def ssd(
    x: Float[Tensor, "b t h p"],
    dt: Float[Tensor, "b t h"],
    A: Float[Tensor, " h"],
    B: Float[Tensor, "b t g n"],
    C: Float[Tensor, "b t g n"],
    h0: Float[Tensor, "b h p n"] | None = None,
    *,
    D: Float[Tensor, " h"] | None = None,
    chunk_size: int = 64,
    last_only: bool = False,
) -> tuple[Float[Tensor, "b s h p"], Float[Tensor, "b h p n"]]:
    """Outputs of all steps (s = t), or of the last one (s = 1), and the last state; h0 None means zeros, and is faster.

    dt must not be negative, A not positive. All is computed in the widest dtype of the arguments, float32 or wider; the
    outputs have the dtype of x, the state keeps the wide one. Differentiable once in all tensors.

    Raises:
        ValueError: there is no time step.
    """
    if x.shape[1] == 0:
        raise ValueError("the scan needs at least one time step, got a sequence of length 0")
    narrow, wide = x.dtype, torch.float32
    for tensor in (x, dt, A, B, C, h0, D):
        wide = wide if tensor is None else torch.promote_types(wide, tensor.dtype)
    x, dt, A, B, C = (tensor.to(wide) for tensor in (x, dt, A, B, C))
    h0, D = (None if tensor is None else tensor.to(wide) for tensor in (h0, D))
    with full_precision(A):
        if last_only:
            y, h = _last(x, dt, A, B, C, h0, D)
        else:
            y, h = _SSD.apply(x, dt, A, B, C, h0, D, chunk_size, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return y.to(narrow), h


def _last(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor | None, D: Tensor | None) -> tuple[Tensor, Tensor]:
    """The last output and state: what every step adds to the state is weighted by all that comes after it."""
    h: Tensor = _LastState.apply(x, dt, A, B, h0)  # type: ignore[no-untyped-call]
    read = C[:, -1].repeat_interleave(x.shape[2] // B.shape[2], 1)  # (b h n)
    # No product of torch's, which a backward under mixed precision would round.
    y = (h * read[:, :, None]).sum(3)  # (b h p)
    return (y if D is None else torch.addcmul(y, D[:, None], x[:, -1]))[:, None], h


class _SSD(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        h0: Tensor | None,
        D: Tensor | None,
        chunk_size: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        (b, t, h, p), (g, n) = x.shape, B.shape[2:]
        k = min(chunk_size, t)
        c = -(-t // k)
        steps = chunk.Steps.of(dt, A, k)
        y = x.new_empty(b, t, h, p)
        first = None if h0 is None else _rows(h0, g)
        # At the ends of the chunks; without a backward one place will do.
        states = x.new_empty(c if keep else 1, b * g, n, h // g * p)
        for series, chunks in _pieces(b, t, h, k, x):
            part = slice(series.start * g, series.stop * g)
            S = None if first is None else first[part]  # (w*g n r*p)
            for j, span in chunks:
                X, Bs, Cs = x[series, span], *(chunk.by_group(v[series, span], g) for v in (B, C))
                here = steps.piece(series, j, X.shape[1])
                Y = chunk.within(X, Bs, Cs, D, here)  # (w m h p)
                new = states[j if keep else 0, part]
                if S is None:
                    y[series, span] = Y
                else:
                    torch.addcmul(Y, *chunk.left(S, Cs, here), out=y[series, span])
                    torch.mul(_apart(S, g, p), chunk.kept(here, g), out=_apart(new, g, p))
                S = chunk.entering(X, Bs, here, out=new, fresh=S is None)
        ctx.save_for_backward(x, dt, A, B, C, D, first, states[:-1] if c > 1 else None)
        ctx.k = k
        ctx.set_materialize_grads(False)
        return y, _state(states[-1].clone() if len(states) > 1 else states[0], b, h)

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, first, states = ctx.saved_tensors
        (b, t, h, p), (g, n), k = x.shape, B.shape[2:], ctx.k
        c = -(-t // k)
        with full_precision(A):
            dy = torch.zeros_like(x) if dy is None else dy
            steps = chunk.Steps.of(dt, A, k)
            dx, dB, dC = x.new_empty(b, t, h, p), x.new_empty(b, t, g, n), x.new_empty(b, t, g, n)
            dD = None if D is None else torch.zeros_like(D)
            # Of dt as a weight; of the decays, to be summed from the end, from the start, and the same for a whole chunk.
            weights, until, since, across = (x.new_zeros(b, h, c, k) for _ in range(4))
            dlast = None if dh is None else _rows(dh, g)
            dfirst = torch.empty_like(first) if ctx.needs_input_grad[5] else None
            for series, chunks in _pieces(b, t, h, k, x):
                part = slice(series.start * g, series.stop * g)
                dS = None if dlast is None else dlast[part]  # (w*g n r*p)
                for j, span in reversed(chunks):
                    X, Bs, Cs = x[series, span], *(chunk.by_group(v[series, span], g) for v in (B, C))
                    (w, m), dY = X.shape[:2], dy[series, span]
                    here, place = steps.piece(series, j, m), (series, slice(None), j, slice(m))
                    S = states[j - 1, part] if j else None if first is None else first[part]
                    dX, dBs, dCs, own, weights[place], until[place] = chunk.within_backward(dY, X, Bs, Cs, D, here)
                    if dD is not None:
                        dD += own
                    if dS is None:
                        dx[series, span] = dX
                    else:
                        back, more, dweight = chunk.entering_backward(dS, X, Bs, here)
                        dBs += more
                        torch.addcmul(dX, back, chunk.beside(here.dt * here.end), out=dx[series, span])
                        weights[place].addcmul_(dweight, here.end)
                        since[place] = dweight * here.dt * here.end
                    if S is not None:
                        dY, more, read = chunk.left_backward(dY, S, Cs, here)
                        dCs += more
                        until[place] += read
                        if dS is not None:
                            passed = _apart(dS, g, p) * chunk.kept(here, g)  # (w g n r p)
                            across[place] = (passed * _apart(S, g, p)).sum((2, 4)).view(w, h, 1)
                            dS = passed.view_as(dS)
                        if j or dfirst is not None:
                            more = torch.bmm(Cs.transpose(1, 2), dY)
                            dS = more if dS is None else dS.add_(more)
                    dB[series, span], dC[series, span] = chunk.from_group(dBs, w, g), chunk.from_group(dCs, w, g)
                if dfirst is not None and dS is not None:
                    dfirst[part] = dS
            da = until.flip(3).cumsum(3).flip(3) + _before(since) + across  # (b h c k)
            da *= steps.alive
            ddt = (weights + da * A[:, None, None]).view(b, h, c * k)[:, :, :t].transpose(1, 2)
            dA = (da * steps.dt).sum((0, 2, 3))
        return dx, ddt, dA, dB, dC, None if dfirst is None else _state(dfirst, b, h), dD, None, None


class _LastState(torch.autograd.Function):
    """The state after the last step alone: all steps are one chunk, without its matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, h0: Tensor | None) -> Tensor:
        (b, t, h, p), g = x.shape, B.shape[2]
        steps = chunk.Steps.of(dt, A, t).piece(slice(None), 0, t)  # (b h t)
        S = x.new_empty(b * g, B.shape[3], h // g * p)  # (b*g n r*p)
        first = None if h0 is None else _rows(h0, g)
        if first is not None:
            torch.mul(_apart(first, g, p), chunk.kept(steps, g), out=_apart(S, g, p))
        chunk.entering(x, chunk.by_group(B, g), steps, out=S, fresh=first is None)
        ctx.save_for_backward(x, dt, A, B, first)
        return _state(S, b, h)

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        x, dt, A, B, first = ctx.saved_tensors
        (b, t, h, p), g = x.shape, B.shape[2]
        with full_precision(A):
            steps = chunk.Steps.of(dt, A, t).piece(slice(None), 0, t)  # (b h t)
            dS, dh0 = _rows(dh, g), None
            dx, dB, dweight = chunk.entering_backward(dS, x, chunk.by_group(B, g), steps)
            da = _before(dweight * steps.dt * steps.end)  # (b h t)
            if first is not None:
                passed = _apart(dS, g, p) * chunk.kept(steps, g)  # (b g n r p)
                da += (passed * _apart(first, g, p)).sum((2, 4)).view(b, h, 1)
                dh0 = _state(passed.view_as(dS), b, h)
            da *= steps.alive
            ddt = torch.addcmul(da * A[:, None], dweight, steps.end).transpose(1, 2)
            dA = (da * steps.dt).sum((0, 2))
            return dx.mul_(chunk.beside(steps.dt * steps.end)), ddt, dA, chunk.from_group(dB, b, g), dh0


def _pieces(b: int, t: int, h: int, k: int, like: Tensor) -> Iterator[tuple[slice, list[tuple[int, slice]]]]:
    """Series that are worked on together, and the number and the steps of every chunk."""
    together = max(1, CACHED_NUMBERS // (h * k * k)) if like.device.type == "cpu" else b
    chunks = [(j, slice(start, min(start + k, t))) for j, start in enumerate(range(0, t, k))]
    for start in range(0, b, together):
        yield slice(start, min(start + together, b)), chunks


def _before(v: Tensor) -> Tensor:
    """The sum of what comes before every step."""
    return F.pad(v[..., :-1], (1, 0)).cumsum(-1)


def _rows(h: Tensor, g: int) -> Tensor:
    """A state [b, h, p, n] as [b*g, n, r*p]."""
    b, heads, p, n = h.shape
    return h.reshape(b, g, heads // g, p, n).permute(0, 1, 4, 2, 3).reshape(b * g, n, -1)


def _state(S: Tensor, b: int, h: int) -> Tensor:
    """[b*g, n, r*p] as a state [b, h, p, n], a view where g is 1."""
    g, n = S.shape[0] // b, S.shape[1]
    return S.view(b, g, n, h // g, -1).permute(0, 1, 3, 4, 2).reshape(b, h, -1, n)


def _apart(S: Tensor, g: int, p: int) -> Tensor:
    """[w*g, n, r*p] as [w, g, n, r, p]."""
    return S.view(-1, g, S.shape[1], S.shape[2] // p, p)
