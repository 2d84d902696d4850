"""The diagonal state-space layer: complex states that turn and decay, each on its own.

    h' = A h + x  by channel        y = 2 Re(sum over n of C h) (+ D x)        discretised with the channel's step

Papers: S4D (Gu et al. 2022, arXiv 2206.11893) for the layer, its initialisations lin and inv and its stability by
parametrisation; LRU (Orvieto et al. 2023, arXiv 2303.06349) for the ring of eigenvalues and the normalisation by
sqrt(1 - |A_bar|^2); phi1 as in stability.py.

Symbols: b batch, t time, d channels (d_model), n conjugate pairs of a channel: d_state counts real numbers, n = d_state / 2.

    A       -exp(log_A_real) + i A_imag      [d n]
    C       complex, as pairs                [d n 2]
    step    exp(log_step)                    [d]
    zoh        A_bar = exp(step A)                            B_bar = step phi1(step A)        phi1(z) = (exp(z) - 1) / z
    bilinear   A_bar = (1 + step A / 2) / (1 - step A / 2)    B_bar = step / (1 - step A / 2)

B is 1: only the product of B and C of a state reaches the output, so that a B of its own would add parameters and no
function. Parameters, buffers and the state are real: complex ones break collective communication, exchange formats and some
optimisers. Channels mix after the layer, in the forecaster's gate.
"""

import math
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from statewise.choices import at_least, one_of
from statewise.models.contract import layer_contract
from statewise.models.forecaster import Forecaster, resolve_anchor
from statewise.models.initial import Law, forget_when_loaded
from statewise.scan.dense import full_precision
from statewise.scan.diagonal import diagonal

DISCRETIZATIONS = ("zoh", "bilinear")
INITS = ("s4d_lin", "s4d_inv", "ring")

# The logarithms of a step and of a decay per step count up to here: a state that decays by exp(-exp(20)) is long gone, and
# products of a few such numbers are still finite in float32, gradients of squares included.
LARGEST_LOGARITHM = 20.0
# Below this distance from zero the derivative of phi1 is a series, above a quotient; with so many terms either is exact.
SERIES_RADIUS, SERIES_TERMS = 0.25, 12
# The smallest modulus that ring draws: a logarithm of zero does not exist.
SMALLEST_RADIUS = 1e-4


