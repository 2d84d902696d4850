"""The dense layer: its parameters and how they begin, one definition for every way to run it, and its contracts."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from statewise.models.dense_ssm import DenseSSM, dense_ssm, rotation_generator
from statewise.models.forecaster import Layer
from statewise.scan import recurrence
from statewise.stability import NonPositiveStep, discretise_direct, discretise_zoh, spectral_radii

DISCRETIZATIONS = ("direct", "zoh")


def layer(discretization: str = "direct", skip: bool = False, dtype: torch.dtype = torch.float64) -> DenseSSM:
    """A small layer whose delta has no two equal entries."""
    torch.manual_seed(0)
    made = DenseSSM(d_model=3, expand=2, d_state=5, discretization=discretization, skip=skip).to(dtype)
    with torch.no_grad():
        made.delta.copy_(torch.tensor([0.5, 0.9, 1.3]))
        if made.D is not None:
            made.D.normal_()
    return made


def literal(made: DenseSSM, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """The layer as the papers write it."""
    discretise = discretise_zoh if made.discretization == "zoh" else discretise_direct
    A_bar, B_bar = discretise(made.A, made.B, made.delta.mean())
    h = recurrence.scan(A_bar, x @ B_bar.T, h0)
    y = h @ made.C.T
    return (y if made.D is None else y + made.D * x), h[:, -1]


@pytest.mark.parametrize("skip", [False, True], ids=["no D", "D"])
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("t", [1, 12, 70])
def test_outputs_and_gradients_are_the_definition(discretization: str, skip: bool, t: int) -> None:
    made = layer(discretization, skip)
    x = torch.randn(2, t, 6, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(2, 5, dtype=torch.float64)
    results = []
    for y, state in (made(x, h0), literal(made, x, h0)):
        grads = torch.autograd.grad(y.square().sum() + state.sum(), [x, *made.parameters()])
        results.append([y, state, *grads])
    for fast, exact in zip(*results, strict=True):
        torch.testing.assert_close(fast, exact, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("skip", [False, True], ids=["no D", "D"])
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_full_chunked_and_step_by_step_passes_agree(discretization: str, skip: bool) -> None:
    made = layer(discretization, skip)
    x = torch.randn(3, 80, 6, dtype=torch.float64)
    y, end = made(x)
    for cuts in ([1, 79], [50, 30], [7] * 11 + [3]):
        state, parts = made.initial_state(3), []
        for chunk in x.split(cuts, dim=1):
            part, state = made(chunk, state)
            parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 1), y, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(state, end, rtol=1e-11, atol=1e-12)
    state, parts = made.initial_state(3), []
    for x_t in x.unbind(1):
        y_t, state = made.step(x_t, state)
        parts.append(y_t)
    torch.testing.assert_close(torch.stack(parts, 1), y, rtol=1e-11, atol=1e-12)
    last, last_state = made(x, last_only=True)
    torch.testing.assert_close(last, y[:, -1:], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last_state, end)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_outputs_depend_on_no_later_input(discretization: str) -> None:
    made = layer(discretization, skip=True)
    x = torch.randn(1, 20, 6, dtype=torch.float64)
    changed = x.clone()
    changed[:, 12:] += 1
    y, other = made(x)[0], made(changed)[0]
    torch.testing.assert_close(y[:, :12], other[:, :12], rtol=0, atol=1e-13)
    assert bool((y[:, 12] - other[:, 12]).abs().max() > 1e-3)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_batch_size_comes_from_the_input(batch: int) -> None:
    y, state = layer()(torch.randn(batch, 4, 6, dtype=torch.float64))
    assert y.shape == (batch, 4, 6)
    assert state.shape == (batch, 5)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_everything_has_the_dtype_of_the_parameters(discretization: str, dtype: torch.dtype) -> None:
    made = layer(discretization, skip=True, dtype=dtype)
    x = torch.randn(2, 6, 6, dtype=dtype)
    y, state = made(x)
    y.sum().backward()
    y_t, state_t = made.step(x[:, 0], made.initial_state(2))
    tensors = [y, state, y_t, state_t, made.discrete_transition(), *(p.grad for p in made.parameters())]
    assert {tensor.dtype for tensor in tensors if tensor is not None} == {dtype}


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_under_mixed_precision_the_layer_keeps_its_own(discretization: str) -> None:
    made = layer(discretization, dtype=torch.float32)
    x = torch.randn(2, 20, 6)
    expected = made(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = made(x)
        low, _ = made(x.bfloat16())
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(low, expected, rtol=0.05, atol=0.05)
    low.sum().backward()
    assert made.B.grad is not None
    assert made.B.grad.dtype == torch.float32


@pytest.mark.parametrize("skip", [False, True], ids=["no D", "D"])
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_the_parameters_have_the_shapes_of_the_papers_and_all_train(discretization: str, skip: bool) -> None:
    made = layer(discretization, skip)
    shapes = {name: tuple(parameter.shape) for name, parameter in made.named_parameters()}
    assert shapes == {"A": (5, 5), "B": (5, 6), "C": (6, 5), "delta": (3,)} | ({"D": (6,)} if skip else {})
    made(torch.randn(2, 6, 6, dtype=torch.float64))[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.norm() > 0 for parameter in made.parameters())


def test_only_the_mean_of_delta_counts_and_it_stays_in_the_graph() -> None:
    made, x = layer(), torch.randn(2, 6, 6, dtype=torch.float64)
    y = made(x)[0]
    y.square().sum().backward()
    assert made.delta.grad is not None
    assert torch.equal(made.delta.grad, made.delta.grad[:1].expand(3))
    with torch.no_grad():
        made.delta.copy_(made.delta.mean().expand(3))
    torch.testing.assert_close(made(x)[0], y)


@pytest.mark.parametrize("d_state", [1, 2, 7, 16])
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_rotation_starts_with_the_time_constants_it_promises(discretization: str, d_state: int) -> None:
    torch.manual_seed(1)
    made = DenseSSM(d_model=4, d_state=d_state, discretization=discretization).double()
    eigenvalues = torch.linalg.eigvals(made.discrete_transition())
    times = -1 / eigenvalues.abs().log()
    assert float(times.min()) == pytest.approx(1.5, rel=1e-4)
    if d_state > 2:
        assert float(times.max()) == pytest.approx(100, rel=1e-4)
    angles = eigenvalues.angle().abs()
    assert float(angles.max()) < math.pi
    assert len(angles.round(decimals=4).unique()) == (d_state + 1) // 2


def test_rotation_is_normal_in_a_basis_that_differs_from_layer_to_layer() -> None:
    G, other = rotation_generator(8), rotation_generator(8)
    torch.testing.assert_close(G @ G.T, G.T @ G)
    assert not torch.allclose(G, other)


def test_uniform_starts_within_its_bounds_and_fills_them() -> None:
    made = DenseSSM(d_model=64, d_state=32, init="uniform")
    for matrix in (made.A.detach(), made.B.detach(), made.C.detach()):
        assert float(matrix.abs().max()) <= 0.02
        assert float(matrix.std()) == pytest.approx(0.02 / math.sqrt(3), rel=0.1)
    assert torch.equal(made.delta, torch.ones(64))


def test_rotation_starts_its_input_and_output_by_fan_in() -> None:
    made = DenseSSM(d_model=64, expand=4, d_state=16)
    assert float(made.B.detach().std()) == pytest.approx(1 / 16, rel=0.1)
    assert float(made.C.detach().std()) == pytest.approx(1 / 4, rel=0.1)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("factor", [0.3, 0.99])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=["f64", "f32"])
def test_scaling_the_transition_scales_its_radius_exactly(
    discretization: str, factor: float, dtype: torch.dtype, tolerance: float
) -> None:
    made = layer(discretization, dtype=dtype)
    before = {name: parameter.clone() for name, parameter in made.named_parameters()}
    A_bar = made.discrete_transition()
    identity = id(made.A)
    made.scale_transition_(factor)
    torch.testing.assert_close(made.discrete_transition(), factor * A_bar, rtol=10 * tolerance, atol=tolerance)
    ratio = spectral_radii([made.discrete_transition()]) / spectral_radii([A_bar])
    assert float(ratio) == pytest.approx(factor, rel=tolerance)
    assert id(made.A) == identity
    assert made.A.requires_grad
    assert all(torch.equal(before[name], parameter) for name, parameter in made.named_parameters() if name != "A")


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_the_discrete_transition_is_a_copy_of_what_the_recurrence_uses(discretization: str) -> None:
    made = layer(discretization)
    A_bar = made.discrete_transition()
    h0 = torch.eye(5, dtype=torch.float64)
    _, h1 = made(torch.zeros(5, 1, 6, dtype=torch.float64), h0)
    torch.testing.assert_close(h1, A_bar.T)
    before = made.A.clone()
    A_bar.zero_()
    assert torch.equal(made.A, before)
    assert not A_bar.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("mean", [5e-4, 0.0, -3.0])
def test_a_step_that_is_too_small_is_lifted_by_one_constant_once(mean: float, dtype: torch.dtype) -> None:
    made = layer("zoh", dtype=dtype)
    with torch.no_grad():
        made.delta.add_(mean - made.delta.mean())
    before = made.delta.detach().clone()
    lift = made.lift_step_()
    torch.testing.assert_close(made.delta.detach(), before + lift)
    assert 1e-3 <= float(made.delta.detach().double().mean()) < 1.001e-3
    assert lift == pytest.approx(1e-3 - mean, rel=1e-3)
    assert made.lift_step_() == 0.0
    made(torch.randn(1, 3, 6, dtype=dtype))


def test_a_step_that_is_large_enough_or_direct_is_left_alone_byte_for_byte() -> None:
    for made in (layer("zoh"), layer("direct")):
        if made.discretization == "direct":
            nn.init.constant_(made.delta, -1.0)
        before = made.delta.detach().clone()
        assert made.lift_step_() == 0.0
        assert torch.equal(made.delta, before)


@pytest.mark.parametrize("mean", [0.0, -0.5, math.nan])
def test_a_step_that_is_not_positive_is_a_named_error_under_zoh(mean: float) -> None:
    made = layer("zoh")
    nn.init.constant_(made.delta, mean)
    for use in (
        made.discrete_transition,
        lambda: made(torch.zeros(1, 2, 6, dtype=torch.float64)),
        lambda: made.scale_transition_(0.5),
    ):
        with pytest.raises(NonPositiveStep, match=r"mean\(delta\) must be above 0 under model.discretization=zoh"):
            use()


def test_a_checkpoint_with_such_a_step_is_refused_before_anything_is_loaded() -> None:
    stack = nn.Sequential(layer("zoh"), layer("zoh"))
    before = copy.deepcopy(stack.state_dict())
    bad = copy.deepcopy(before)
    bad["1.delta"].fill_(-1)
    bad["1.A"].fill_(7)
    with pytest.raises(NonPositiveStep, match=r"mean\(1.delta\) must be above 0"):
        stack.load_state_dict(bad)
    assert torch.equal(stack.state_dict()["1.A"], before["1.A"])
    copy.deepcopy(stack).load_state_dict(before)
    direct = nn.Sequential(layer("direct"), layer("direct"))
    direct.load_state_dict(bad)


def test_the_layer_tells_what_must_train_and_what_must_not_decay() -> None:
    plain, skipping = layer(), layer(skip=True)
    assert isinstance(plain, Layer)
    same = {"constants": (), "causal": ("",)}
    assert plain.health_contract() == {"trainable": ("A", "B", "C", "delta"), "no_weight_decay": ("A", "delta"), **same}
    assert "D" in skipping.health_contract()["trainable"]
    assert [id(p) for p in plain.no_weight_decay()] == [id(plain.A), id(plain.delta)]
    assert [id(p) for p in skipping.no_weight_decay()] == [id(skipping.A), id(skipping.delta), id(skipping.D)]


FORECASTER = {
    "n_features": 3,
    "n_outputs": 1,
    "target_inputs": (0,),
    "targets_are_levels": True,
    "horizon": 1,
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 0}, "model.d_model must be at least 1, got 0"),
        ({"expand": 0}, "model.expand must be at least 1, got 0"),
        ({"d_state": 0}, "model.d_state must be at least 1, got 0"),
        ({"d_state": -1}, "model.d_state must be at least 1, got -1"),
        ({"n_layers": 0}, "model.n_layers must be at least 1, got 0"),
        ({"linear_skip": -1}, "model.linear_skip must be at least 0, got -1"),
        ({"dropout": 1.0}, "model.dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": math.nan}, "model.dropout must be at least 0 and below 1, got nan"),
        ({"discretization": "zho"}, "model.discretization must be one of direct, zoh, got 'zho'; did you mean zoh?"),
        ({"init": "rotations"}, "model.init must be one of uniform, rotation, got 'rotations'; did you mean rotation?"),
        ({"norm": "batch"}, "model.norm must be one of layer, rms, none, got 'batch'"),
        ({"activation": "glu"}, "model.activation must be one of gelu, silu, relu, tanh, none, got 'glu'"),
        ({"anchor": "lst"}, "model.anchor must be one of auto, last, none, got 'lst'; did you mean last?"),
        ({"discretization": "zoh", "init": "uniform"}, "model.init=uniform draws transitions without a real logarithm"),
        ({"d_model": 1, "expand": 1}, "model.norm=layer leaves nothing of a single channel"),
        ({"d_model": 1, "expand": 1, "norm": "rms"}, "model.norm=rms leaves only the sign of a single channel"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        dense_ssm(**{**FORECASTER, **arguments})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
