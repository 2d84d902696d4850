"""The fast diagonal scan gives the definition's outputs and gradients, and costs what it promises."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.scan import recurrence
from statewise.scan.diagonal import _chunk_length, diagonal

# ring: any angle, moduli up to .999; real: positive and negative; slow: hardly a decay at all; zero: some states forget
# at once; growing: unstable, as nothing in the scan forbids.
KINDS = ("ring", "real", "slow", "zero", "growing")
NAMES = ("A_bar", "B_bar", "C", "x", "h0", "D")
CHANNELS = (0, 0, 0, 2, 1, 0)  # which of their axes is d
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-5}
WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def transition(kind: str, n: int) -> Tensor:
    moduli, angles = torch.rand(n).double(), (torch.rand(n).double() * 2 - 1) * torch.pi
    if kind == "real":
        return torch.complex(moduli * 1.98 - 0.99, torch.zeros_like(moduli))
    if kind == "slow":
        return torch.polar(1 - 1e-6 * moduli, angles)
    if kind == "growing":
        return torch.polar(1 + 0.005 * moduli, angles)
    A_bar = torch.polar(moduli.sqrt() * 0.999, angles)
    return torch.where(torch.arange(n) % 2 == 0, 0, A_bar) if kind == "zero" else A_bar


def problem(b: int, t: int, n: int, dtype: torch.dtype = torch.float64, kinds: tuple[str, ...] = KINDS) -> list[Tensor]:
    """A_bar, B_bar, C, x, h0 and D, with one channel of each kind."""
    torch.manual_seed(1000 * t + 10 * n + b)
    d = len(kinds)
    A_bar = torch.stack([transition(kind, n) for kind in kinds])
    B_bar, C = torch.randn(2, d, n, dtype=torch.complex128)
    inputs = [A_bar, B_bar, C, torch.randn(b, t, d), torch.randn(b, d, n, dtype=torch.complex128)]
    inputs.append(torch.randn(d))
    return [tensor.to(dtype.to_complex() if tensor.is_complex() else dtype).requires_grad_() for tensor in inputs]


def defined(A_bar: Tensor, B_bar: Tensor, C: Tensor, x: Tensor, h0: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    y, h = recurrence.diagonal(A_bar, B_bar, C, x, h0)
    return y + D * x, h


def error(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max|b|, absolute where b is zero."""
    scale = float(b.detach().abs().max())
    return float((a - b).detach().abs().max()) / (scale or 1.0)


def worst(a: Tensor, b: Tensor, channels: int) -> float:
    """The largest error of a single channel: the growing one must not hide the others."""
    return max(error(*pair) for pair in zip(a.unbind(channels), b.unbind(channels), strict=True))


def errors(inputs: list[Tensor], used: str = "both", **options: Any) -> dict[str, float]:
    """Errors of outputs, last state and all gradients, against the definition in float64 on the same numbers."""
    exact = [tensor.detach().to(WIDER.get(tensor.dtype, tensor.dtype)).requires_grad_() for tensor in inputs]
    y, h = diagonal(*inputs, **options)
    y_exact, h_exact = defined(*exact)
    if options.get("last_only"):
        y_exact = y_exact[:, -1:]
    assert (y.shape, h.shape) == (y_exact.shape, h_exact.shape)
    weights = torch.randn_like(y), torch.randn_like(h)
    chosen = {"y": [0], "h": [1], "both": [0, 1]}[used]

    def gradients(outputs: tuple[Tensor, Tensor], arguments: list[Tensor]) -> tuple[Tensor | None, ...]:
        grads = [weights[i].to(outputs[i].dtype) for i in chosen]
        return torch.autograd.grad([outputs[i] for i in chosen], arguments, grads, allow_unused=True)

    result = {"y": worst(y, y_exact, 2), "h": worst(h, h_exact, 1)}
    found, expected = gradients((y, h), inputs), gradients((y_exact, h_exact), exact)
    for name, axis, a, b in zip(NAMES, CHANNELS, found, expected, strict=True):
        if b is None:
            # The fast form has one node: what the loss does not use has a gradient of zeros.
            assert a is None or not a.any(), name
        else:
            assert a is not None, name
            assert a.dtype == inputs[NAMES.index(name)].dtype
            result[f"d{name}"] = worst(a, b, axis)
    return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize(("b", "n"), [(1, 1), (3, 8)])
@pytest.mark.parametrize("t", [1, 2, 37, 60, 63, 64, 65, 500])
def test_outputs_and_gradients_are_those_of_the_definition(t: int, b: int, n: int, dtype: torch.dtype) -> None:
    found = errors(problem(b, t, n, dtype))
    assert len(found) == 8
    assert max(found.values()) <= TOLERANCE[dtype], found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize(("b", "t", "n"), [(20, 64, 1), (20, 65, 32), (3, 1000, 8)])
