"""The fast scan gives the definition's outputs and gradients, and costs what it promises."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.scan import dense, recurrence

KINDS = ("random", "triangular", "jordan", "orthogonal", "growing")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-5}


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def transition(kind: str, n: int) -> Tensor:
    gaussian = torch.randn(n, n, dtype=torch.float64)
    if kind == "random":
        return gaussian * (0.9 / torch.linalg.eigvals(gaussian).abs().max())
    if kind == "triangular":
        return torch.triu(gaussian, 1) * 0.3 + torch.diag(torch.linspace(-0.95, 0.95, n, dtype=torch.float64))
    if kind == "jordan":
        blocks = 0.95 * torch.eye(n, dtype=torch.float64)
        for i in range(n - 1):
            blocks[i, i + 1] = float((i + 1) % 4 != 0)
        return blocks
    return torch.linalg.qr(gaussian).Q * (0.999 if kind == "orthogonal" else 1.01)


def error(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max|b|, absolute where b is zero."""
    scale = float(b.abs().max())
    return float((a.double() - b).abs().max()) / (scale or 1.0)


def problem(kind: str, b: int, t: int, n: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(1000 * t + 10 * n + b)
    inputs = [transition(kind, n), torch.randn(b, t, n), torch.randn(b, n)]
    return [tensor.to(dtype).requires_grad_() for tensor in inputs], torch.randn(b, t, n).to(dtype)


def errors(function: Callable[..., Tensor], inputs: list[Tensor], g: Tensor) -> dict[str, float]:
    """Errors of the states and of the three gradients, against the definition in float64 on the same numbers."""
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    h, h_exact = function(*inputs), recurrence.scan(*exact)
    grads = zip(torch.autograd.grad(h, inputs, g), torch.autograd.grad(h_exact, exact, g.double()), strict=True)
    result = {"h": error(h.detach(), h_exact.detach())}
    return result | {name: error(a, b) for name, (a, b) in zip(("dA_bar", "dv", "dh0"), grads, strict=True)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("n", [1, 3, 16, 40])
@pytest.mark.parametrize("b", [1, 7])
@pytest.mark.parametrize("t", [1, 2, 37, 60, 63, 64, 65, 500])
def test_outputs_and_gradients_are_those_of_the_definition(t: int, b: int, n: int, dtype: torch.dtype) -> None:
    for kind in KINDS:
        found = errors(dense.scan, *problem(kind, b, t, n, dtype))
        assert max(found.values()) <= TOLERANCE[dtype], (kind, found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize(("t", "b", "n"), [(513, 1, 3), (1000, 7, 16), (1000, 7, 40), (1025, 1, 16)])
def test_long_sequences_are_exact_too(t: int, b: int, n: int, dtype: torch.dtype) -> None:
    for kind in KINDS:
        found = errors(dense.scan, *problem(kind, b, t, n, dtype))
        assert max(found.values()) <= TOLERANCE[dtype], (kind, found)


FORMS: dict[str, Callable[..., Tensor]] = {
    "loop": dense._loop,
    "doubling": dense._doubling,
    "chunks of 1": lambda P, v, h0, backwards: dense._chunks(P, v, h0, 1, backwards),
    "chunks of 5": lambda P, v, h0, backwards: dense._chunks(P, v, h0, 5, backwards),
    "chunks of 64": lambda P, v, h0, backwards: dense._chunks(P, v, h0, 64, backwards),
}


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("start", ["zero", "given"])
@pytest.mark.parametrize("t", [1, 2, 5, 37, 64, 65])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_states(form: str, t: int, start: str, backwards: bool) -> None:
    (A_bar, v, h0), _ = problem("triangular", 3, t, 6, torch.float64)
    A_bar, v, h0 = A_bar.detach(), v.detach(), h0.detach()
    before = v.clone()
    h = FORMS[form](A_bar.T, v, h0 if start == "given" else None, backwards)
    expected = recurrence.scan(A_bar, v.flip(1) if backwards else v, h0 if start == "given" else torch.zeros_like(h0))
    assert error(h, expected.flip(1) if backwards else expected) <= 1e-13
    assert torch.equal(v, before)


@pytest.mark.parametrize(("form", "sizes"), [("_loop", (2, 9, 3)), ("_doubling", (2, 40, 3)), ("_chunks", (600, 40, 3))])
def test_each_form_is_chosen_for_its_sizes(form: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    b, t, n = sizes
    called = []
    original = getattr(dense, form)
    monkeypatch.setattr(dense, form, lambda *args: called.append(form) or original(*args))
    if form == "_chunks":
        monkeypatch.setattr(dense, "LOOP_WORK", 10**9)
    dense.scan(torch.eye(n), torch.ones(b, t, n), torch.zeros(b, n))
    assert called == [form]


@pytest.mark.parametrize("t", [5, 40, 70])
def test_gradcheck_passes(t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if t == 70:
        monkeypatch.setattr(dense, "DOUBLING_NUMBERS", 0)
        monkeypatch.setattr(dense, "CHUNK_WIDTH", 16)
    inputs, _ = problem("random", 2, t, 2, torch.float64)
    assert torch.autograd.gradcheck(dense.scan, inputs)


@pytest.mark.parametrize("t", [20, 60, 700])
def test_inputs_need_not_be_contiguous(t: int) -> None:
    (A_bar, v, h0), g = problem("random", 4, t, 5, torch.float64)
    strided = [
        A_bar.detach().T.contiguous().T,
        v.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        h0.detach().repeat_interleave(2, 1)[:, ::2],
    ]
    assert not any(tensor.is_contiguous() for tensor in strided)
    expanded = g[:, :1].expand_as(g)
    found = errors(dense.scan, [tensor.requires_grad_() for tensor in strided], expanded)
    assert max(found.values()) <= 1e-12


def test_only_the_gradients_asked_for_are_computed() -> None:
    (A_bar, v, h0), g = problem("random", 2, 9, 3, torch.float64)
    dense.scan(A_bar.detach(), v, h0.detach()).backward(g)
    assert v.grad is not None
    assert A_bar.grad is None
    assert h0.grad is None


def test_a_second_derivative_is_refused_instead_of_wrong() -> None:
    (A_bar, v, h0), _ = problem("random", 1, 4, 2, torch.float64)
    (grad,) = torch.autograd.grad(dense.scan(A_bar, v, h0).square().sum(), v, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one time step, got a sequence of length 0"):
        dense.scan(torch.eye(2), torch.zeros(1, 0, 2), torch.zeros(1, 2))


def layer_problem(b: int, t: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(t)
    n, d = 4, 6
    shapes = [(n, d), (), (d, n), (b, t, d), (b, n)]
    tensors = [transition("random", n), *(torch.randn(shape) for shape in shapes)]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def defined_ssm(A_bar: Tensor, B: Tensor, step: Tensor, C: Tensor, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    h = recurrence.scan(A_bar, x @ (step * B).T, h0)
    return h @ C.T, h[:, -1]


@pytest.mark.parametrize("swap", [False, True], ids=["x B^T", "B x^T"])
@pytest.mark.parametrize("used", ["both", "y", "state"])
@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
@pytest.mark.parametrize("t", [1, 37, 65])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_the_scan_between_its_products_is_that_of_the_definition(
    dtype: torch.dtype, t: int, last_only: bool, used: str, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "SWAP_FLOAT64", swap)
    inputs = layer_problem(3, t, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    y, state = dense.ssm(*inputs, last_only=last_only)
    y_exact, state_exact = defined_ssm(*exact)
    if last_only:
        y_exact = y_exact[:, -1:]
    assert y.shape == y_exact.shape
    assert error(y.detach(), y_exact.detach()) <= TOLERANCE[dtype]
    assert error(state.detach(), state_exact.detach()) <= TOLERANCE[dtype]

    weights = torch.randn_like(y_exact), torch.randn_like(state_exact)

    def loss(y: Tensor, state: Tensor) -> Tensor:
        parts = {"y": (y.double() * weights[0]).sum(), "state": (state.double() * weights[1]).sum()}
        return parts["y"] + parts["state"] if used == "both" else parts[used]

    grads = torch.autograd.grad(loss(y, state), inputs, allow_unused=True)
    exacts = torch.autograd.grad(loss(y_exact, state_exact), exact, allow_unused=True)
    for name, a, b in zip(("A_bar", "B", "step", "C", "x", "h0"), grads, exacts, strict=True):
        if b is None:
            assert a is None, name
        else:
            assert a is not None, name
            assert error(a, b) <= TOLERANCE[dtype], name


def test_gradcheck_passes_between_the_products() -> None:
    assert torch.autograd.gradcheck(dense.ssm, layer_problem(2, 5, torch.float64))


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


def work(function: Callable[..., Tensor], t: int) -> Work:
    inputs, g = problem("random", 2, t, 4, torch.float64)
    with Work() as counted:
        torch.autograd.grad(function(*inputs), inputs, g)
    return counted


def indexed_loop(A_bar: Tensor, v: Tensor, h0: Tensor) -> Tensor:
    h, states = h0, []
    for t in range(v.shape[1]):
        h = h @ A_bar.T + v[:, t]
        states.append(h)
    return torch.stack(states, 1)


def test_the_cost_grows_with_the_length_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    naive = work(indexed_loop, 512).numbers / work(indexed_loop, 128).numbers
    assert naive > 8
    assert work(dense.scan, 32).numbers < 5 * work(dense.scan, 8).numbers
    assert work(dense.scan, 512).numbers < 6 * work(dense.scan, 128).numbers
    monkeypatch.setattr(dense, "DOUBLING_NUMBERS", 0)
    assert work(dense.scan, 4096).numbers < 5 * work(dense.scan, 1024).numbers


def test_the_number_of_torch_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(dense.scan, 32).calls - work(dense.scan, 16).calls == 16 * 2
    # From 128 to 1024 doubling adds three passes in each direction.
    assert work(dense.scan, 1024).calls - work(dense.scan, 128).calls <= 3 * 2 * 8
    monkeypatch.setattr(dense, "DOUBLING_NUMBERS", 0)
    assert work(dense.scan, 4096).calls < 400


@pytest.mark.parametrize("t", [30, 60])
def test_autograd_records_one_node_whatever_the_length_is(t: int) -> None:
    inputs, _ = problem("random", 2, t, 3, torch.float64)
    node = dense.scan(*inputs).grad_fn
    assert node is not None
    assert {type(child).__name__ for child, _ in node.next_functions} == {"AccumulateGrad"}


def test_only_the_states_and_the_arguments_are_kept_for_the_backward_pass() -> None:
    inputs = layer_problem(2, 50, torch.float64)
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        dense.ssm(*inputs)
    assert sorted(kept) == sorted([*(tuple(tensor.shape) for tensor in inputs), (2, 50, 4)])
