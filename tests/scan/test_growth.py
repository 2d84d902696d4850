"""Work and memory of the scans grow in proportion to the length at most: counted, not timed."""

from itertools import pairwise

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.scan import dense, diagonal, ssd

PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"}
# What does not depend on the length lowers a ratio below 2. The dense scan's states between chunks cost T log T while they
# are few, a twentieth of its products, which lifts it a little. Were all of it T log T, the ratio would be 2.15 here, and
# quadratic work gives 4.
TWICE = 2.05


class Work(TorchDispatchMode):
    """Counts what torch does: elements written by any call that is no view, and multiply-adds of matrix products."""

    def __init__(self):
        super().__init__()
        self.elements = self.multiply_adds = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        if not func.is_view:
            self.elements += sum(tensor.numel() for tensor in tensors)
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            left = args[0] if name in {"mm", "bmm"} else args[1]
            self.multiply_adds += tensors[0].numel() * left.shape[-1]
        return result


def cost(run):
    """(elements written, multiply-adds, bytes kept for backward) of one forward and backward pass."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with Work() as work, saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run()
        output.backward(torch.ones_like(output))
    return work.elements, work.multiply_adds, sum(kept.values())


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def of_dense(t, n):
    A_bar, v, h0 = draw(n, n), draw(1, t, n), draw(1, n)
    return lambda: dense.scan(0.1 * A_bar, v, h0)


def of_ssd(t, chunk_size):
    x, dt, A = draw(1, t, 2, 4), draw(1, t, 2), draw(2)
    B, C, h0 = draw(1, t, 1, 8), draw(1, t, 1, 8), draw(1, 2, 4, 8)
    return lambda: ssd.ssd(x, dt.abs(), -A.abs(), B, C, h0, chunk_size=chunk_size)[0]


def of_diagonal(t, n):
    A_bar, B_bar, C = (draw(4, n, dtype=torch.complex128) for _ in range(3))
    x, h0 = draw(2, t, 4), draw(2, 4, n, dtype=torch.complex128)
    return lambda: diagonal.diagonal(0.1 * A_bar, B_bar, C, x, h0)[0]


# The dense scan in chunks and as a loop, from lengths on at which these forms are chosen.
SCANS = {
    "dense, in chunks": (lambda t: of_dense(t, 16), 8192),
    "dense, step by step": (lambda t: of_dense(t, 32), 256),
    "ssd, chunks of 16": (lambda t: of_ssd(t, 16), 256),
    "ssd, chunks of 64": (lambda t: of_ssd(t, 64), 256),
    "diagonal, 2 pairs": (lambda t: of_diagonal(t, 2), 1024),
    "diagonal, 8 pairs": (lambda t: of_diagonal(t, 8), 1024),
}


@pytest.mark.parametrize("name", SCANS)
def test_twice_the_length_is_at_most_twice_the_work_and_the_memory(name):
    make, t = SCANS[name]
    costs = [cost(make(length)) for length in (t, 2 * t, 4 * t)]
    for before, after in pairwise(costs):
        for what, less, more in zip(("elements", "multiply-adds", "bytes kept"), before, after, strict=True):
            assert more <= TWICE * less, f"{what}: {less} at half the length, {more}"
    assert all(elements > t for elements, _, _ in costs)


def test_the_count_sees_a_loop_that_is_quadratic_in_backward():
    def indexed(t):
        x, h0 = draw(1, t, 4), draw(1, 4)

        def run():
            h = h0
            for step in range(t):
                h = 0.5 * h + x[:, step]
            return h

        return run

    short, long = cost(indexed(64)), cost(indexed(128))
    assert long[0] > 3 * short[0]


def test_the_count_sees_a_product_of_all_steps_with_all_steps():
    def compared(t):
        x = draw(t, 4)
        return lambda: (x @ x.T).softmax(1) @ x

    short, long = cost(compared(64)), cost(compared(128))
    assert all(more > 3 * less for less, more in zip(short, long, strict=True))
