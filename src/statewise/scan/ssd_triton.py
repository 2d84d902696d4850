"""Mamba-2's recurrence on the Triton kernels of mamba-ssm, and the choice between them and the torch form in ssd.py.

Dao and Gu, "Transformers are SSMs" (2024, arXiv 2405.21060), and `mamba_chunk_scan_combined` of its authors' package
(extra `cuda`). Nothing of it is imported before a CUDA tensor or `model.backend=triton` asks for it.

The kernels compute in float32, bfloat16 or float16, never in float64. The decay is float32 in all of them, and so is the
state that they hand on. A product of two float32 blocks is rounded to TF32 (10 bits of mantissa) on devices that have it,
which is Triton's default: `model.backend=torch` keeps all 23.

Symbols: b batch, t time, h heads, p head size, g groups of heads, n state.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from statewise.choices import one_of
from statewise.scan.ssd import ssd as torch_ssd

log = logging.getLogger(__name__)

BACKENDS = ("auto", "torch", "triton")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Triton multiplies blocks of at least 16 rows; a chunk that is no power of two has been seen to end in NaN.
SMALLEST_CHUNK = 16

Scan = Callable[..., tuple[Tensor, Tensor]]

_told: set[str] = set()


def available() -> bool:
    """Whether the kernels can run here at all: a CUDA device, and a mamba-ssm that can be imported. Never raises."""
    return _missing() is None


def ssd(
    x: Float[Tensor, "b t h p"],
    dt: Float[Tensor, "b t h"],
    A: Float[Tensor, " h"],
    B: Float[Tensor, "b t g n"],
    C: Float[Tensor, "b t g n"],
    h0: Float[Tensor, "b h p n"],
    *,
    chunk_size: int = 64,
    last_only: bool = False,
) -> tuple[Float[Tensor, "b s h p"], Float[Tensor, "b h p n"]]:
    """As `ssd.ssd`, for CUDA tensors: outputs of all steps (s = t) or of the last one (s = 1), and the last state.

    The chunk length is raised to a power of two; it changes the speed, not the result. dt must not be negative.
    """
    if x.shape[1] == 0:
        raise ValueError("the scan needs at least one time step, got a sequence of length 0")
    kernel = _kernel()
    if isinstance(kernel, Exception):
        raise kernel
    chunk = max(SMALLEST_CHUNK, 1 << (chunk_size - 1).bit_length())
    # The kernels multiply x, B and C with each other and take them in one dtype; dt and A only enter the decay.
    y, state = kernel(
        x,
        dt.float(),
        A.float(),
        B.to(x.dtype),
        C.to(x.dtype),
        chunk,
        initial_states=h0.float(),
        dt_softplus=False,
        return_final_states=True,
    )
    return (y[:, -1:] if last_only else y), state.to(h0.dtype)


def choose(backend: str, x: Tensor) -> Scan:
    """The form of the recurrence that `model.backend` means for tensors like x; what runs is logged once a process.

    Raises:
        ValueError: backend=triton, where it cannot run.
    """
    one_of("model.backend", backend, BACKENDS)
    if backend == "torch":
        return _tell(torch_ssd, "torch, as model.backend=torch asks")
    obstacle = _obstacle(x)
    if obstacle is None:
        return _tell(ssd, "the Triton kernels of mamba-ssm")
    if backend == "triton":
        raise ValueError(f"model.backend=triton {obstacle}")
    return _tell(torch_ssd, "torch")


def check(backend: str) -> None:
    """Refuse a backend that cannot run on this machine whatever the tensors are, before any work.

    Raises:
        ValueError: no such backend, or Triton where there is no CUDA device or no mamba-ssm.
    """
    if one_of("model.backend", backend, BACKENDS) == "triton" and (missing := _missing()) is not None:
        raise ValueError(f"model.backend=triton {missing}")


def _obstacle(x: Tensor) -> str | None:
    """Why the kernels cannot take x, and what to do about it; None where they can. Cheap for CPU tensors."""
    if x.device.type != "cuda":
        return f"computes on a CUDA device, got tensors on {x.device.type}: use hardware=gpu, or model.backend=auto"
    if x.dtype not in DTYPES:
        dtype = str(x.dtype).removeprefix("torch.")
        return f"does not compute in {dtype}: use hardware.precision=32-true or bf16-mixed, or model.backend=auto"
    return _missing()


def _missing() -> str | None:
    """What this machine lacks for the kernels, and what to do about it; None where it lacks nothing."""
    if not torch.cuda.is_available():
        return "needs a CUDA device, and PyTorch sees none here: use model.backend=auto"
    kernel = _kernel()
    if isinstance(kernel, Exception):
        reason = " ".join(str(kernel).split())
        return (
            f"needs mamba-ssm, which cannot be imported here ({type(kernel).__name__}: {reason}): "
            "install the extra cuda, or use model.backend=auto"
        )
    return None


@cache
def _kernel() -> Callable[..., Any] | Exception:
    """mamba-ssm's function, or what went wrong when importing it; tried once, because a failed import is slow."""
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    # A build for another torch, CUDA or Triton fails with whatever its libraries raise, not only with ImportError.
    except Exception as error:
        return error
    kernel: Callable[..., Any] = mamba_chunk_scan_combined
    return kernel


def _tell(scan: Scan, name: str) -> Scan:
    # A compiler would break its graph at a log line.
    if name not in _told and not torch.compiler.is_compiling():
        _told.add(name)
        log.info("Mamba-2's scan runs in %s", name)
    return scan
