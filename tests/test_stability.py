"""Discretisation, radii, transient growth and scaling, against values that do not come from the same code."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statewise.models.dense_ssm import DenseSSM
from statewise.stability import (
    NonFiniteTransition,
    NonPositiveStep,
    Transition,
    discretise_direct,
    discretise_zoh,
    radius_bound,
    scale_direct,
    scale_zoh,
    spectral_radii,
    transient_growth,
    zoh_exponentials,
)


def rotation(angle: float, radius: float) -> list[list[float]]:
    c, s = radius * math.cos(angle), radius * math.sin(angle)
    return [[c, -s], [s, c]]


RADII: list[tuple[str, list[list[float]], float]] = [
    ("rotation", rotation(0.7, 0.97), 0.97),
    ("rotation by half a turn", rotation(math.pi, 1.0), 1.0),
    ("Jordan block", [[0.5, 1, 0, 0], [0, 0.5, 1, 0], [0, 0, 0.5, 1], [0, 0, 0, 0.5]], 0.5),
    ("triangular, huge", [[0.9, 1e8, -1e8], [0, -0.95, 1e8], [0, 0, 0.1]], 0.95),
    ("zero", [[0.0, 0.0], [0.0, 0.0]], 0.0),
    ("nilpotent", [[0.0, 1e6], [0.0, 0.0]], 0.0),
    ("1 x 1", [[-1.25]], 1.25),
    ("complex pair and a real eigenvalue", [[0.0, -0.64, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.3]], 0.8),
    ("continuous 0.5 I, read as discrete", [[0.5, 0.0], [0.0, 0.5]], 0.5),
]


@pytest.mark.parametrize(("matrix", "radius"), [row[1:] for row in RADII], ids=[row[0] for row in RADII])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_spectral_radius_of_known_matrices(matrix: list[list[float]], radius: float, dtype: torch.dtype) -> None:
    found = spectral_radii([torch.tensor(matrix, dtype=dtype)])
    assert found.dtype == torch.float64
    # A k-fold eigenvalue is known to the k-th root of the rounding error only: 1e-4 for the Jordan block of four.
    assert float(found[0]) == pytest.approx(radius, abs=5e-4 if len(matrix) == 4 else 1e-6)


def test_layers_of_one_size_share_one_call_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    original = torch.linalg.eigvals

    def counted(matrices: Tensor) -> Tensor:
        calls.append(tuple(matrices.shape))
        assert matrices.dtype == torch.float64
        return original(matrices)

    monkeypatch.setattr(torch.linalg, "eigvals", counted)
    radii = [0.1, 0.2, 0.3, 0.4, 0.5]
    sizes = [4, 2, 4, 2, 4]
    found = spectral_radii([radius * torch.eye(size) for radius, size in zip(radii, sizes, strict=True)])
    assert sorted(calls) == [(2, 2, 2), (3, 4, 4)]
    torch.testing.assert_close(found, torch.tensor(radii, dtype=torch.float64), rtol=1e-6, atol=0)


def test_no_layers_have_no_radii() -> None:
    assert spectral_radii([]).shape == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_lapack_never_sees_a_matrix_that_is_not_finite(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "eigvals", lambda _: pytest.fail("eigvals was called"))
    broken = torch.eye(3)
    broken[0, 2] = bad
    with pytest.raises(NonFiniteTransition, match=r"transition matrix of ssm_1 holds NaN or infinity"):
        spectral_radii([torch.eye(3), broken], ["ssm_0", "ssm_1"])
    with pytest.raises(NonFiniteTransition, match="layer 1"):
        spectral_radii([torch.eye(3), broken])
    with pytest.raises(NonFiniteTransition):
        transient_growth(broken)


def built(kind: str, n: int, seed: int) -> tuple[Tensor, float]:
    """A matrix and its radius, which is known because it was built from it."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(n, n, dtype=torch.float64, generator=generator)
    if kind == "random":
        return draw, float(np.abs(np.linalg.eigvals(draw.numpy())).max())
    if kind == "defective":
        return 0.9 * torch.eye(n, dtype=torch.float64) + torch.diag(torch.ones(n - 1, dtype=torch.float64), 1), 0.9
    if kind == "nilpotent":
        return torch.triu(draw, 1), 0.0
    if kind == "non-normal":
        diagonal = torch.rand(n, dtype=torch.float64, generator=generator)
        return torch.triu(1e3 * draw, 1) + torch.diag(diagonal), float(diagonal.max())
    orthogonal = torch.linalg.qr(draw).Q
    if kind == "orthogonal":
        return orthogonal, 1.0
    turns = torch.block_diag(*[torch.tensor(rotation(0.3 + i, 1 - i / n), dtype=torch.float64) for i in range((n + 1) // 2)])
    return orthogonal @ turns[:n, :n] @ orthogonal.T if n % 2 == 0 else turns, 1.0  # complex pairs


KINDS = ["random", "defective", "nilpotent", "non-normal", "orthogonal", "complex pairs"]
SIZES = st.one_of(st.just(1.0), st.sampled_from([1e-200, 1e-155, 1e-20, 1e3, 1e200]), st.floats(0.5, 1.5))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 20), st.integers(0, 1000), SIZES, st.sampled_from([1.0, 0.01, 0.95, 30.0]))
def test_no_radius_exceeds_its_bound(kind: str, n: int, seed: int, size: float, limit: float) -> None:
    A_bar, radius = built(kind, n, seed)
    bound = radius_bound(size * A_bar, limit)
    assert bound >= size * radius
    computed = float(np.abs(np.linalg.eigvals(size * A_bar.numpy())).max())
    assert bound >= computed


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 20), st.integers(0, 1000), st.floats(0, 1e-6), st.sampled_from([1.0, 0.7]))
def test_a_radius_at_the_limit_or_above_is_never_said_to_be_below(
    kind: str, n: int, seed: int, above: float, limit: float
) -> None:
    A_bar, _ = built(kind, n, seed)
    computed = float(np.abs(np.linalg.eigvals(A_bar.numpy())).max())
    if computed > 0:
        A_bar = A_bar * (limit * (1 + above) / computed)
        if float(spectral_radii([A_bar])[0]) >= limit:
            assert not radius_bound(A_bar, limit) < limit


