"""The recurrence h_t = A_bar h_(t-1) + v_t for a dense A_bar, fast: same results and gradients as recurrence.py.

The arithmetic is small; what costs is the number of torch calls and what autograd keeps. So the whole scan is one
autograd function that saves A_bar and h only. Its backward is the same scan, run backwards with A_bar^T:

    a_t = g_t + A_bar^T a_(t+1),    dv = a,    dh0 = A_bar^T a_0,    dA_bar = sum over t of a_t h_(t-1)^T

`scan` is that and nothing else. `ssm` puts the layer's two products around it, v = step B x before and y = C h after,
each once over all steps, in one function as well: it saves x and h, and v never enters the graph. The step stays apart
from B, because making B_bar = step B and differentiating it costs a tenth of a layer's time.

Three forms, chosen by size and device. They never divide and never diagonalise, so that defective and non-normal
matrices are safe:

    loop      one in-place `addmm_` per step                          few steps, or products that keep a core busy
    doubling  h_t += A_bar^s h_(t-s) for s = 1, 2, 4, ...             log2(t) passes over a sequence that fits a cache
    chunks    a block-Toeplitz product inside chunks of k steps, and the same recurrence with A_bar^k between them

States are rows here, so the code multiplies from the right by P = A_bar^T (forwards) or P = A_bar (backwards).
Symbols: b batch, t time, d layer width, n state, k chunk length, c number of chunks.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

# Crossing points on CPUs. A loop pays one call per step: nothing to gain for few steps, nor once a step's product
# (b n numbers by an n x n matrix) costs more than the call. Doubling reads the whole sequence in every pass: it pays as
# long as b t n numbers stay in the cache. Beyond, chunks of k steps, with k n about CHUNK_WIDTH.
LOOP_STEPS, LOOP_STATE, LOOP_WORK = 32, 32, 512
DOUBLING_NUMBERS = 2**16
CHUNK_WIDTH = 128
# On an accelerator the number of launches decides, so that chunks do not shrink below this many steps.
ACCELERATOR_CHUNK = 8


# In float64 MKL's AVX2 kernels do B x^T up to 2.6 times faster than x B^T, its AVX-512 kernels 2.8 times slower.
SWAP_FLOAT64 = torch.backends.cpu.get_cpu_capability() != "AVX512"


def scan(A_bar: Float[Tensor, "n n"], v: Float[Tensor, "b t n"], h0: Float[Tensor, "b n"]) -> Float[Tensor, "b t n"]:
    """All states of h_t = A_bar h_(t-1) + v_t from h0 on; differentiable once in all three arguments."""
    _check_length(v)
    with full_precision(A_bar):
        h: Tensor = _Scan.apply(A_bar, v, h0)  # type: ignore[no-untyped-call]
    return h


def ssm(
    A_bar: Float[Tensor, "n n"],
    B: Float[Tensor, "n d"],
    step: Float[Tensor, ""],
    C: Float[Tensor, "d n"],
    x: Float[Tensor, "b t d"],
    h0: Float[Tensor, "b n"],
    *,
    last_only: bool = False,
) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b n"]]:
    """y_t = C h_t of h_t = A_bar h_(t-1) + step B x_t for all steps (s = t), or the last one only, and the last state."""
    _check_length(x)
    with full_precision(A_bar):
        y, state = _SSM.apply(A_bar, B, step, C, x, h0, last_only)  # type: ignore[no-untyped-call]
    return y, state


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which mixed precision, if it is on, leaves products in the dtype of their operands.

    A rounded transition is another system: recurrences stay in the precision of their parameters.
    """
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A_bar: Tensor, v: Tensor, h0: Tensor) -> Tensor:
        h = _states(A_bar.T, v, h0)
        ctx.save_for_backward(A_bar, h, h0)
        return h

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        A_bar, h, h0 = ctx.saved_tensors
        with full_precision(A_bar):
            a = _states(A_bar, g, None, backwards=True)  # (b t n)
            dA_bar = _transition_gradient(a, h, h0) if ctx.needs_input_grad[0] else None
            return dA_bar, a, a[:, 0] @ A_bar if ctx.needs_input_grad[2] else None


class _SSM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, A_bar: Tensor, B: Tensor, step: Tensor, C: Tensor, x: Tensor, h0: Tensor, last_only: bool
    ) -> tuple[Tensor, Tensor]:
        b, t, d = x.shape
        rows = x.reshape(b * t, d)
        if SWAP_FLOAT64 and x.dtype == torch.float64 and x.device.type == "cpu":
            v = B.mm(rows.T).mul_(step).view(-1, b, t).permute(1, 2, 0)  # (b t n)
        else:
            v = rows.mm(B.T).mul_(step).view(b, t, -1)  # (b t n)
        h = _states(A_bar.T, v, h0)  # (b t n)
        read = h[:, -1:] if last_only else h  # (b s n)
        y = read.reshape(-1, h0.shape[1]).mm(C.T).view(b, -1, d)  # (b s d)
        ctx.save_for_backward(A_bar, B, step, C, x, h0, h)
        ctx.last_only = last_only
        # The state mostly ends with its window: its gradient is None then, instead of zeros.
        ctx.set_materialize_grads(False)
        return y, h[:, -1].clone()

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
        A_bar, B, step, C, x, h0, h = ctx.saved_tensors
        (b, t, d), n = x.shape, h0.shape[1]
        dA_bar = dB = dstep = dC = dx = dh0 = g = None
        with full_precision(A_bar):
            if dy is not None:
                rows = dy.reshape(-1, d)  # (b*s d)
                read = h[:, -1:] if ctx.last_only else h  # (b s n)
                dC = read.reshape(-1, n).T.mm(rows).T  # (d n)
                g = rows.mm(C).view(b, -1, n)  # (b s n)
            if g is None or ctx.last_only:
                last, g = g, h.new_zeros(b, t, n)
                if last is not None:
                    g[:, -1:] = last
            if dstate is not None:
                g[:, -1] += dstate
            a = _states(A_bar, g, None, backwards=True)  # (b t n)
            rows = a.reshape(b * t, n)
            if ctx.needs_input_grad[0]:
                dA_bar = _transition_gradient(a, h, h0)
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                dB = rows.T.mm(x.reshape(b * t, d))  # (n d)
                dstep = torch.dot(dB.view(-1), B.reshape(-1))
                dB *= step
            if ctx.needs_input_grad[4]:
                dx = (rows * step).mm(B).view(b, t, d)
            if ctx.needs_input_grad[5]:
                dh0 = a[:, 0] @ A_bar  # (b n)
        return dA_bar, dB, dstep, dC, dx, dh0, None


