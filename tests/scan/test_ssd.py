"""The fast form of Mamba-2's recurrence gives the definition's outputs and gradients, and costs what it promises."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.scan import recurrence, ssd
from statewise.scan.ssd import ssd as fast

NAMES = ("x", "dt", "A", "B", "C", "h0")
CHUNKS = {torch.float64: (1, 16, 32, 64, 256), torch.float32: (16, 64)}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-5}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
LAST = pytest.mark.parametrize("last_only", [False, True], ids=["all", "last"])


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def error(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max|b|, absolute where b is zero or smaller than the dtype of a holds."""
    a, b, least = a.detach().double(), b.detach(), torch.finfo(a.dtype).tiny ** 0.5
    scale = float(b.abs().max())
    return float((a - b).abs().max()) / (scale if scale > least else 1.0)


def problem(
    t: int, h: int = 4, g: int = 2, *, dt: tuple[float, float] = (1e-3, 0.1), A: float = 16.0, b: int = 2
) -> dict[str, Tensor]:
    """Arguments in float64; dt is uniform in its range, -A uniform up to A."""
    torch.manual_seed(1000 * t + 10 * h + g)
    p, n = 3, 5
    steps = dt[0] + torch.rand(b, t, h) * (dt[1] - dt[0])
    shapes = {"x": (b, t, h, p), "B": (b, t, g, n), "C": (b, t, g, n), "h0": (b, h, p, n)}
    drawn = {name: torch.randn(shape) for name, shape in shapes.items()} | {"dt": steps, "A": -torch.rand(h) * A}
    return {name: drawn[name].double() for name in NAMES}


