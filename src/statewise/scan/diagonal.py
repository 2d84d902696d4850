"""The recurrence of a complex diagonal state, fast: same results and gradients as recurrence.diagonal.

    h_t = A_bar h_(t-1) + B_bar x_t        y_t = 2 Re(sum over n of C h_t) + D x_t        each channel has its own n pairs

Without a state to start from, a channel is a causal convolution with the kernel K_l = 2 Re(sum of C A_bar^l B_bar); D only
adds to K_0. An FFT needs twice the length against wrap-around, and on a CPU it is slower than plain products at every length.
So time is cut into chunks of k steps, all by real batched products over channels:

    within    y_i += sum over j <= i of K_(i-j) x_j                   an upper triangular Toeplitz matrix from j to i
    into      s = sum over j of A_bar^(k-1-j) B_bar x_j               what a chunk adds to the state, as real pairs
    between   h_c = A_bar^k h_(c-1) + s_c                             element by element, one call per chunk
    out of    y_i += 2 Re(C A_bar^(i+1) h)                            what the state before a chunk adds to it

Cost and memory are linear in time. A length that is no multiple of k is cut in two: what is over comes first, as a chunk of
its own. Powers of A_bar are products, never exponentials of a logarithm: A_bar = 0 is no special case, nothing is divided.

All of it is one autograd function, which saves x, the states before chunks and matrices of a chunk's size. The gradient of
the powers is  dA_bar = sum over l of l conj(A_bar^(l-1)) d(A_bar^l).  What nobody asked for is not computed: a window that
begins without a state and ends without a use for it has the backward pass of its convolution only.

Symbols: b batch, t time, d channels, n conjugate pairs of a channel, k chunk length, c number of chunks.
Gradients of complex tensors are torch's: that of the real part plus i times that of the imaginary part.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewise.scan.dense import full_precision

# Crossing points on CPUs. A long chunk has the better products, a short one the smaller matrices: those are made for each
# channel in every pass, which for fewer rows (b t) than FEW_ROWS costs more than the products.
LONG_CHUNK, SHORT_CHUNK, FEW_ROWS = 64, 16, 1024


def diagonal(
    A_bar: Complex[Tensor, "d n"],
    B_bar: Complex[Tensor, "d n"],
    C: Complex[Tensor, "d n"],
    x: Float[Tensor, "b t d"],
    h0: Complex[Tensor, "b d n"] | None = None,
    D: Float[Tensor, " d"] | None = None,
    *,
    last_only: bool = False,
    chunk_size: int | None = None,
) -> tuple[Float[Tensor, "b s d"], Complex[Tensor, "b d n"]]:
    """Outputs of all steps (s = t), or of the last one only, and the last state; no h0 is zero, and cheaper.

    Differentiable once in all tensors. chunk_size changes the cost and the rounding, not the result.
    """
    b, t, _ = x.shape
    if t == 0:
        raise ValueError("the scan needs at least one time step, got a sequence of length 0")
    k = _chunk_length(b, t) if chunk_size is None else min(chunk_size, t)
    with full_precision(x):
        if t % k == 0:
            return _scan(A_bar, B_bar, C, D, x, h0, k, last_only)
        first, rest = torch.split(x, [t % k, t - t % k], dim=1)
        y, h = _scan(A_bar, B_bar, C, D, first, h0, t % k, last_only)
        y_rest, h = _scan(A_bar, B_bar, C, D, rest, h, k, last_only)
        return y_rest if last_only else torch.cat([y, y_rest], dim=1), h


def _chunk_length(b: int, t: int) -> int:
    """As few chunks as the longest one allows, all of one length where that leaves none shorter than half the longest."""
    longest = min(t, SHORT_CHUNK if b * t < FEW_ROWS else LONG_CHUNK)
    return next((k for k in range(longest, longest // 2, -1) if t % k == 0), longest)


def _scan(*arguments: Any) -> tuple[Tensor, Tensor]:
    y, h = _Diagonal.apply(*arguments)  # type: ignore[no-untyped-call]
    return y, h


class _Diagonal(torch.autograd.Function):
    """The scan of a multiple of k steps."""

    @staticmethod
    def forward(
        ctx: Any,
        A_bar: Tensor,
        B_bar: Tensor,
        C: Tensor,
        D: Tensor | None,
        x: Tensor,
        h0: Tensor | None,
        k: int,
        last_only: bool,
    ) -> tuple[Tensor, Tensor]:
        b, t, d = x.shape
        c = t // k
        X = _by_channel(x, k)  # (d b*c k)
        P = _powers(A_bar, k)  # (d k+1 n)
        into = _reals(B_bar[:, None] * P[:, :k].flip(1))  # (d k 2n)
        states = _complexes(X @ into).view(d, b, c, -1).permute(2, 0, 1, 3)  # (c d b n)
        states = _between(P[:, k], states, None if h0 is None else h0.transpose(0, 1))  # (c+1 d b n)
        last = states[-1]  # (d b n)
        # A single chunk that begins without a state has no product with the state before it.
        before = None if h0 is None and c == 1 else _rows(states[:-1])  # (d b*c n)
        toeplitz = out_of = None
        if last_only:
            y = 2 * (C[:, None] * last).real.sum(-1).T[:, None]  # (b 1 d)
            if D is not None:
                y = torch.addcmul(y, D, x[:, -1:])
        else:
            K = (_reals(P[:, :k]) @ _reals(2 * (B_bar * C).conj_physical())[..., None])[..., 0]  # (d k)
            if D is not None:
                K[:, 0] += D
            toeplitz = F.pad(K, (k - 1, 0)).unfold(1, k, 1).flip(1)  # (d k k) from j to i
            Y = X @ toeplitz  # (d b*c k)
            if before is not None:
                out_of = _reals(2 * (C[:, None] * P[:, 1:]).conj_physical())  # (d k 2n)
                Y.baddbmm_(_reals(before), out_of.transpose(1, 2))
            y = _by_step(Y, b)  # (b t d)
        ctx.save_for_backward(B_bar, C, D, P, X, into, toeplitz, out_of, before, last if last_only else None)
        ctx.batch = b
        # The state mostly ends with its window: its gradient is None then, instead of zeros.
        ctx.set_materialize_grads(False)
        return y, last.transpose(0, 1).contiguous() if c > 1 else last.transpose(0, 1)

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None and dstate is None:
            return (None,) * 8
        B_bar, C, D, P, X, into, toeplitz, out_of, before, last = ctx.saved_tensors
        (d, rows, k), b = X.shape, ctx.batch
        c = rows // b
        dA_bar, dB_bar, dC = (torch.zeros_like(C) for _ in range(3))
        dD = dh0 = G = None
        dX: Any = None
        dlast = None if dstate is None else dstate.transpose(0, 1)  # (d b n)
        with full_precision(X):
            lag = torch.arange(1, k + 1, dtype=X.dtype, device=X.device)  # (k)
            if dy is not None and last is not None:
                row = 2 * dy[:, 0].T[..., None]  # (d b 1)
                dC += (row * last.conj()).sum(1)
                dlast = row * C.conj()[:, None] + (0 if dlast is None else dlast)
                dD = None if D is None else (X.view(d, b, -1)[..., -1:] * row).sum((1, 2)) / 2
            elif dy is not None:
                G = _by_channel(dy, k)  # (d b*c k)
                dX = G @ toeplitz.transpose(1, 2)
                dK = _sums_along_diagonals(X.transpose(1, 2) @ G)  # (d k)
                dD = None if D is None else dK[:, 0]
                # Twice the sums over l of dK_l A_bar^l and of l dK_l A_bar^(l-1), as two rows of one product.
                both = 2 * torch.stack([dK, F.pad(dK[:, 1:] * lag[:-1], (0, 1))], 1)  # (d 2 k)
                dgain, dpower = _complexes(both @ _reals(P[:, :k])).conj().unbind(1)  # (d n)
                dA_bar += dpower * (B_bar * C).conj()
                dB_bar += dgain * C.conj()
                dC += dgain * B_bar.conj()
            if before is not None or dlast is not None:
                dP = torch.zeros_like(P)
                dbefore = None
                if before is not None and G is not None:
                    dout = 2 * _complexes(G.transpose(1, 2) @ _reals(before)).conj()  # (d k n)
                    dC += (dout * P[:, 1:].conj()).sum(1)
                    dP[:, 1:] += dout * C.conj()[:, None]
                    dbefore = _complexes(G @ out_of).view(d, b, c, -1).permute(2, 0, 1, 3)  # (c d b n)
                dstates = _between_backwards(P[:, k], dbefore, dlast, (c, d, b))  # (c+1 d b n)
                if c > 1 or dlast is not None:
                    dsums = _rows(dstates[1:])  # (d b*c n)
                    from_sums = (_reals(dsums), into.transpose(1, 2))
                    dX = torch.bmm(*from_sums) if dX is None else dX.baddbmm_(*from_sums)
                    dinto = _complexes(X.transpose(1, 2) @ _reals(dsums)).flip(1)  # (d k n)
                    dB_bar += (dinto * P[:, :k].conj()).sum(1)
                    dP[:, :k] += dinto * B_bar.conj()[:, None]
                    if before is not None:
                        dP[:, k] += (dsums * before.conj()).sum(1)
                dA_bar += (lag[:, None] * P[:, :k].conj() * dP[:, 1:]).sum(1)
                dh0 = dstates[0].transpose(0, 1) if ctx.needs_input_grad[5] else None
            dx = _by_step(dX, b)  # (b t d)
            if dD is not None and last is not None:
                dx[:, -1:] += D * dy
        return dA_bar, dB_bar, dC, dD, dx, dh0, None, None


def _powers(A_bar: Tensor, highest: int) -> Tensor:
    """A_bar^0, A_bar^1, ..., A_bar^highest, (d highest+1 n); by doubling, so that the number of calls is logarithmic."""
    P = A_bar.new_empty(A_bar.shape[0], highest + 1, A_bar.shape[1])
    P[:, 0], P[:, 1] = 1, A_bar
    known = 1
    while known < highest:
        more = min(known, highest - known)
        torch.mul(P[:, 1 : more + 1], P[:, known : known + 1], out=P[:, known + 1 : known + more + 1])
        known += more
    return P


def _between(decay: Tensor, sums: Tensor, h: Tensor | None) -> Tensor:
    """The states before and after every chunk, (c+1 d b n): h_c = decay h_(c-1) + sums_c from h on."""
    states = sums.new_empty(len(sums) + 1, *sums.shape[1:])  # (c+1 d b n)
    states[0], states[1:] = 0 if h is None else h, sums
    # As large as the states: broadcasting over rows of n numbers is slower.
    decay = decay[:, None].expand_as(states[0]).contiguous()  # (d b n)
    for i in range(1 if h is not None else 2, len(states)):
        states[i].addcmul_(decay, states[i - 1])
    return states


def _between_backwards(decay: Tensor, dbefore: Tensor | None, dlast: Tensor | None, sizes: tuple[int, int, int]) -> Tensor:
    """The gradients of all states, (c+1 d b n), with what flows back from chunk to chunk; all but the first are of sums."""
    c, d, b = sizes
    dstates = decay.new_zeros(c + 1, d, b, decay.shape[1])
    if dbefore is not None:
        dstates[:-1] = dbefore
    if dlast is not None:
        dstates[-1] = dlast
    decay = decay.conj()[:, None].expand_as(dstates[0]).contiguous()  # (d b n)
    for i in range(c, 0, -1):
        dstates[i - 1].addcmul_(decay, dstates[i])
    return dstates


def _sums_along_diagonals(M: Tensor) -> Tensor:
    """Of matrices (d k k) the sums over j of M[j, j + l] for l < k, (d k); what is below the main diagonal is overwritten."""
    d, k, _ = M.shape
    # k + 1 numbers on is the next element of a diagonal, and past its end a zero below the main diagonal. The last row has
    # no row after it: its one element is added apart.
    sums = M.triu_().as_strided((d, k - 1, k), (k * k, k + 1, 1)).sum(1)
    sums[:, 0] += M[:, -1, -1]
    return sums


def _by_channel(x: Tensor, k: int) -> Tensor:
    """(b t d) as rows of k steps for each channel, (d b*c k)."""
    b, t, d = x.shape
    # A transposition of two axes: torch's general permutation of three is three times slower.
    return x.reshape(b * t, d).T.contiguous().view(d, -1, k)


def _by_step(X: Tensor, b: int) -> Tensor:
    """The inverse of _by_channel."""
    d = X.shape[0]
    return X.new_empty(X[0].numel(), d).copy_(X.view(d, -1).T).view(b, -1, d)


def _rows(states: Tensor) -> Tensor:
    """(c d b n) in the order of the rows of _by_channel, (d b*c n)."""
    c, d, b, n = states.shape
    return states.permute(1, 2, 0, 3).reshape(d, b * c, n)


def _reals(z: Tensor) -> Tensor:
    """Complex (... n) as real pairs, (... 2n)."""
    return torch.view_as_real(z).flatten(-2)


def _complexes(pairs: Tensor) -> Tensor:
    """The inverse of _reals."""
    return torch.view_as_complex(pairs.view(*pairs.shape[:-1], -1, 2))