def _check_length(sequence: Tensor) -> None:
    if sequence.shape[1] == 0:
        raise ValueError("the scan needs at least one time step, got a sequence of length 0")


def _transition_gradient(a: Tensor, h: Tensor, h0: Tensor) -> Tensor:
    """dA_bar = sum over t of a_t h_(t-1)^T."""
    n = h0.shape[1]
    # Time first: that is how most forms lay out their states, so that these are views.
    a, h = a.transpose(0, 1), h.transpose(0, 1)  # (t b n)
    return torch.addmm(a[0].T @ h0, a[1:].reshape(-1, n).T, h[:-1].reshape(-1, n))  # (n n)


def _states(P: Tensor, v: Tensor, h0: Tensor | None, *, backwards: bool = False) -> Tensor:
    """h_t = h_(t-1) P + v_t along time, or h_t = h_(t+1) P + v_t against it; h0 None means zero."""
    b, t, n = v.shape
    if v.device.type != "cpu":
        return _chunks(P, v, h0, max(ACCELERATOR_CHUNK, CHUNK_WIDTH // n), backwards)
    if t <= LOOP_STEPS or n >= LOOP_STATE or b * n >= LOOP_WORK:
        return _loop(P, v, h0, backwards)
    if b * t * n <= DOUBLING_NUMBERS:
        return _doubling(P, v, h0, backwards)
    return _chunks(P, v, h0, CHUNK_WIDTH // n, backwards)


def _loop(P: Tensor, v: Tensor, h0: Tensor | None, backwards: bool) -> Tensor:
    h = v.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # (t b n)
    steps = h.unbind(0)[::-1] if backwards else h.unbind(0)
    previous = h0
    for h_t in steps:  # (b n)
        if previous is not None:
            h_t.addmm_(previous, P)
        previous = h_t
    return h.transpose(0, 1)  # (b t n)


def _doubling(P: Tensor, v: Tensor, h0: Tensor | None, backwards: bool) -> Tensor:
    b, t, n = v.shape
    h = v.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # (t b n)
    if h0 is not None:
        h[-1 if backwards else 0].addmm_(h0, P)
    flat = h.view(t * b, n)  # (t*b n)
    reach = 1
    while reach < t:
        # After this pass every state has gathered the inputs of the last 2 * reach steps.
        early, late = flat[: -reach * b], flat[reach * b :]
        source, target = (late, early) if backwards else (early, late)
        target.add_(source.mm(P))
        reach *= 2
        if reach < t:
            P = P.mm(P)
    return h.transpose(0, 1)  # (b t n)


def _chunks(P: Tensor, v: Tensor, h0: Tensor | None, k: int, backwards: bool) -> Tensor:
    if backwards:
        return _chunks(P, v.flip(1), h0, k, False).flip(1)
    b, t, n = v.shape
    k = min(k, t)
    c = -(-t // k)
    if c * k > t:
        v = torch.nn.functional.pad(v, (0, 0, 0, c * k - t))
    powers = _powers(P, k)  # (k+1 n n)
    # Inside a chunk: h_i = sum over j <= i of v_j P^(i-j); slot k+1 holds the zero block of the future.
    lag = torch.arange(k, device=v.device) - torch.arange(k, device=v.device)[:, None]  # (k k) from j to i
    blocks = torch.cat([powers, torch.zeros_like(powers[:1])])[torch.where(lag < 0, k + 1, lag)]  # (k k n n)
    toeplitz = blocks.transpose(1, 2).reshape(k * n, k * n)
    h = v.reshape(b * c, k * n) @ toeplitz  # (b*c k*n)
    # Between chunks: the last states obey the same recurrence with P^k.
    entering = v.new_zeros(b, 1, n) if h0 is None else h0[:, None]  # (b 1 n)
    if c > 1:
        ends = _states(powers[k], h.view(b, c, k, n)[:, :-1, -1], h0)  # (b c-1 n)
        entering = torch.cat([entering, ends], dim=1)  # (b c n)
    h.addmm_(entering.reshape(b * c, n), powers[1:].transpose(0, 1).reshape(n, k * n))
    return h.view(b, c * k, n)[:, :t]  # (b t n)


def _powers(P: Tensor, highest: int) -> Tensor:
    """P^0, P^1, ..., P^highest, stacked; by doubling, so that the number of calls is logarithmic."""
    powers = torch.stack([torch.eye(P.shape[0], dtype=P.dtype, device=P.device), P])
    while powers.shape[0] <= highest:
        powers = torch.cat([powers, powers[1:] @ powers[-1]])
    return powers[: highest + 1]
