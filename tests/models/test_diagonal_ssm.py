"""The diagonal layer: its parameters and how they begin, one definition for every way to run it, and its contracts."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from statewise.models.diagonal_ssm import DiagonalSSM, diagonal_ssm, discretise, phi1
from statewise.models.forecaster import Forecaster, Layer
from statewise.scan import recurrence
from statewise.stability import Transition

DISCRETIZATIONS = ("zoh", "bilinear")
INITS = ("s4d_lin", "s4d_inv", "ring")
PARAMETERS = ("log_A_real", "A_imag", "C", "log_step")


def layer(
    discretization: str = "zoh", init: str = "s4d_lin", skip: bool = True, dtype: torch.dtype = torch.float64
) -> DiagonalSSM:
    """A small layer with a D that shows."""
    torch.manual_seed(0)
    made = DiagonalSSM(d_model=3, d_state=8, discretization=discretization, init=init, skip=skip).to(dtype)
    with torch.no_grad():
        if made.D is not None:
            made.D.normal_()
    return made


def literal(made: DiagonalSSM, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """The layer as the papers write it."""
    A = torch.complex(-made.log_A_real.exp(), made.A_imag)
    step = made.log_step.exp()[:, None]
    if made.discretization == "zoh":
        A_bar = torch.exp(step * A)
        B_bar = (A_bar - 1) / A
    else:
        A_bar = (1 + step * A / 2) / (1 - step * A / 2)
        B_bar = step / (1 - step * A / 2)
    C, state = torch.complex(made.C[..., 0], made.C[..., 1]), torch.complex(h0[..., 0], h0[..., 1])
    y, h = recurrence.diagonal(A_bar, B_bar, C, x, state)
    return y if made.D is None else y + made.D * x, torch.stack([h.real, h.imag], -1)


@pytest.mark.parametrize("skip", [False, True], ids=["no D", "D"])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("t", [1, 12, 70])
def test_outputs_and_gradients_are_the_definition(discretization: str, init: str, skip: bool, t: int) -> None:
    made = layer(discretization, init, skip)
    x = torch.randn(2, t, 3, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(2, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    results = []
    for y, state in (made(x, h0), literal(made, x, h0)):
        grads = torch.autograd.grad(y.square().sum() + state.sum(), [x, h0, *made.parameters()])
        results.append([y, state, *grads])
    for fast, exact in zip(*results, strict=True):
        torch.testing.assert_close(fast, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"])
def test_full_chunked_and_step_by_step_passes_agree(
    dtype: torch.dtype, tolerance: float, discretization: str, init: str
) -> None:
    made = layer(discretization, init, dtype=dtype)
    x = torch.randn(2, 80, 3, dtype=dtype)
    y, end = made(x)

    def close(a: Tensor, b: Tensor) -> None:
        assert float((a - b).detach().abs().max() / b.detach().abs().max()) <= tolerance

    for size in (1, 5, 16, 37):
        state, parts = made.initial_state(2), []
        for chunk in x.split(size, dim=1):
            part, state = made(chunk, state)
            parts.append(part)
        close(torch.cat(parts, 1), y)
        close(state, end)
    state, parts = made.initial_state(2), []
    for x_t in x.unbind(1):
        y_t, state = made.step(x_t, state)
        parts.append(y_t)
    close(torch.stack(parts, 1), y)
    close(state, end)
    last, last_state = made(x, last_only=True)
    close(last, y[:, -1:])
    close(last_state, end)


@pytest.mark.parametrize("last_only", [False, True], ids=["all steps", "last step"])
def test_a_state_of_zeros_may_be_left_out_but_not_its_gradient(last_only: bool) -> None:
    made = layer()
    x = torch.randn(2, 12, 3, dtype=torch.float64)
    zeros = made.initial_state(2).requires_grad_()
    y, state = made(x, zeros, last_only=last_only)
    exact, exact_state = literal(made, x, zeros)
    exact = exact[:, -1:] if last_only else exact
    for without in (None, zeros.detach()):
        torch.testing.assert_close(made(x, without, last_only=last_only)[0], exact)
    found = torch.autograd.grad(y.square().sum() + state.sum(), zeros)
    expected = torch.autograd.grad(exact.square().sum() + exact_state.sum(), zeros)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("t", [20, 64, 65, 200])
def test_outputs_depend_on_no_later_input(t: int, discretization: str) -> None:
    made = layer(discretization)
    x = torch.randn(1, t, 3, dtype=torch.float64)
    changed = x.clone()
    changed[:, t // 2 :] += 1
    y, other = made(x)[0], made(changed)[0]
    torch.testing.assert_close(y[:, : t // 2], other[:, : t // 2], rtol=0, atol=1e-13)
    assert bool((y[:, t // 2] - other[:, t // 2]).abs().max() > 1e-3)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_batch_size_comes_from_the_input_and_is_the_first_axis_of_the_state(batch: int) -> None:
    made = layer()
    y, state = made(torch.randn(batch, 4, 3, dtype=torch.float64))
    assert y.shape == (batch, 4, 3)
    assert state.shape == made.initial_state(batch).shape == (batch, 3, 4, 2)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_everything_has_the_dtype_of_the_parameters(discretization: str, dtype: torch.dtype) -> None:
    made = layer(discretization, dtype=dtype)
    x = torch.randn(2, 6, 3, dtype=dtype)
    y, state = made(x)
    y.sum().backward()
    y_t, state_t = made.step(x[:, 0], made.initial_state(2))
    tensors = [y, state, y_t, state_t, made.initial_state(2), *(p.grad for p in made.parameters())]
    assert {tensor.dtype for tensor in tensors if tensor is not None} == {dtype}


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_under_mixed_precision_the_layer_keeps_its_own(discretization: str) -> None:
    made = layer(discretization, dtype=torch.float32)
    x = torch.randn(2, 20, 3)
    expected = made(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = made(x)
        low, state = made(x.bfloat16())
        y_t, _ = made.step(x[:, 0].bfloat16(), state)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(low, expected, rtol=0.05, atol=0.05)
    assert {low.dtype, state.dtype, y_t.dtype} == {torch.float32}
    low.sum().backward()
    assert made.C.grad is not None
    assert made.C.grad.dtype == torch.float32


@pytest.mark.parametrize("skip", [False, True], ids=["no D", "D"])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_parameters_and_buffers_are_real_and_all_parameters_train(discretization: str, init: str, skip: bool) -> None:
    made = layer(discretization, init, skip)
    shapes = {name: tuple(parameter.shape) for name, parameter in made.named_parameters()}
    assert shapes == {"log_A_real": (3, 4), "A_imag": (3, 4), "C": (3, 4, 2), "log_step": (3,)} | ({"D": (3,)} if skip else {})
    assert not any(tensor.is_complex() for tensor in made.state_dict().values())
    made(torch.randn(2, 6, 3, dtype=torch.float64), last_only=True)[0].square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.norm() > 0, name


def built(**options: Any) -> list[DiagonalSSM]:
    """The layers of a whole model, converted as a run in float64 converts them."""
    torch.manual_seed(0)
    model = diagonal_ssm(**{**FORECASTER, "d_model": 256, **options}).double()
    return [made for made in model.modules() if isinstance(made, DiagonalSSM)]


def law(sample: Tensor, low: float, high: float) -> float:
    """The p-value of the sample being uniform between the bounds."""
    return float(scipy.stats.kstest(sample.detach().flatten().numpy(), "uniform", (low, high - low)).pvalue)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("init", ["s4d_lin", "s4d_inv"])
def test_s4d_begins_with_the_papers_frequencies_and_log_uniform_steps(init: str, discretization: str) -> None:
    frequencies = {
        "s4d_lin": [0, math.pi, 2 * math.pi, 3 * math.pi],
        "s4d_inv": [8 / math.pi * 7, 8 / math.pi * (8 / 3 - 1), 8 / math.pi * (8 / 5 - 1), 8 / math.pi * (8 / 7 - 1)],
    }
    layers = built(init=init, discretization=discretization, d_state=8, step_min=0.01, step_max=0.5)
    assert len(layers) == 2
    for made in layers:
        torch.testing.assert_close(made.log_A_real.exp(), torch.full((256, 4), 0.5).double(), rtol=1e-6, atol=0)
        expected = torch.tensor(frequencies[init]).double().expand(256, 4)
        torch.testing.assert_close(made.A_imag.detach(), expected, rtol=1e-6, atol=0)
        assert law(made.log_step, math.log(0.01), math.log(0.5)) > 1e-3
        assert scipy.stats.kstest(made.C.detach().flatten().numpy(), "norm", (0, math.sqrt(0.5))).pvalue > 1e-3
        assert bool((made.D == 1).all())
    assert not torch.equal(layers[0].log_step, layers[1].log_step)


@pytest.mark.parametrize("bounds", [(0.5, 0.99, 1.0), (0.0, 0.8, 0.25)], ids=str)
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_ring_begins_uniform_by_area_in_its_ring_under_either_discretisation(
    discretization: str, bounds: tuple[float, float, float]
) -> None:
    low, high, phase = bounds
    options = {"ring_min": low, "ring_max": high, "ring_phase": phase}
    for made in built(init="ring", discretization=discretization, **options):
        A_bar = made.discrete()[0].detach()
        assert low - 1e-6 <= float(A_bar.abs().min())
        assert float(A_bar.abs().max()) <= high + 1e-6
        assert law(A_bar.abs().square(), low**2, high**2) > 1e-3
        assert law(A_bar.angle(), 0, math.pi * phase) > 1e-3
        assert abs(np.corrcoef(A_bar.abs().flatten(), A_bar.angle().flatten())[0, 1]) < 0.05
        assert bool((made.log_step == 0).all())


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_in_the_ring_white_noise_comes_out_of_fast_and_slow_states_equally_strong(discretization: str) -> None:
    for made in built(init="ring", discretization=discretization):
        A_bar, B_bar, C = (tensor.detach() for tensor in made.discrete())
        # The variance of a state that white noise drives, through its gain.
        power = 8 * (C * B_bar).abs().square() / (1 - A_bar.abs().square())
        slow = A_bar.abs() > A_bar.abs().median()
        assert float(power[slow].mean()) == pytest.approx(1, abs=0.1)
        assert float(power[~slow].mean()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_every_value_of_the_parameters_is_stable_with_finite_gradients(dtype: torch.dtype, discretization: str) -> None:
    made = DiagonalSSM(d_model=5, d_state=12, discretization=discretization).to(dtype)
    with torch.no_grad():
        made.log_A_real.copy_(torch.tensor([-1e4, -100.0, -17.0, 0.0, 20.0, 1e4]))
        made.log_step.copy_(torch.tensor([-1e4, -50.0, 0.0, 10.0, 1e4]))
    x = torch.randn(2, 70, 5, dtype=dtype)
    for frequency in (0.0, 1e-30, 1.0, math.pi, 1e6):
        with torch.no_grad():
            made.A_imag.fill_(frequency)
        made.zero_grad()
        A_bar, B_bar, _ = made.discrete()
        assert bool((A_bar.abs() < 1).all())
        assert bool(B_bar.abs().isfinite().all())
        y, state = made(x)
        (y.square().sum() + state.sum()).backward()
        for name, tensor in [("y", y), ("state", state), *((name, p.grad) for name, p in made.named_parameters())]:
            assert tensor is not None
            assert bool(tensor.isfinite().all()), (name, frequency)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_a_state_that_rounding_holds_at_the_bound_can_leave_it(discretization: str) -> None:
    made = layer(discretization, dtype=torch.float32)
    with torch.no_grad():
        made.log_A_real.fill_(-20)
        made.log_step.zero_()
    before = made.discrete()[0].detach().abs()
    assert bool((before < 1).all())
    assert bool((before > 1 - 1e-6).all())
    optimizer = torch.optim.Adam([made.log_A_real], lr=0.5)
    for _ in range(25):
        optimizer.zero_grad()
        made(torch.ones(1, 50, 3))[1].square().sum().backward()
        optimizer.step()
    assert bool((made.discrete()[0].abs() < 1 - 1e-5).any())


def test_the_bound_changes_no_state_that_decays() -> None:
    z = torch.complex(-torch.logspace(-10, 1, 50).double(), torch.linspace(-3, 3, 50).double())[None]
    A_bar, _ = discretise(z, torch.ones(1, 1).double(), "zoh")
    assert torch.equal(A_bar, torch.exp(z))


def test_phi1_and_its_derivative_are_exact_at_every_distance_from_zero() -> None:
    radii = torch.logspace(-18, 2, 201).double()
    angles = torch.linspace(0, 2 * torch.pi, 13).double()[:, None]
    z = torch.polar(radii.expand(13, -1).contiguous(), angles.expand(-1, 201).contiguous())
    z = z[z.real <= 0][None].requires_grad_()
    wide = z.detach().numpy().astype(np.clongdouble)
    expected = np.expm1(wide) / wide
    # Where the quotient would cancel even in extended precision, the first terms of the series are all there is.
    derivative = np.where(np.abs(wide) < 1e-4, 0.5 + wide / 3 + wide**2 / 8 + wide**3 / 30, (np.exp(wide) - expected) / wide)
    found = phi1(z)
    (gradient,) = torch.autograd.grad(found.real.sum(), z)
    assert np.abs(found.detach().numpy() / expected - 1).max() < 2e-15
    assert np.abs(gradient.conj().resolve_conj().numpy() / derivative - 1).max() < 2e-14
    zero = torch.zeros(1, 1, dtype=torch.complex128, requires_grad=True)
    phi1(zero).real.sum().backward()
    assert (phi1(zero).item(), zero.grad.item()) == (1, 0.5)


def test_the_layer_tells_what_must_train_and_what_must_not_decay() -> None:
    plain, skipping = layer(skip=False), layer()
    assert isinstance(plain, Layer)
    assert not isinstance(plain, Transition)
    kept = ("log_A_real", "A_imag", "log_step")
    same = {"constants": (), "causal": ("",)}
    assert plain.health_contract() == {"trainable": PARAMETERS, "no_weight_decay": kept, **same}
    assert skipping.health_contract() == {"trainable": (*PARAMETERS, "D"), "no_weight_decay": (*kept, "D"), **same}
    assert [id(p) for p in plain.no_weight_decay()] == [id(p) for p in (plain.log_A_real, plain.A_imag, plain.log_step)]
    copied = copy.deepcopy(skipping)
    exempt = (copied.log_A_real, copied.A_imag, copied.log_step, copied.D)
    assert [id(p) for p in copied.no_weight_decay()] == [id(p) for p in exempt]


FORECASTER = {
    "n_features": 3,
    "n_outputs": 1,
    "target_inputs": (0,),
    "targets_are_levels": True,
    "horizon": 1,
}


def test_every_option_reaches_its_place() -> None:
    options = {"discretization": "bilinear", "init": "ring", "ring_min": 0.9, "ring_max": 0.9, "ring_phase": 0.0, "skip": False}
    model = diagonal_ssm(**FORECASTER, d_model=4, d_state=6, n_layers=3, linear_skip=2, norm="rms", glu=False, **options)
    assert isinstance(model, Forecaster)
    assert len(model.layers) == 3
    made = model.layers[0]
    assert isinstance(made, DiagonalSSM)
    torch.testing.assert_close(made.discrete()[0].detach(), torch.full((4, 3), 0.9 + 0j))
    assert made.D is None
    assert isinstance(model.norm_0, nn.RMSNorm)
    assert not hasattr(model, "glu_0")
    assert model.linear_skip == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 0}, "model.d_model must be at least 1, got 0"),
        ({"d_state": 0}, "model.d_state must be even and at least 2, got 0"),
        ({"d_state": 5}, "model.d_state must be even and at least 2, got 5"),
        ({"n_layers": 0}, "model.n_layers must be at least 1, got 0"),
        ({"discretization": "direct"}, "model.discretization must be one of zoh, bilinear, got 'direct'"),
        ({"init": "s4d_linear"}, "model.init must be one of s4d_lin, s4d_inv, ring, got 's4d_linear'; did you mean s4d_lin?"),
        ({"step_min": 0.0}, "model.step_min and model.step_max must obey 0 < min <= max, got 0.0 and "),
        ({"step_min": 0.1, "step_max": 0.01}, "model.step_min and model.step_max must obey 0 < min <= max, got 0.1 and 0.01"),
        ({"step_max": math.nan}, "model.step_min and model.step_max must obey"),
        ({"ring_max": 1.0}, "model.ring_min and model.ring_max must obey 0 <= min <= max < 1, got "),
        (
            {"ring_min": 0.9, "ring_max": 0.8},
            "model.ring_min and model.ring_max must obey 0 <= min <= max < 1, got 0.9 and 0.8",
        ),
        ({"ring_phase": 2.0}, "model.ring_phase must be from 0 to 1, in half turns a step, got 2.0"),
        ({"norm": "batch"}, "model.norm must be one of layer, rms, none, got 'batch'"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        diagonal_ssm(**{**FORECASTER, **arguments})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