def test_more_rows_more_states_and_longer_sequences_are_exact_too(b: int, t: int, n: int, dtype: torch.dtype) -> None:
    found = errors(problem(b, t, n, dtype))
    assert max(found.values()) <= TOLERANCE[dtype], found


@pytest.mark.parametrize("t", [1, 5, 16, 37, 65])
@pytest.mark.parametrize("chunk_size", [1, 2, 5, 16, 64, 256])
@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
def test_the_chunk_size_changes_no_number(last_only: bool, chunk_size: int, t: int) -> None:
    found = errors(problem(2, t, 2), last_only=last_only, chunk_size=chunk_size)
    assert max(found.values()) <= 1e-13, found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("used", ["both", "y", "h"])
@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
@pytest.mark.parametrize("chunk_size", [None, 8])
def test_gradients_are_right_whatever_the_loss_uses(
    chunk_size: int | None, last_only: bool, used: str, dtype: torch.dtype
) -> None:
    found = errors(problem(3, 21, 3, dtype), used, last_only=last_only, chunk_size=chunk_size)
    assert max(found.values()) <= TOLERANCE[dtype], found


@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
@pytest.mark.parametrize("chunk_size", [None, 8])
def test_no_state_is_a_state_of_zeros(chunk_size: int | None, last_only: bool) -> None:
    inputs = problem(3, 21, 3)
    zero = torch.zeros_like(inputs[4])
    results = []
    for h0 in (None, zero):
        y, h = diagonal(*inputs[:4], h0, inputs[5], last_only=last_only, chunk_size=chunk_size)
        given = [*inputs[:4], inputs[5]]
        grads = torch.autograd.grad(y.square().sum() + torch.view_as_real(h).square().sum(), given)
        results.append([y, h, *grads])
    for without, zeros in zip(*results, strict=True):
        assert error(without, zeros) <= 1e-14


