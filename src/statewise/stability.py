"""What can be said about a discrete transition: how it comes from its parameters, its radius, and how to scale it.

Pure functions on matrices. Stability is a statement about A_bar, the matrix the recurrence multiplies with, never
about the raw parameter A: a continuous A = 0.5 I has spectral radius 0.5 and still explodes.

Symbols: n state, d layer width; step is mean(delta), the scalar step size. Two discretisations:

    direct   A_bar = A                B_bar = step B                          the parameter is the transition
    zoh      A_bar = exp(step A)      B_bar = step phi1(step A) B             phi1(Z) = Z^-1 (exp(Z) - I), entire in Z

zoh is the zero-order hold: the exact solution of h' = A h + B x over one step in which x does not move. phi1 is read
off one exponential of an augmented matrix (Van Loan, IEEE Trans. Automatic Control 23, 1978), so that a singular A is
no special case.
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Powers whose norms are taken in one batched call.
GROWTH_BLOCK = 32
# Squarings behind a bound of the radius: the 1024th root lets 64 normal states pass that lie 0.2 % below the limit.
SQUARINGS = 10
# A float64 sum of n products is off by at most n times this, relative to the sum of their sizes; twice what is true.
ROUNDING = 2.0**-52
# LAPACK's eigenvalues are those of a matrix that lies this many n * ROUNDING away, generously.
LAPACK_ERROR = 10
# Squares of larger norms may overflow.
LARGEST_NORM = 1e70
# Above what is lost where a square falls below the smallest float64, in each entry of a matrix.
UNDERFLOW = 1e-150


class NonFiniteTransition(ValueError):
    """A transition holds NaN or infinity: it has no eigenvalues, and asking LAPACK for them may end the process."""


class NonPositiveStep(ValueError):
    """The step size of a zero-order hold is zero, negative or NaN: time would stand still or run backwards."""


@runtime_checkable
class Transition(Protocol):
    """What the spectral projection needs of a layer; a layer that has these methods is projected."""

    def discrete_transition(self) -> Tensor:
        """A_bar, shape [n, n], detached. Raises NonPositiveStep where the step size allows none."""

    def scale_transition_(self, factor: float) -> None:
        """Turn A_bar into factor * A_bar, by changing the raw parameters in place, exactly up to rounding."""

    def lift_step_(self) -> float:
        """Lift a step size that is too small by one constant added to all its entries; 0.0 where none was needed."""


def discretise_direct(
    A: Float[Tensor, "n n"], B: Float[Tensor, "n d"], step: Float[Tensor, ""]
) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n d"]]:
    """(A_bar, B_bar) where A is the discrete transition itself; the step scales the input only."""
    return A, step * B


def discretise_zoh(
    A: Float[Tensor, "n n"], B: Float[Tensor, "n d"], step: Float[Tensor, ""]
) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n d"]]:
    """(A_bar, B_bar) of the zero-order hold."""
    A_bar, phi1 = zoh_exponentials(A, step)
    return A_bar, step * (phi1 @ B)


def zoh_exponentials(A: Float[Tensor, "n n"], step: Float[Tensor, ""]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """exp(step A) and phi1(step A), which stand side by side in exp of [[step A, I], [0, 0]]."""
    n = A.shape[0]
    upper = torch.cat([step * A, torch.eye(n, dtype=A.dtype, device=A.device)], dim=1)  # (n 2n)
    exponential = torch.linalg.matrix_exp(F.pad(upper, (0, 0, 0, n)))  # (2n 2n)
    return exponential[:n, :n], exponential[:n, n:]


def eigenvalues(transitions: Sequence[Tensor], names: Sequence[str] | None = None) -> list[np.ndarray]:
    """The eigenvalues [n] of every A_bar, complex128, in the order given.

    Matrices of one size share one transfer to the CPU and one batched float64 LAPACK call. `names` only serve the message
    of NonFiniteTransition, which is raised before LAPACK sees a NaN or an infinity.
    """
    found: dict[int, np.ndarray] = {}
    for indices in _by_size(transitions).values():
        stacked = torch.stack([transitions[i].detach() for i in indices]).to("cpu", torch.float64)  # (layers n n)
        # A finite sum has finite terms. That of finite terms may overflow, so that it takes a closer look.
        if not math.isfinite(stacked.sum()) and not (finite := stacked.isfinite().flatten(1).all(1)).all():
            first = indices[int(finite.logical_not().nonzero()[0])]
            label = f"layer {first}" if names is None else names[first]
            raise NonFiniteTransition(f"the transition matrix of {label} holds NaN or infinity: its training diverged")
        found |= zip(indices, torch.linalg.eigvals(stacked).numpy(), strict=True)
    return [found[i] for i in range(len(transitions))]


def spectral_radii(transitions: Sequence[Tensor], names: Sequence[str] | None = None) -> Float[Tensor, " layers"]:
    """The largest absolute eigenvalue of every A_bar, in float64, on the CPU; raises what `eigenvalues` does."""
    radii = [float(np.abs(values).max()) for values in eigenvalues(transitions, names)]
    return torch.tensor(radii, dtype=torch.float64)


@np.errstate(over="ignore", invalid="ignore")
def radius_bound(A_bar: Float[Tensor, "n n"], limit: float = 1.0) -> float:
    """A number that the spectral radius does not exceed, without eigenvalues; if it can easily be, one below `limit`.

    The radius of A_bar^k is rho^k and no norm lies below the radius, hence rho <= ||A_bar^k||^(1/k) for every k, which falls
    to rho as k grows (Gelfand's formula). Tried are k = 1, 2, 4, ... 2^SQUARINGS in the Frobenius norm, until the bound is
    below the limit. The powers are those of A_bar / limit: one that overflows bounds nothing, so that only bounds near or
    below the limit are close ones. Infinity where A_bar holds NaN or infinity.

    It holds in spite of rounding. X stands for a power P with ||P - X|| <= e; X X is off P P by no more than
    2 ||X|| e + e^2, and its product is rounded by n ROUNDING ||X||^2 (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 3.5), because ||X Y|| <= ||X|| ||Y||. At first e is the distance that LAPACK's answer may be
    off, so that computed eigenvalues lie below the bound too, those of a defective matrix included.
    """
    # One matrix at a time, by numpy: beside products of small matrices calls of torch, and stacking them, are dear.
    X = A_bar.detach().to("cpu", torch.float64).numpy()
    if limit != 1.0:
        X = X / limit
    n = len(X)
    bound, error, root = math.inf, 0.0, 1.0
    while True:
        flat = X.ravel()
        norm = math.sqrt(flat.dot(flat)) * (1 + n * n * ROUNDING) + n * UNDERFLOW
        # Also where it is NaN. The power after it may overflow, and no later one is small.
        if not norm < LARGEST_NORM:
            break
        if root == 1.0:
            error = LAPACK_ERROR * n * ROUNDING * norm + n * UNDERFLOW
        bound = min(bound, (norm + error) ** root)
        # The last factor is what these lines round off themselves.
        if bound * (1 + 1e-6) < 1.0 or root <= 0.5**SQUARINGS:
            break
        error = (2 * norm + error) * error + n * (ROUNDING * norm * norm + UNDERFLOW)
        X = X.dot(X)
        root /= 2
    return bound * (1 + 1e-6) * limit


def _by_size(transitions: Sequence[Tensor]) -> dict[int, list[int]]:
    """Which of them have n states, by n."""
    by_size: dict[int, list[int]] = {}
    for i, A_bar in enumerate(transitions):
        by_size.setdefault(A_bar.shape[-1], []).append(i)
    return by_size


def transient_growth(A_bar: Float[Tensor, "n n"], max_steps: int = 1024) -> float:
    """max over 0 <= k <= max_steps of the spectral norm of A_bar^k, in float64; 1.0 means that no state ever grows.

    A radius below 1 says that states vanish in the end; it does not bound how far a non-normal A_bar throws them
    first. The search ends at the first power of norm at most 1: every later power is a product of that one and an
    earlier one, so that the maximum has been seen. infinity where a power overflows.
    """
    A_bar = A_bar.detach().to("cpu", torch.float64)
    if not A_bar.isfinite().all():
        raise NonFiniteTransition("the transition matrix holds NaN or infinity: its powers have no norms")
    growth, seen, reached = 1.0, 0, torch.eye(A_bar.shape[0], dtype=torch.float64)
    block = A_bar[None]  # A_bar^1, A_bar^2, ...
    while seen < max_steps:
        powers = block[: max_steps - seen] @ reached  # (block n n)
        if not powers.isfinite().all():
            return math.inf
        norms = torch.linalg.matrix_norm(powers, ord=2)  # (block)
        shrunk = (norms <= 1).nonzero()
        if len(shrunk):
            return max(growth, float(norms[: int(shrunk[0]) + 1].max()))
        growth, seen, reached = max(growth, float(norms.max())), seen + len(powers), powers[-1]
        if len(block) < GROWTH_BLOCK:
            block = torch.cat([block, block @ block[-1]])
    return growth


def scale_direct(A: Float[Tensor, "n n"], factor: float) -> Float[Tensor, "n n"]:
    """The A whose direct transition is `factor` times that of the given one."""
    return A * _positive(factor)


def scale_zoh(A: Float[Tensor, "n n"], factor: float, step: float) -> Float[Tensor, "n n"]:
    """The A whose zero-order hold is `factor` times that of the given one: exp(step (A + s I)) = e^(step s) exp(step A)."""
    if not step > 0:
        raise NonPositiveStep(f"the step size of a zero-order hold must be above 0, got {step:g}")
    shift = math.log(_positive(factor)) / step
    return A + shift * torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def _positive(factor: float) -> float:
    if not 0 < factor < math.inf:
        raise ValueError(f"a transition can be scaled by a finite factor above 0 only, got {factor:g}")
    return factor