class DiagonalSSM(nn.Module):
    """One diagonal state-space layer on sequences of width d_model.

    init says where the eigenvalues of a channel's pairs j = 0, 1, ... begin:
      s4d_lin   A_j = -1/2 + i pi j: the frequencies of a Fourier series, steps log-uniform in [step_min, step_max]; the
                defaults forget within 4 to 200 steps, for windows of some sixty; the paper's .001 to .1 are for thousands
      s4d_inv   A_j = -1/2 + i (N / pi) (N / (2j + 1) - 1) with N = d_state: the frequencies of HiPPO; the same steps
      ring      A_bar uniform by area in the ring between the radii ring_min and ring_max, angles up to ring_phase half
                turns, under either discretisation; every step begins at 1, because the ring holds the time scales
                already, and C is scaled so that white noise comes out of all states equally strong
    |A_bar| < 1 holds for every value of the parameters, so that there is nothing to project.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_state: int = 16,
        discretization: str = "zoh",
        init: str = "s4d_lin",
        step_min: float = 0.01,
        step_max: float = 0.5,
        ring_min: float = 0.5,
        ring_max: float = 0.99,
        ring_phase: float = 1.0,
        skip: bool = True,
    ) -> None:
        super().__init__()
        at_least(1, model__d_model=d_model)
        if d_state < 2 or d_state % 2:
            raise ValueError(
                f"model.d_state must be even and at least 2, got {d_state}: it counts the real numbers of conjugate pairs"
            )
        one_of("model.discretization", discretization, DISCRETIZATIONS)
        one_of("model.init", init, INITS)
        if not 0 < step_min <= step_max < math.inf:
            raise ValueError(f"model.step_min and model.step_max must obey 0 < min <= max, got {step_min} and {step_max}")
        if not 0 <= ring_min <= ring_max < 1:
            raise ValueError(f"model.ring_min and model.ring_max must obey 0 <= min <= max < 1, got {ring_min} and {ring_max}")
        if not 0 <= ring_phase <= 1:
            raise ValueError(f"model.ring_phase must be from 0 to 1, in half turns a step, got {ring_phase}")
        self.width, self.discretization, self.init = d_model, discretization, init
        self.step_bounds, self.ring = (step_min, step_max), (ring_min, ring_max, ring_phase)
        shape = d_model, d_state // 2
        self.log_A_real = nn.Parameter(torch.empty(shape))
        self.A_imag = nn.Parameter(torch.empty(shape))
        self.C = nn.Parameter(torch.empty(*shape, 2))
        self.log_step = nn.Parameter(torch.empty(d_model))
        if skip:
            self.D = nn.Parameter(torch.ones(d_model))
        else:
            self.register_parameter("D", None)
        if init == "ring":
            self._begin_in_ring(ring_min, ring_max, math.pi * ring_phase)
        else:
            self._begin_as_s4d(step_min, step_max)
        forget_when_loaded(self)

    @torch.no_grad()
    def _begin_as_s4d(self, step_min: float, step_max: float) -> None:
        self.log_A_real.fill_(math.log(0.5))
        self.A_imag.copy_(self._frequencies())
        self.log_step.uniform_(math.log(step_min), math.log(step_max))
        # Complex standard normal: half of the variance in either part.
        self.C.normal_(std=math.sqrt(0.5))

    def _frequencies(self) -> Float[Tensor, " n"]:
        pairs = self.A_imag.shape[1]
        j, N = torch.arange(pairs, dtype=torch.float64, device=self.A_imag.device), 2 * pairs
        return math.pi * j if self.init == "s4d_lin" else N / math.pi * (N / (2 * j + 1) - 1)

    @torch.no_grad()
    def _begin_in_ring(self, ring_min: float, ring_max: float, phase: float) -> None:
        shape = self.A_imag.shape
        squares = torch.rand(shape, dtype=torch.float64) * (ring_max**2 - ring_min**2) + ring_min**2
        angles = torch.rand(shape, dtype=torch.float64) * phase
        A_bar = torch.polar(squares.sqrt().clamp(min=SMALLEST_RADIUS), angles)
        A = A_bar.log() if self.discretization == "zoh" else 2 * (A_bar - 1) / (A_bar + 1)
        self.log_A_real.copy_((-A.real).log())
        self.A_imag.copy_(A.imag)
        self.log_step.zero_()
        B_bar = discretise(A, torch.ones_like(A.real[:, :1]), self.discretization)[1]
        C = torch.randn(shape, dtype=torch.complex128) / math.sqrt(shape[1])
        self.C.copy_(torch.view_as_real(C * (1 - squares).sqrt() / B_bar.abs()))

    def initial_state(self, batch: int) -> Float[Tensor, "b d n 2"]:
        """The state before the first step: zeros, real pairs in the parameters' dtype and on their device."""
        return self.C.new_zeros(batch, *self.C.shape)

    def forward(
        self, x: Float[Tensor, "b t d"], state: Float[Tensor, "b d n 2"] | None = None, *, last_only: bool = False
    ) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b d n 2"]]:
        """Outputs of all steps (s = t), or of the last one (s = 1), and the state after the last step."""
        with full_precision(self.C):
            x = x.to(self.C.dtype)
            h0 = None if state is None else torch.view_as_complex(state.contiguous())
            A_bar, B_bar, C = self.discrete()
            y, h = diagonal(A_bar, B_bar, C, x, h0, self.D, last_only=last_only)  # (b s d), (b d n)
        return y, torch.view_as_real(h)

    def step(
        self, x_t: Float[Tensor, "b d"], state: Float[Tensor, "b d n 2"]
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d n 2"]]:
        """One time step: the output and the state after it."""
        with full_precision(self.C):
            x_t = x_t.to(self.C.dtype)
            A_bar, B_bar, C = self.discrete()
            h = torch.view_as_complex(state.contiguous())
            h = A_bar * h + B_bar * x_t[..., None]  # (b d n)
            y_t = 2 * (C * h).real.sum(-1)  # (b d)
            if self.D is not None:
                y_t = torch.addcmul(y_t, self.D, x_t)
        return y_t, torch.view_as_real(h)

    def discrete(self) -> tuple[Complex[Tensor, "d n"], Complex[Tensor, "d n"], Complex[Tensor, "d n"]]:
        """A_bar, B_bar and C as the recurrence uses them."""
        log_step = self.log_step[:, None].clamp(max=LARGEST_LOGARITHM)  # (d 1)
        decay = (self.log_A_real + log_step).clamp(max=LARGEST_LOGARITHM).exp()  # (d n)
        step = log_step.exp()  # (d 1)
        z = torch.complex(-decay, self.A_imag * step)  # (d n) step A
        A_bar, B_bar = discretise(z, step, self.discretization)
        return A_bar, B_bar, torch.view_as_complex(self.C)

    def no_weight_decay(self) -> list[nn.Parameter]:
        """A, step and D: decay would move memory and frequencies, which is no regularisation."""
        return [self.log_A_real, self.A_imag, self.log_step] + ([] if self.D is None else [self.D])

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """All parameters of the layer must train; none is a constant."""
        return layer_contract(self, "log_A_real", "A_imag", "log_step", "D")

    @torch.no_grad()
    def initial_laws(self) -> tuple[Law, ...]:
        """What the initialisation makes true; nothing once its values were loaded or changed on purpose."""
        if self.has_history:
            return ()
        if self.init != "ring":
            rate, frequencies = math.log(0.5), self._frequencies()
            low, high = (math.log(bound) for bound in self.step_bounds)
            return (
                Law("log_A_real", "log_A_real", self.log_A_real, rate, rate),
                Law("A_imag", "A_imag", self.A_imag, frequencies, frequencies),
                Law("log_step", "log_step", self.log_step, low, high),
            )
        inner, outer, phase = self.ring
        modulus = self._factor(torch.complex(-self.log_A_real.double().exp(), self.A_imag.double())).abs()
        widest = math.pi * phase if self.discretization == "zoh" else math.inf
        return (
            Law("log_A_real", "|A_bar|", modulus, max(inner, SMALLEST_RADIUS), max(outer, SMALLEST_RADIUS)),
            Law("A_imag", "A_imag", self.A_imag, 0.0, widest),
            Law("log_step", "log_step", self.log_step, 0.0, 0.0),
        )

    @torch.no_grad()
    def state_memory(self) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """Parameters; how much of each state survives a step, and how much a step changes it, both without any input."""
        # In float64, before A_bar is kept off the unit circle: what counts is what the parameters ask for.
        decay = (self.log_A_real.double() + self.log_step.double()[:, None]).exp()
        z = torch.complex(-decay, self.A_imag.double() * self.log_step.double()[:, None].exp())
        change = torch.expm1(z) if self.discretization == "zoh" else z / (1 - z / 2)
        return ("log_A_real", "A_imag", "log_step"), self._factor(z).abs(), change.abs()

    def _factor(self, z: Tensor) -> Tensor:
        """What a step multiplies a state with, for z = step A."""
        return torch.exp(z) if self.discretization == "zoh" else (1 + z / 2) / (1 - z / 2)


def discretise(
    z: Complex[Tensor, "d n"], step: Float[Tensor, "d 1"], discretization: str
) -> tuple[Complex[Tensor, "d n"], Complex[Tensor, "d n"]]:
    """A_bar and B_bar (for B = 1) of z = step A; |A_bar| < 1 for every z whose real part is not above zero.

    Rounding would take a state that hardly decays to a modulus of one, or just above it. There, and only there, A_bar is
    scaled down by a few units of rounding; the factor is no part of the graph, so that the gradient passes as if it were 1.
    """
    if discretization == "zoh":
        A_bar, B_bar = torch.exp(z), step * phi1(z)
    else:
        inverse = 1 / (1 - z / 2)
        A_bar, B_bar = (1 + z / 2) * inverse, step * inverse
    largest = 1 - 4 * torch.finfo(step.dtype).eps
    return A_bar * (largest / A_bar.detach().abs()).clamp(max=1), B_bar


class _Phi1(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        # The quotient of numbers near zero overflows or is NaN: there the first two terms of the series are exact.
        tiny = z.abs() < math.sqrt(torch.finfo(z.dtype).eps)
        value = torch.where(tiny, 1 + z / 2, torch.expm1(z) / z)
        ctx.save_for_backward(z, value)
        return value

    @staticmethod
    @once_differentiable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        z, value = ctx.saved_tensors
        # The derivative is (exp(z) - phi1) / z, which cancels near zero: the sum over k of k z^(k-1) / (k+1)! there.
        series = torch.zeros_like(z)
        for k in range(SERIES_TERMS, 0, -1):
            series.mul_(z).add_(k / math.factorial(k + 1))
        derivative = torch.where(z.abs() < SERIES_RADIUS, series, (torch.exp(z) - value) / z)
        return grad * derivative.conj()


def phi1(z: Complex[Tensor, "d n"]) -> Complex[Tensor, "d n"]:
    """(exp(z) - 1) / z, exact near zero as well, and so is its derivative."""
    value: Tensor = _Phi1.apply(z)  # type: ignore[no-untyped-call]
    return value


def diagonal_ssm(
    *,
    n_features: int,
    n_outputs: int,
    target_inputs: tuple[int, ...] | None,
    targets_are_levels: bool,
    horizon: int,
    d_model: int = 64,
    d_state: int = 16,
    n_layers: int = 2,
    discretization: str = "zoh",
    init: str = "s4d_lin",
    step_min: float = 0.01,
    step_max: float = 0.5,
    ring_min: float = 0.5,
    ring_max: float = 0.99,
    ring_phase: float = 1.0,
    norm: str = "layer",
    residual: bool = True,
    skip: bool = True,
    activation: str = "gelu",
    glu: bool = True,
    dropout: float = 0.0,
    linear_skip: int = 0,
    anchor: str = "auto",
    checkpoint_blocks: bool = False,
) -> Forecaster:
    """A forecaster whose layers are diagonal state-space layers.

    n_features, n_outputs (horizon * n_targets), target_inputs, targets_are_levels and horizon come from the data, the
    rest from `model`.
    """
    at_least(1, model__n_layers=n_layers)
    layers = [
        DiagonalSSM(
            d_model=d_model,
            d_state=d_state,
            discretization=discretization,
            init=init,
            step_min=step_min,
            step_max=step_max,
            ring_min=ring_min,
            ring_max=ring_max,
            ring_phase=ring_phase,
            skip=skip,
        )
        for _ in range(n_layers)
    ]
    return Forecaster(
        layers,
        n_features=n_features,
        n_outputs=n_outputs,
        horizon=horizon,
        norm=norm,
        residual=residual,
        activation=activation,
        glu=glu,
        dropout=dropout,
        linear_skip=linear_skip,
        anchor_inputs=resolve_anchor(anchor, target_inputs, targets_are_levels),
        checkpoint_blocks=checkpoint_blocks,
    )