def test_defective_matrices_whose_computed_radius_is_too_large_are_not_said_to_be_below() -> None:
    torch.manual_seed(0)
    seen = 0
    for _ in range(200):
        T = torch.randn(8, 8, dtype=torch.float64)
        block = 0.98 * torch.eye(8, dtype=torch.float64) + torch.diag(torch.ones(7, dtype=torch.float64), 1)
        A_bar = T @ block @ torch.linalg.inv(T)
        if float(spectral_radii([A_bar])[0]) >= 1:
            seen += 1
            assert radius_bound(A_bar) >= 1
    assert seen >= 5


@pytest.mark.parametrize("n", [1, 5, 16, 63])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_the_bound_of_a_normal_matrix_is_close(n: int, dtype: torch.dtype) -> None:
    A_bar = (0.997 * torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q).to(dtype)
    assert 0.9969 < radius_bound(A_bar) < 1
    assert radius_bound(A_bar, 1e-3) > 0.9969  # far above the limit there may be no bound at all


def test_a_long_transient_does_not_hide_a_small_radius() -> None:
    assert radius_bound(torch.tensor([[0.5, 100.0], [0.0, 0.5]])) < 1
    assert radius_bound(torch.tensor([[0.0, 1e3], [0.0, 0.0]])) < 1


def test_zeros_are_bounded_and_what_is_not_finite_is_not() -> None:
    assert 0 < radius_bound(torch.zeros(3, 3)) < 1e-100
    for bad in (math.nan, math.inf, -math.inf, 1e200):
        broken = torch.eye(3, dtype=torch.float64) / 2
        broken[0, 2] = bad
        assert radius_bound(broken) == math.inf


def brute_force_growth(A_bar: Tensor, steps: int) -> float:
    return max(float(np.linalg.norm(np.linalg.matrix_power(A_bar.double().numpy(), k), 2)) for k in range(steps + 1))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.3, 0.97), st.floats(0, 3))
def test_transient_growth_is_the_largest_norm_of_all_powers(seed: int, n: int, radius: float, shear: float) -> None:
    torch.manual_seed(seed)
    A_bar = torch.triu(torch.randn(n, n), 1) * shear + torch.diag(radius * torch.linspace(-1, 1, n))
    assert transient_growth(A_bar) == pytest.approx(brute_force_growth(A_bar, 300), rel=1e-6)