@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
def test_no_skip_is_a_skip_of_zeros(last_only: bool) -> None:
    inputs = problem(3, 21, 3)
    y, h = diagonal(*inputs[:5], last_only=last_only)
    y_zero, h_zero = diagonal(*inputs[:5], torch.zeros_like(inputs[5]), last_only=last_only)
    assert torch.equal(y, y_zero)
    assert torch.equal(h, h_zero)
    grads = [torch.autograd.grad(outputs.square().sum(), inputs[:5]) for outputs in (y, y_zero)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
@pytest.mark.parametrize("chunk_size", [3, 8])
def test_gradcheck_passes(chunk_size: int, last_only: bool) -> None:
    def function(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        y, h = diagonal(*inputs, last_only=last_only, chunk_size=chunk_size)
        return y, torch.view_as_real(h)

    assert torch.autograd.gradcheck(function, problem(2, 7, 2, kinds=("ring", "zero")))


@pytest.mark.parametrize("chunk_size", [None, 8])
def test_inputs_need_not_be_contiguous(chunk_size: int | None) -> None:
    A_bar, B_bar, C, x, h0, D = [tensor.detach() for tensor in problem(4, 21, 5, kinds=("ring", "real", "zero"))]
    strided = [
        A_bar.T.contiguous().T,
        B_bar.repeat_interleave(2, 1)[:, ::2],
        C.conj(),
        x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        h0[:1].expand_as(h0),
        D.repeat_interleave(2)[::2],
    ]
    before = [tensor.clone() for tensor in strided]
    assert max(errors([tensor.requires_grad_() for tensor in strided], chunk_size=chunk_size).values()) <= 1e-13
    assert all(torch.equal(tensor, was) for tensor, was in zip(strided, before, strict=True))

    y, _ = diagonal(*strided, chunk_size=chunk_size)
    y_exact, _ = defined(*strided)
    expanded = torch.randn(4, 1, 3, dtype=torch.float64).expand_as(y)
    grads = torch.autograd.grad(y, strided, expanded), torch.autograd.grad(y_exact, strided, expanded)
    assert max(error(a, b) for a, b in zip(*grads, strict=True)) <= 1e-13


@pytest.mark.parametrize("chunk_size", [None, 8])
def test_only_the_gradients_asked_for_are_returned(chunk_size: int | None) -> None:
    A_bar, B_bar, C, x, h0, D = problem(2, 21, 2)
    y, _ = diagonal(A_bar.detach(), B_bar, C, x, h0.detach(), D, chunk_size=chunk_size)
    y.sum().backward()
    assert A_bar.grad is None
    assert h0.grad is None
    assert all(tensor.grad is not None for tensor in (B_bar, C, x, D))


def test_a_second_derivative_is_refused_instead_of_wrong() -> None:
    inputs = problem(1, 4, 2)
    (grad,) = torch.autograd.grad(diagonal(*inputs)[0].square().sum(), inputs[3], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_an_empty_sequence_is_refused() -> None:
    inputs = problem(1, 4, 2)
    with pytest.raises(ValueError, match="at least one time step, got a sequence of length 0"):
        diagonal(*inputs[:3], torch.zeros(1, 0, len(KINDS), dtype=torch.float64))


@pytest.mark.parametrize("t", [1, 2, 37, 64, 65, 130, 500])
def test_nothing_wraps_around(t: int) -> None:
    A_bar, B_bar, C, *_ = [tensor.detach() for tensor in problem(1, t, 4, kinds=("slow", "ring"))]
    for at in {0, t // 2, t - 1}:
        impulse = torch.zeros(1, t, 2, dtype=torch.float64)
        impulse[:, at] = 1
        y, _ = diagonal(A_bar, B_bar, C, impulse)
        assert torch.equal(y[:, :at], torch.zeros_like(y[:, :at]))
        powers = A_bar[..., None] ** torch.arange(t - at)
        kernel = 2 * ((B_bar * C)[..., None] * powers).sum(1).real.T
        assert error(y[0, at:], kernel) <= 1e-12


def test_under_mixed_precision_the_scan_keeps_its_own() -> None:
    inputs = problem(2, 70, 2, torch.float32)
    expected = torch.autograd.grad(diagonal(*inputs)[0].square().sum(), inputs[:4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, h = diagonal(*inputs)
        found = torch.autograd.grad(y.square().sum(), inputs[:4])
    assert (y.dtype, h.dtype) == (torch.float32, torch.complex64)
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) <= 1e-6


@pytest.mark.parametrize(
    ("b", "t", "k"),
    [(64, 60, 60), (64, 64, 64), (64, 500, 50), (64, 128, 64), (64, 65, 64), (64, 997, 64), (1, 60, 15), (1, 7, 7)],
)
def test_chunks_are_few_and_equal_where_they_can_be_and_short_where_there_is_little_to_multiply(b: int, t: int, k: int) -> None:
    assert _chunk_length(b, t) == k


class Work(TorchDispatchMode):
    """Counts torch calls, and the numbers that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        # A view costs nothing, whatever its size.
        if isinstance(out, Tensor) and not func.is_view:
            self.numbers += out.numel()
        return out


def work(function: Callable[..., tuple[Tensor, Tensor]], t: int, b: int = 2) -> Work:
    inputs = problem(b, t, 4, kinds=("ring", "slow"))
    y, h = function(*inputs)
    grads = [torch.randn_like(y), torch.randn_like(h)]
    with Work() as counted:
        y, h = function(*inputs)
        torch.autograd.grad([y, h], inputs, grads)
    return counted


def test_the_cost_grows_with_the_length_and_not_with_its_square() -> None:
    assert work(diagonal, 4096).numbers < 4.5 * work(diagonal, 1024).numbers
    assert work(diagonal, 64, 64).numbers < 4.5 * work(diagonal, 16, 64).numbers


def test_a_state_that_nobody_uses_costs_nothing_in_the_backward_pass() -> None:
    inputs = problem(16, 64, 8)
    leaves = [*inputs[:4], inputs[5]]
    numbers = {}
    for used in ("output", "output and state"):
        y, h = diagonal(*leaves[:4], None, leaves[4])
        outputs = [y, h] if used == "output and state" else [y]
        grads = [torch.ones_like(tensor) for tensor in outputs]
        with Work() as counted:
            torch.autograd.grad(outputs, leaves, grads)
        numbers[used] = counted.numbers
    # What x and the powers of A_bar take once more.
    assert numbers["output and state"] - numbers["output"] > leaves[3].numel() + 64 * leaves[0].numel()


def test_the_number_of_torch_calls_does_not_depend_on_the_steps_of_a_chunk() -> None:
    assert work(diagonal, 60, 32).calls == work(diagonal, 40, 32).calls
    chunks = 4096 // 64 - 1024 // 64
    assert work(diagonal, 4096).calls - work(diagonal, 1024).calls <= 7 * chunks


def kept(t: int) -> int:
    """Numbers that are kept for the backward pass."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() * (2 if tensor.is_complex() else 1))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        diagonal(*problem(16, t, 8, kinds=("ring",) * 8))
    return sum(sizes)


def test_what_is_kept_for_the_backward_pass_is_linear_in_time_and_hardly_more_than_the_inputs() -> None:
    more = kept(4096) - kept(1024)
    inputs = 16 * 8 * (4096 - 1024)
    # The states between chunks of 64 steps: 16 real numbers each.
    assert more == inputs + inputs // 64 * 16