def definition(last_only: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """The slow form, with the skip and the choice of outputs that the fast one has."""

    def run(D: Tensor | None = None, **arguments: Tensor) -> tuple[Tensor, Tensor]:
        y, h = recurrence.ssd(**arguments)
        y = y if D is None else y + D[:, None] * arguments["x"]
        return (y[:, -1:] if last_only else y), h

    return run


def results(function: Callable[..., tuple[Tensor, Tensor]], arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs, last state, and gradients of one fixed weighting of both."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in arguments.items()}
    y, state = function(**leaves)
    torch.manual_seed(0)
    weights = [torch.randn(tensor.shape, dtype=torch.float64).to(tensor) for tensor in (y, state)]
    gradients = torch.autograd.grad([y, state], list(leaves.values()), weights)
    return {"y": y, "h": state} | {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def errors(arguments: dict[str, Tensor], dtype: torch.dtype, last_only: bool, chunks: tuple[int, ...]) -> dict[str, float]:
    """The largest error of each result over the chunk lengths, against the definition in float64 on the same numbers."""
    rounded = {name: tensor.to(dtype) for name, tensor in arguments.items()}
    exact = results(definition(last_only), {name: tensor.double() for name, tensor in rounded.items()})
    # The last output alone has no chunks.
    found = [results(partial(fast, chunk_size=k, last_only=last_only), rounded) for k in chunks[: 1 if last_only else None]]
    return {name: max(error(result[name], exact[name]) for result in found) for name in exact}


@LAST
@pytest.mark.parametrize(
    ("h", "g", "dtype"),
    [(1, 1, torch.float64), (4, 1, torch.float64), (3, 3, torch.float64), (4, 2, torch.float64), (4, 2, torch.float32)],
    ids=["h1 g1 f64", "h4 g1 f64", "h3 g3 f64", "h4 g2 f64", "h4 g2 f32"],
)
@pytest.mark.parametrize("t", [1, 37, 60, 64, 65])
def test_outputs_and_gradients_are_those_of_the_definition(t: int, h: int, g: int, dtype: torch.dtype, last_only: bool) -> None:
    found = errors(problem(t, h, g), dtype, last_only, CHUNKS[dtype])
    assert max(found.values()) <= TOLERANCE[dtype], found


@LAST
@DTYPES
def test_long_sequences_are_exact_too(dtype: torch.dtype, last_only: bool) -> None:
    found = errors(problem(500), dtype, last_only, CHUNKS[dtype])
    assert max(found.values()) <= TOLERANCE[dtype], found


@LAST
@DTYPES
@pytest.mark.parametrize("t", [37, 130])
@pytest.mark.parametrize(
    ("dt", "A"),
    [((0.0, 10.0), 1e3), ((0.0, 0.1), 1e3), ((0.0, 10.0), 16.0), ((0.0, 1e-3), 1e3)],
    ids=["dt 10 A 1e3", "dt 0.1 A 1e3", "dt 10 A 16", "dt 1e-3 A 1e3"],
)
def test_large_steps_and_rates_stay_finite_and_exact(
    dt: tuple[float, float], A: float, t: int, dtype: torch.dtype, last_only: bool
) -> None:
    found = errors(problem(t, dt=dt, A=A), dtype, last_only, (16, 64))
    # dA is the sum of what hardly any step passes on, times dt.
    loose = found.pop("dA")
    assert max(found.values()) <= TOLERANCE[dtype], found
    assert loose <= (1e-11 if dtype == torch.float64 else 2e-3)


@DTYPES
@LAST
def test_nothing_is_nan_where_everything_underflows(last_only: bool, dtype: torch.dtype) -> None:
    arguments = {name: tensor.to(dtype) for name, tensor in problem(130, dt=(9.0, 10.0), A=1e3).items()}
    arguments["A"] = arguments["A"] - 500
    found = results(partial(fast, last_only=last_only), arguments)
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())


@pytest.mark.parametrize("rate", [1.0, 30.0, 300.0])
def test_small_gradients_of_the_rates_are_exact_among_large_ones(rate: float) -> None:
    arguments = problem(65, dt=(1.0, 1.0))
    arguments["A"] = torch.full_like(arguments["A"], -rate)
    assert errors(arguments, torch.float64, False, (16, 64))["dA"] <= 1e-12


@LAST
def test_a_step_of_zero_changes_nothing_and_has_a_gradient(last_only: bool) -> None:
    arguments = problem(70)
    arguments["dt"][:, 10:] = 0.0
    found = errors(arguments, torch.float64, last_only, (16, 64))
    assert max(found.values()) <= TOLERANCE[torch.float64], found
    shorter = {name: tensor[:, :10] if name in ("x", "dt", "B", "C") else tensor for name, tensor in arguments.items()}
    assert error(fast(**arguments, last_only=last_only)[1], fast(**shorter, last_only=last_only)[1]) <= 1e-15
    assert results(partial(fast, last_only=last_only), arguments)["ddt"][:, 10:].abs().min() > 0


@LAST
def test_outputs_alone_and_the_state_alone_pass_their_gradients(last_only: bool) -> None:
    arguments = problem(70)
    leaves = [tensor.requires_grad_() for tensor in arguments.values()]
    for which in (0, 1):
        gradients = []
        for function in (partial(fast, last_only=last_only), definition(last_only)):
            result = function(**dict(zip(NAMES, leaves, strict=True)))[which]
            torch.manual_seed(0)
            weight = torch.randn(result.shape, dtype=torch.float64)
            gradients.append(torch.autograd.grad(result, leaves, weight, materialize_grads=True))
        assert max(error(a, b) for a, b in zip(*gradients, strict=True)) <= 1e-12


@LAST
@pytest.mark.parametrize("t", [60, 130])
def test_no_state_is_a_state_of_zeros(t: int, last_only: bool) -> None:
    arguments = problem(t)
    arguments["h0"] = torch.zeros_like(arguments["h0"])
    expected = results(partial(fast, last_only=last_only), arguments)
    found = results(partial(fast, last_only=last_only), {name: arguments[name] for name in NAMES if name != "h0"})
    assert max(error(found[name], expected[name]) for name in found) <= 1e-14
    assert expected["dh0"].abs().max() > 0
    # A state of zeros without a gradient is seen to be one.
    y, h = fast(**arguments, last_only=last_only)
    assert torch.equal(y, found["y"])
    assert torch.equal(h, found["h"])


@LAST
@pytest.mark.parametrize("t", [60, 130])
def test_the_skip_adds_D_x(t: int, last_only: bool) -> None:
    arguments = problem(t) | {"D": torch.randn(4, dtype=torch.float64)}
    found = results(partial(fast, last_only=last_only), arguments)
    expected = results(definition(last_only), arguments)
    assert max(error(found[name], expected[name]) for name in expected) <= 1e-12


@LAST
def test_the_state_carries_on(last_only: bool) -> None:
    arguments = problem(130)
    y, h = fast(**arguments, last_only=last_only)
    state, outputs = arguments["h0"], []
    for start in range(0, 130, 37):
        part = {name: arguments[name][:, start : start + 37] for name in ("x", "dt", "B", "C")}
        y_part, state = fast(**part, A=arguments["A"], h0=state, last_only=last_only)
        outputs.append(y_part)
    together = outputs[-1] if last_only else torch.cat(outputs, dim=1)
    assert max(error(together, y), error(state, h)) <= 1e-13


@LAST
def test_bfloat16_arguments_are_computed_in_float32(last_only: bool) -> None:
    arguments = {name: tensor.bfloat16() for name, tensor in problem(70).items()}
    y, h = fast(**arguments, last_only=last_only)
    y_wide, h_wide = fast(**{name: tensor.float() for name, tensor in arguments.items()}, last_only=last_only)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, y_wide.bfloat16())
    assert h.dtype == torch.float32
    assert torch.equal(h, h_wide)


@LAST
def test_mixed_precision_changes_nothing(last_only: bool) -> None:
    arguments = {name: tensor.float() for name, tensor in problem(70).items()}
    plain = results(partial(fast, last_only=last_only), arguments)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = results(partial(fast, last_only=last_only), arguments)
    assert all(torch.equal(plain[name], mixed[name]) for name in plain)


@LAST
def test_the_gradients_pass_gradcheck(last_only: bool) -> None:
    arguments = [tensor.requires_grad_() for tensor in (*problem(5, 2, 1, b=1).values(), torch.randn(2, dtype=torch.float64))]
    run = partial(fast, chunk_size=3, last_only=last_only)
    assert torch.autograd.gradcheck(lambda *given: run(*given[:-1], D=given[-1]), arguments, fast_mode=True)


@LAST
def test_a_second_derivative_is_refused(last_only: bool) -> None:
    arguments = problem(5)
    leaves = [tensor.requires_grad_() for tensor in arguments.values()]
    y, _ = fast(*leaves, last_only=last_only)
    (gradient,) = torch.autograd.grad(y.square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_series_that_are_cut_apart_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = problem(130, b=5)
    together = results(fast, arguments)
    monkeypatch.setattr(ssd, "CACHED_NUMBERS", 2 * 4 * 64 * 64)
    apart = results(fast, arguments)
    assert max(error(apart[name], together[name]) for name in together) <= 1e-14


def test_without_gradients_the_result_is_the_same_and_no_states_are_kept() -> None:
    arguments = problem(130)
    expected = fast(**{name: tensor.requires_grad_() for name, tensor in arguments.items()}, chunk_size=1)
    with torch.no_grad(), Largest() as largest:
        found = fast(**arguments, chunk_size=1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert largest.numel <= arguments["x"].numel()


def test_nothing_is_larger_than_the_matrices_of_one_chunk() -> None:
    arguments = problem(400)
    b, t, h, p = arguments["x"].shape
    k, n = 16, arguments["B"].shape[3]
    with Largest() as largest:
        results(partial(fast, chunk_size=k), arguments)
    # Not a state for every step, nor the matrices of all chunks at once.
    assert largest.numel <= max(b * h * k * k, b * t * h * p) < b * t * h * min(p * n, k)


def test_an_accelerator_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Numbers of the meta device cannot be looked at: whatever reads one fails. It knows no mixed precision either.
    monkeypatch.setattr(ssd, "full_precision", lambda _: nullcontext())
    arguments = {name: tensor.to("meta") for name, tensor in problem(130).items()}
    for last_only in (False, True):
        found = results(partial(fast, last_only=last_only), arguments)
        assert {name: found[f"d{name}"].shape for name in NAMES} == {name: arguments[name].shape for name in NAMES}


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one time step"):
        fast(**{name: tensor[:, :0] if name in ("x", "dt", "B", "C") else tensor for name, tensor in problem(3).items()})


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result
