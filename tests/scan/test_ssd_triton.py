"""The choice of Mamba-2's scan, and what the Triton kernels are given; their numbers are tested in test_gpu.py."""

import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from statewise.models.mamba2 import Mamba2, mamba2
from statewise.scan import recurrence, ssd, ssd_triton

PACKAGES = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.ssd_combined")


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    def forget() -> None:
        ssd_triton._kernel.cache_clear()
        ssd_triton._told.clear()

    forget()
    yield
    forget()


class Placed(Tensor):
    """A tensor without numbers that says it is on a device which need not exist."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the choice needs no {func}")


def tensor(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return Tensor._make_wrapper_subclass(Placed, (1,), dtype=dtype, device=torch.device(device))


def problem(dtype: torch.dtype, t: int = 9) -> list[Tensor]:
    torch.manual_seed(t)
    b, h, p, g, n = 2, 4, 3, 2, 5
    x, B, C = (torch.randn(shape, dtype=dtype) for shape in ((b, t, h, p), (b, t, g, n), (b, t, g, n)))
    dt, A, h0 = torch.rand(b, t, h), -torch.rand(h) - 0.1, torch.randn(b, h, p, n)
    return [leaf.requires_grad_() for leaf in (x, dt, A, B, C, h0)]


class Kernel:
    """Stands where mamba-ssm's function would: its arguments by its names, the definition behind it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
    ) -> tuple[Tensor, Tensor]:
        self.calls.append(locals())
        assert initial_states is not None
        y, state = recurrence.ssd(x.float(), dt, A, B.float(), C.float(), initial_states)
        return y.to(x.dtype), state


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """mamba-ssm as if it were installed, on a machine as if it had a CUDA device."""
    made = Kernel()
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[PACKAGES[-1]], "mamba_chunk_scan_combined", made, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return made


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device, but neither Triton nor mamba-ssm: importing them fails whether or not they are installed."""
    for name in ("triton", *PACKAGES):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_the_kernel_is_given_the_layouts_and_dtypes_it_expects(dtype: torch.dtype, kernel: Kernel) -> None:
    inputs = problem(dtype)
    y, state = ssd_triton.ssd(*inputs)
    (call,) = kernel.calls
    shapes = {name: tuple(call[name].shape) for name in ("x", "dt", "A", "B", "C", "initial_states")}
    assert shapes == {
        "x": (2, 9, 4, 3),
        "dt": (2, 9, 4),
        "A": (4,),
        "B": (2, 9, 2, 5),
        "C": (2, 9, 2, 5),
        "initial_states": (2, 4, 3, 5),
    }
    assert {call[name].dtype for name in ("x", "B", "C")} == {dtype}
    assert {call[name].dtype for name in ("dt", "A", "initial_states")} == {torch.float32}
    assert call["return_final_states"] is True
    assert call["dt_softplus"] is False
    assert [call[name] for name in ("D", "z", "dt_bias", "seq_idx", "cu_seqlens")] == [None] * 5
    assert (y.dtype, state.dtype) == (dtype, inputs[-1].dtype)


def test_outputs_and_gradients_pass_through_unchanged(kernel: Kernel) -> None:
    inputs, reference = problem(torch.float32), problem(torch.float32)
    results = []
    for function, leaves in ((ssd_triton.ssd, inputs), (recurrence.ssd, reference)):
        y, state = function(*leaves)
        results.append([y, state, *torch.autograd.grad(y.square().sum() + state.sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        assert error(found, expected) <= 1e-6


def test_the_last_step_alone_is_the_last_of_all(kernel: Kernel) -> None:
    inputs = problem(torch.float32)
    y, state = ssd_triton.ssd(*inputs)
    last, last_state = ssd_triton.ssd(*inputs, last_only=True)
    assert torch.equal(last, y[:, -1:])
    assert torch.equal(last_state, state)


@pytest.mark.parametrize(("asked", "given"), [(1, 16), (16, 16), (48, 64), (64, 64), (65, 128)])
def test_chunks_are_a_power_of_two_that_the_kernels_can_take(asked: int, given: int, kernel: Kernel) -> None:
    ssd_triton.ssd(*problem(torch.float32), chunk_size=asked)
    assert kernel.calls[0]["chunk_size"] == given


def test_an_empty_sequence_is_refused(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match="at least one time step, got a sequence of length 0"):
        ssd_triton.ssd(*problem(torch.float32, t=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_auto_takes_the_kernels_for_cuda_tensors_they_can_compute(dtype: torch.dtype, kernel: Kernel) -> None:
    assert ssd_triton.available()
    assert ssd_triton.choose("auto", tensor("cuda", dtype)) is ssd_triton.ssd
    assert ssd_triton.choose("triton", tensor("cuda", dtype)) is ssd_triton.ssd
    assert ssd_triton.choose("torch", tensor("cuda", dtype)) is ssd.ssd


def test_auto_takes_torch_on_the_cpu_and_in_float64(kernel: Kernel) -> None:
    assert ssd_triton.choose("auto", tensor("cpu")) is ssd.ssd
    assert ssd_triton.choose("auto", tensor("cuda", torch.float64)) is ssd.ssd


def test_auto_takes_torch_where_the_kernels_are_not_installed(no_kernel: None) -> None:
    assert not ssd_triton.available()
    assert ssd_triton.choose("auto", tensor("cuda")) is ssd.ssd


def test_a_module_without_triton_can_be_imported(no_kernel: None) -> None:
    for module in (ssd_triton, sys.modules[Mamba2.__module__]):
        spec = importlib.util.spec_from_file_location("fresh", str(module.__file__))
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def refusal(function: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared by the caller
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_triton_is_refused_for_tensors_it_cannot_take(kernel: Kernel) -> None:
    assert refusal(ssd_triton.choose, "triton", tensor("cpu")) == (
        "model.backend=triton computes on a CUDA device, got tensors on cpu: use hardware=gpu, or model.backend=auto"
    )
    assert refusal(ssd_triton.choose, "triton", tensor("cuda", torch.float64)) == (
        "model.backend=triton does not compute in float64: use hardware.precision=32-true or bf16-mixed, or model.backend=auto"
    )


def test_triton_is_refused_before_any_work_on_a_machine_that_lacks_it(no_kernel: None) -> None:
    message = refusal(ssd_triton.check, "triton")
    assert message.startswith("model.backend=triton needs mamba-ssm, which cannot be imported here (")
    assert message.endswith("): install the extra cuda, or use model.backend=auto")
    assert refusal(ssd_triton.choose, "triton", tensor("cuda")) == message
    ssd_triton.check("auto")
    ssd_triton.check("torch")


def test_the_model_refuses_triton_without_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data = {"n_features": 2, "n_outputs": 1, "target_inputs": (0,), "targets_are_levels": True, "horizon": 1}
    assert refusal(lambda: mamba2(**data, backend="triton")) == (
        "model.backend=triton needs a CUDA device, and PyTorch sees none here: use model.backend=auto"
    )


def test_an_unknown_backend_is_refused() -> None:
    message = "model.backend must be one of auto, torch, triton, got 'trition'; did you mean triton?"
    assert refusal(ssd_triton.check, "trition") == message
    assert refusal(ssd_triton.choose, "trition", tensor("cpu")) == message


def test_a_broken_build_counts_as_missing_and_says_why(no_kernel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise OSError("undefined symbol:\n _ZN3c10")

    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, Broken(name))
    assert not ssd_triton.available()
    assert "(OSError: undefined symbol: _ZN3c10)" in refusal(ssd_triton.check, "triton")


def test_what_runs_is_logged_once(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=ssd_triton.__name__)
    for _ in range(3):
        ssd_triton.choose("auto", tensor("cuda"))
        ssd_triton.choose("auto", tensor("cpu"))
    assert [record.getMessage() for record in caplog.records] == [
        "Mamba-2's scan runs in the Triton kernels of mamba-ssm",
        "Mamba-2's scan runs in torch",
    ]


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_the_layer_runs_what_was_chosen(backend: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made = Mamba2(d_model=8, headdim=4, n_groups=2, d_state=3, backend=backend)
    plain = Mamba2(d_model=8, headdim=4, n_groups=2, d_state=3, backend="torch")
    plain.load_state_dict(made.state_dict())
    x = torch.randn(2, 20, 8)
    # The tensors stay on the CPU here: the stand-in does not mind.
    monkeypatch.setattr(ssd_triton, "_obstacle", lambda x: None)
    y, end = made(x)
    assert len(kernel.calls) == 1
    expected, expected_end = plain(x)
    assert len(kernel.calls) == 1
    for found, reference in zip((y, *end), (expected, *expected_end), strict=True):
        assert error(found, reference) <= 1e-5
