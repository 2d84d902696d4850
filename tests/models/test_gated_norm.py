"""The gated norm's own backward is that of its definition."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.models import gated_norm
from statewise.models.gated_norm import GatedRMSNorm

GROUPS = pytest.mark.parametrize("groups", [1, 3])


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def problem(groups: int, dtype: torch.dtype) -> tuple[GatedRMSNorm, Tensor, Tensor]:
    torch.manual_seed(groups)
    norm = GatedRMSNorm(12, groups=groups).to(dtype)
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    # The gate is a part of wider rows, as a projection gives it.
    y, gate = torch.randn(2, 40, 12, dtype=dtype).requires_grad_(), torch.randn(2, 40, 20, dtype=dtype)[..., :12]
    return norm, y, gate.requires_grad_()


@GROUPS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 2e-6)], ids=["f64", "f32"])
@pytest.mark.parametrize("numbers", [2**16, 50], ids=["whole", "pieces"])
def test_outputs_and_gradients_are_those_of_the_definition(
    numbers: int, dtype: torch.dtype, tolerance: float, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_norm, "CACHED_NUMBERS", numbers)
    norm, y, gate = problem(groups, dtype)
    found, expected = norm(y, gate), norm.plain(y, gate)
    assert error(found, expected) <= tolerance
    weight = torch.randn_like(found)
    gradients = [torch.autograd.grad(result, [y, gate, norm.weight], weight) for result in (found, expected)]
    assert max(error(a, b) for a, b in zip(*gradients, strict=True)) <= tolerance


@GROUPS
def test_every_group_is_normalised_by_itself_after_the_gate(groups: int) -> None:
    norm, y, gate = problem(groups, torch.float64)
    expected = torch.cat(
        [
            F.rms_norm(u, u.shape[-1:], weight, 1e-5)
            for u, weight in zip((y * F.silu(gate)).chunk(groups, dim=-1), norm.weight.chunk(groups), strict=True)
        ],
        dim=-1,
    )
    assert error(norm(y, gate), expected) <= 1e-14


@GROUPS
def test_the_gradients_pass_gradcheck(groups: int) -> None:
    norm, y, gate = problem(groups, torch.float64)
    y, gate = (tensor.detach()[:, :3].requires_grad_() for tensor in (y, gate))
    assert torch.autograd.gradcheck(norm, (y, gate))


def test_a_weight_in_bfloat16_leaves_the_stream_in_its_dtype() -> None:
    norm, y, gate = problem(1, torch.float32)
    norm.bfloat16()
    for function in (norm, norm.plain):
        assert function(y, gate).dtype == torch.float32


def test_mixed_precision_changes_nothing() -> None:
    norm, y, gate = problem(1, torch.float32)
    both = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            normed = norm(y, gate)
            both.append([normed, *torch.autograd.grad(normed.sum(), [y, gate, norm.weight])])
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
