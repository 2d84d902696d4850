"""The short convolution is torch's convolution, causal, and carries on from the inputs before."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.scan import causal_conv as module
from statewise.scan.causal_conv import causal_conv

TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
Arguments = tuple[Tensor, Tensor, Tensor | None, Tensor]


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def error(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max|b|, absolute where b is zero."""
    return float((a - b).detach().abs().max()) / (float(b.detach().abs().max()) or 1.0)


def definition(x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, *, silu: bool) -> tuple[Tensor, Tensor]:
    padded = torch.cat([past, x], dim=1)
    y = F.conv1d(padded.transpose(1, 2), weight[:, None], bias, groups=len(weight)).transpose(1, 2)
    return (F.silu(y) if silu else y), padded[:, x.shape[1] :]


def problem(t: int, k: int, dtype: torch.dtype, *, b: int = 3, c: int = 7, bias: bool = True) -> Arguments:
    torch.manual_seed(100 * t + k)
    # x is a part of wider rows, as a projection gives it.
    x = torch.randn(b, t, c + 4, dtype=dtype)[..., 2 : c + 2].requires_grad_()
    weight, shift, past = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((c, k), (c,), (b, k - 1, c)))
    return x, weight, shift if bias else None, past


def compare(arguments: Arguments, silu: bool, outputs: tuple[int, ...] = (0, 1)) -> float:
    """The largest error of the outputs and of all gradients through the chosen outputs."""
    found, expected = causal_conv(*arguments, silu=silu), definition(*arguments, silu=silu)
    torch.manual_seed(0)
    weights = [torch.randn_like(expected[i]) for i in outputs]
    leaves = [tensor for tensor in arguments if tensor is not None and tensor.numel()]
    gradients = [
        torch.autograd.grad([result[i] for i in outputs], leaves, weights, materialize_grads=True)
        for result in (found, expected)
    ]
    pairs = [*zip(found, expected, strict=True), *zip(*gradients, strict=True)]
    return max(error(a, b) for a, b in pairs if b.numel())


@DTYPES
@pytest.mark.parametrize("silu", [False, True], ids=["plain", "silu"])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("t", [1, 2, 3, 5, 60])
def test_it_is_torchs_convolution_with_its_gradients(t: int, k: int, silu: bool, dtype: torch.dtype) -> None:
    assert compare(problem(t, k, dtype), silu) <= TOLERANCE[dtype]
    assert compare(problem(t, k, dtype, bias=False), silu) <= TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("output", [0, 1], ids=["outputs", "inputs"])
def test_either_result_alone_passes_its_gradients(output: int, dtype: torch.dtype) -> None:
    for t in (2, 60):
        assert compare(problem(t, 4, dtype), True, (output,)) <= TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("rows", [1, 23, 120])
def test_pieces_give_the_same_as_the_whole(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_BYTES", rows * 7 * dtype.itemsize)
    assert compare(problem(60, 4, dtype), True) <= TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_the_inputs_that_it_hands_on_continue_the_sequence(length: int, dtype: torch.dtype) -> None:
    x, weight, bias, past = problem(37, 4, dtype)
    whole, _ = causal_conv(x, weight, bias, past, silu=True)
    parts = []
    for part in x.split(length, dim=1):
        y, past = causal_conv(part, weight, bias, past, silu=True)
        parts.append(y)
    assert error(torch.cat(parts, dim=1), whole) <= TOLERANCE[dtype]


@DTYPES
def test_no_output_depends_on_a_later_input(dtype: torch.dtype) -> None:
    x, weight, bias, past = problem(10, 4, dtype)
    y, _ = causal_conv(x, weight, bias, past)
    for t in (0, 4, 8):
        (gradient,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
        assert gradient[:, t + 1 :].abs().max() == 0
        assert gradient[:, t].abs().min() > 0


def test_what_is_handed_on_does_not_hold_the_sequence_in_memory() -> None:
    _, after = causal_conv(*problem(60, 4, torch.float64))
    assert after.untyped_storage().nbytes() == after.numel() * 8


def test_the_gradients_pass_gradcheck() -> None:
    for silu in (False, True):
        assert torch.autograd.gradcheck(
            lambda *given, silu=silu: causal_conv(*given, silu=silu), problem(5, 3, torch.float64, b=2, c=2)
        )


def test_a_second_derivative_is_refused() -> None:
    arguments = problem(5, 4, torch.float64)
    y, _ = causal_conv(*arguments, silu=True)
    (gradient,) = torch.autograd.grad(y.square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_mixed_precision_changes_nothing() -> None:
    x, weight, bias, past = problem(60, 4, torch.float32)
    plain = causal_conv(x, weight, bias, past, silu=True)[0]
    gradients = torch.autograd.grad(plain.sum(), [x, weight])
    with torch.autocast("cpu", torch.bfloat16):
        mixed = causal_conv(x, weight, bias, past, silu=True)[0]
        mixed_gradients = torch.autograd.grad(mixed.sum(), [x, weight])
    assert torch.equal(mixed, plain)
    assert all(torch.equal(a, b) for a, b in zip(mixed_gradients, gradients, strict=True))


def test_an_accelerator_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Numbers of the meta device cannot be looked at: whatever reads one fails. It knows no mixed precision either.
    monkeypatch.setattr(module, "full_precision", lambda _: nullcontext())
    leaves = [tensor.detach().to("meta").requires_grad_() for tensor in problem(20, 4, torch.float64)]
    y, after = causal_conv(*leaves, silu=True)
    gradients = torch.autograd.grad([y, after], leaves, [torch.empty_like(y), torch.empty_like(after)])
    assert [gradient.shape for gradient in gradients] == [leaf.shape for leaf in leaves]