def test_transient_growth_of_matrices_that_never_grow_is_one() -> None:
    orthogonal = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    assert transient_growth(0.99 * orthogonal) == 1.0
    assert transient_growth(torch.zeros(3, 3)) == 1.0


def test_a_radius_below_one_does_not_bound_the_growth() -> None:
    A_bar = torch.tensor([[0.9, 100.0], [0.0, 0.9]])
    assert float(spectral_radii([A_bar])[0]) < 0.91
    assert transient_growth(A_bar) > 300


def test_growth_is_cut_off_for_unstable_matrices_and_infinite_on_overflow() -> None:
    assert transient_growth(1.01 * torch.eye(2, dtype=torch.float64), max_steps=100) == pytest.approx(1.01**100)
    assert transient_growth(100.0 * torch.eye(2)) == math.inf


def test_direct_scales_the_input_only() -> None:
    A, B = torch.randn(3, 3), torch.randn(3, 5)
    A_bar, B_bar = discretise_direct(A, B, torch.tensor(0.25))
    assert torch.equal(A_bar, A)
    assert torch.equal(B_bar, 0.25 * B)


@pytest.mark.parametrize("kind", ["regular", "singular", "zero", "defective"])
@pytest.mark.parametrize("step", [1e-3, 0.5, 3.0])
def test_zoh_is_the_exact_solution_over_one_step(kind: str, step: float) -> None:
    torch.manual_seed(0)
    A, B = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    if kind == "singular":
        A[3] = 0
    elif kind == "zero":
        A.zero_()
    elif kind == "defective":
        A = torch.diag(torch.ones(3, dtype=torch.float64), 1) - torch.eye(4, dtype=torch.float64)
    A_bar, B_bar = discretise_zoh(A, B, torch.tensor(step, dtype=torch.float64))
    A_exact, B_exact, *_ = scipy.signal.cont2discrete((A.numpy(), B.numpy(), np.eye(4), np.zeros((4, 3))), step)
    np.testing.assert_allclose(A_bar, A_exact, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(B_bar, B_exact, rtol=1e-11, atol=1e-12)


def test_phi1_solves_its_equation_where_the_matrix_can_be_inverted() -> None:
    A = torch.randn(5, 5, dtype=torch.float64)
    exponential, phi1 = zoh_exponentials(A, torch.tensor(0.7, dtype=torch.float64))
    np.testing.assert_allclose(exponential, scipy.linalg.expm(0.7 * A.numpy()), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(0.7 * A @ phi1, exponential - torch.eye(5, dtype=torch.float64))


def test_gradients_pass_through_the_zero_order_hold() -> None:
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 3), (3, 2), ())]
    assert torch.autograd.gradcheck(discretise_zoh, [tensor.requires_grad_() for tensor in inputs])


@pytest.mark.parametrize("factor", [0.2, 0.99, 1.0, 1.7])
def test_scaling_is_mapped_back_to_the_parameter_exactly(factor: float) -> None:
    A, B = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    step = torch.tensor(0.3, dtype=torch.float64)
    direct = discretise_direct(scale_direct(A, factor), B, step)[0]
    torch.testing.assert_close(direct, factor * A, rtol=1e-14, atol=0)
    zoh = discretise_zoh(scale_zoh(A, factor, 0.3), B, step)[0]
    torch.testing.assert_close(zoh, factor * discretise_zoh(A, B, step)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_impossible_factors_are_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="finite factor above 0"):
        scale_direct(torch.eye(2), factor)
    with pytest.raises(ValueError, match="finite factor above 0"):
        scale_zoh(torch.eye(2), factor, 1.0)


@pytest.mark.parametrize("step", [0.0, -0.1, math.nan])
def test_a_step_that_is_not_positive_has_a_named_error(step: float) -> None:
    with pytest.raises(NonPositiveStep, match="must be above 0"):
        scale_zoh(torch.eye(2), 0.5, step)


def test_the_dense_layer_is_a_transition_and_a_linear_map_is_not() -> None:
    assert isinstance(DenseSSM(d_model=2), Transition)
    assert not isinstance(torch.nn.Linear(2, 2), Transition)
