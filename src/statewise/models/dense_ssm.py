"""The dense state-space layer: a full transition matrix, trained as it is.

    h_t = A_bar h_(t-1) + B_bar x_t        y_t = C h_t (+ D x_t)

Symbols: b batch, t time, d layer width (d_inner = expand * d_model), n state. A, B, C, delta are the parameters;
A_bar and B_bar are what the recurrence uses, made from A, B and mean(delta) as stability.py says. delta has d_model
entries and only its mean counts; the mean is taken inside the graph, so that delta trains like everything else.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statewise.choices import at_least, one_of
from statewise.models.contract import layer_contract
from statewise.models.forecaster import Forecaster, resolve_anchor
from statewise.models.initial import Law, forget_when_loaded
from statewise.scan.dense import full_precision, ssm
from statewise.stability import NonPositiveStep, scale_direct, scale_zoh, zoh_exponentials

DISCRETIZATIONS = ("direct", "zoh")
INITS = ("uniform", "rotation")

# The origin's initialisation: every entry of A, B and C is uniform between minus and plus this.
UNIFORM_BOUND = 0.02
# Steps after which the slowest and the fastest rotation block have decayed to 1/e.
SHORTEST_TIME, LONGEST_TIME = 1.5, 100.0
# The smallest mean(delta) that a projection under zoh leaves standing.
SMALLEST_STEP = 1e-3


class DenseSSM(nn.Module):
    """One dense state-space layer on sequences of width d_inner = expand * d_model.

    init describes the discrete transition at a step of one:
      uniform   entries of A, B and C uniform in [-0.02, 0.02]: a transition that forgets within a step
      rotation  damped rotations in a random orthogonal basis, time constants from 1.5 to 100 steps and frequencies
                from 0 to almost half a turn per step; B and C by fan-in
    Under zoh the parameter A is the real logarithm of that transition. A rotation has one by construction; a uniform
    matrix has none as soon as one eigenvalue is negative, which would be left to the seed, so that pair is refused.
    """

    def __init__(
        self,
        *,
        d_model: int,
        expand: int = 2,
        d_state: int = 16,
        discretization: str = "direct",
        init: str = "rotation",
        skip: bool = False,
    ) -> None:
        super().__init__()
        at_least(1, model__d_model=d_model, model__expand=expand, model__d_state=d_state)
        one_of("model.discretization", discretization, DISCRETIZATIONS)
        one_of("model.init", init, INITS)
        if discretization == "zoh" and init == "uniform":
            raise ValueError(
                "model.init=uniform draws transitions without a real logarithm, so model.discretization=zoh cannot "
                "represent them: use model.init=rotation, or model.discretization=direct"
            )
        self.discretization, self.init = discretization, init
        self.width = self.d_inner = d_model * expand
        self.A = nn.Parameter(torch.empty(d_state, d_state))
        self.B = nn.Parameter(torch.empty(d_state, self.d_inner))
        self.C = nn.Parameter(torch.empty(self.d_inner, d_state))
        self.delta = nn.Parameter(torch.ones(d_model))
        if skip:
            self.D = nn.Parameter(torch.ones(self.d_inner))
        else:
            self.register_parameter("D", None)
        self._initialise(init)
        forget_when_loaded(self)
        self.register_load_state_dict_pre_hook(_refuse_loaded_step)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _initialise(self, init: str) -> None:
        if init == "uniform":
            for matrix in (self.A, self.B, self.C):
                nn.init.uniform_(matrix, -UNIFORM_BOUND, UNIFORM_BOUND)
            return
        generator = rotation_generator(self.A.shape[0])
        self.A.copy_(generator if self.discretization == "zoh" else torch.linalg.matrix_exp(generator))
        for matrix in (self.B, self.C):
            nn.init.normal_(matrix, std=1 / math.sqrt(matrix.shape[1]))

    def initial_state(self, batch: int) -> Float[Tensor, "b n"]:
        """The state before the first step: zeros, in the parameters' dtype and on their device."""
        return self.A.new_zeros(batch, self.A.shape[0])

    def forward(
        self, x: Float[Tensor, "b t d"], state: Float[Tensor, "b n"] | None = None, *, last_only: bool = False
    ) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b n"]]:
        """Outputs of all steps (s = t), or of the last one (s = 1), and the state after the last step."""
        h0 = self.initial_state(x.shape[0]) if state is None else state
        with full_precision(self.A):
            x = x.to(self.A.dtype)
            A_bar, B, step = self._discrete()
            y, state = ssm(A_bar, B, step, self.C, x, h0, last_only=last_only)  # (b s d), (b n)
        return self._skip(y, x[:, -1:] if last_only else x), state

    def step(self, x_t: Float[Tensor, "b d"], state: Float[Tensor, "b n"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b n"]]:
        """One time step: the output and the state after it."""
        with full_precision(self.A):
            x_t = x_t.to(self.A.dtype)
            A_bar, B, step = self._discrete()
            state = torch.addcmul(F.linear(state, A_bar), step, F.linear(x_t, B))  # (b n)
            y_t = F.linear(state, self.C)  # (b d)
        return self._skip(y_t, x_t), state

    def _skip(self, y: Tensor, x: Tensor) -> Tensor:
        return y if self.D is None else torch.addcmul(y, self.D, x)

    def _discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """A_bar, and B_bar as the product of a matrix [n, d] and a step []: it is cheaper to multiply by them apart."""
        step = self._step_size()
        if self.discretization == "direct":
            return self.A, self.B, step
        A_bar, phi1 = zoh_exponentials(self.A, step)
        return A_bar, phi1 @ self.B, step

    def _step_size(self) -> Tensor:
        """mean(delta), in the graph; checked under zoh, but on an accelerator not while training.

        Reading the step would stall every forward pass there: loading and the projection find a bad one as well.
        """
        step = self.delta.mean()
        if self.discretization == "zoh" and (step.device.type == "cpu" or not torch.is_grad_enabled()):
            _check_step(step.item(), "delta")
        return step

    def no_weight_decay(self) -> list[nn.Parameter]:
        """A, delta and D: decay would shrink the memory and the step, which is no regularisation."""
        return [self.A, self.delta] + ([] if self.D is None else [self.D])

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """All parameters of the layer must train; none is a constant."""
        return layer_contract(self, "A", "delta", "D")

    @torch.no_grad()
    def initial_laws(self) -> tuple[Law, ...]:
        """What the initialisation makes true; nothing once its values were loaded or changed on purpose."""
        if self.has_history:
            return ()
        delta = Law("delta", "delta", self.delta, 1.0, 1.0)
        if self.init == "uniform":
            entries = (Law(name, name, getattr(self, name), -UNIFORM_BOUND, UNIFORM_BOUND) for name in ("A", "B", "C"))
            return (*entries, delta)
        # The matrix is normal: its norm is that of its eigenvalues, which do not depend on the seed.
        times, angles = _rotation_spectrum(self.A.shape[0])
        sizes = (1 / times**2 + angles**2) if self.discretization == "zoh" else torch.exp(-2 / times)
        norm = float(sizes.sum().sqrt())
        return Law("A", "the norm of A", self.A.double().norm(), norm, norm), delta

    @torch.no_grad()
    def state_memory(self) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """Parameters; how much of each state survives a step, and how much a step changes it, both without any input.

        A direct transition is what it is: its gradient does not pass through an exponential that could saturate.
        """
        if self.discretization == "direct":
            return (), self.A.new_zeros(0), self.A.new_zeros(0)
        G = self.A.double() * self.delta.double().mean()
        # exp(G) stretches by no more than the exponentials of the eigenvalues of its symmetric part, and by exactly those
        # where G is normal, as it begins; an exponential near 1 changes by G itself.
        return ("A", "delta"), torch.linalg.eigvalsh((G + G.T) / 2).exp(), G.abs().sum(1)

    @torch.no_grad()
    def discrete_transition(self) -> Tensor:
        """A_bar [n, n] as it stands now, a copy; NonPositiveStep under zoh where mean(delta) is not above 0."""
        return self.A.clone() if self.discretization == "direct" else zoh_exponentials(self.A, self._step_size())[0]

    @torch.no_grad()
    def scale_transition_(self, factor: float) -> None:
        """A_bar becomes factor * A_bar: direct scales A, zoh moves its diagonal by log(factor) / mean(delta)."""
        self.has_history = True
        if self.discretization == "zoh":
            self.A.copy_(scale_zoh(self.A, factor, float(self._step_size())))
        else:
            self.A.copy_(scale_direct(self.A, factor))

    @torch.no_grad()
    def lift_step_(self) -> float:
        """Under zoh raise mean(delta) to SMALLEST_STEP by one constant added to all entries; return the constant."""
        if self.discretization == "direct":
            return 0.0
        mean, largest = torch.stack([self.delta.double().mean(), self.delta.double().abs().max()]).tolist()
        if not mean < SMALLEST_STEP:
            return 0.0
        # Rounding of the sum must not leave the mean just below, to be lifted again after every step.
        lift: float = SMALLEST_STEP - mean + torch.finfo(self.delta.dtype).eps * max(largest, SMALLEST_STEP)
        self.delta.add_(lift)
        return lift


def dense_ssm(
    *,
    n_features: int,
    n_outputs: int,
    target_inputs: tuple[int, ...] | None,
    targets_are_levels: bool,
    horizon: int,
    d_model: int = 32,
    expand: int = 2,
    d_state: int = 16,
    n_layers: int = 2,
    discretization: str = "direct",
    init: str = "rotation",
    norm: str = "layer",
    residual: bool = True,
    skip: bool = False,
    activation: str = "gelu",
    glu: bool = True,
    dropout: float = 0.0,
    linear_skip: int = 0,
    anchor: str = "auto",
    checkpoint_blocks: bool = False,
) -> Forecaster:
    """A forecaster whose layers are dense state-space layers.

    n_features, n_outputs (horizon * n_targets), target_inputs, targets_are_levels and horizon come from the data, the
    rest from `model`. The defaults are the recommended model; experiment=origin sets the original's.
    """
    at_least(1, model__n_layers=n_layers)
    layers = [
        DenseSSM(d_model=d_model, expand=expand, d_state=d_state, discretization=discretization, init=init, skip=skip)
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


def rotation_generator(n: int) -> Float[Tensor, "n n"]:
    """The real logarithm of a stable rotation: damped 2 x 2 rotations in a random orthogonal basis, in float64.

    Time constants are spread evenly in their logarithm over SHORTEST_TIME to LONGEST_TIME, angles evenly over half a
    turn without its ends, in a random order, so that neither fixes the other. An odd n has one block without an angle.
    """
    times, angles = _rotation_spectrum(n)
    pairs = n // 2
    angles = angles[0 : 2 * pairs : 2][torch.randperm(pairs)]
    G = torch.diag(-1 / times)
    even = torch.arange(pairs) * 2
    G[even, even + 1], G[even + 1, even] = -angles, angles
    gaussian = torch.randn(n, n, dtype=torch.float64)
    Q, R = torch.linalg.qr(gaussian)
    # With the signs of R's diagonal Q is uniform over all orthogonal matrices (Mezzadri, Notices AMS 54, 2007).
    Q = Q * R.diagonal().sign()
    generator: Tensor = Q @ G @ Q.T
    return generator


def _rotation_spectrum(n: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Time constant and angle of each of n states, in ascending order of either: which pair has which is drawn."""
    pairs, odd = divmod(n, 2)
    times = torch.logspace(math.log10(SHORTEST_TIME), math.log10(LONGEST_TIME), pairs + odd, dtype=torch.float64)
    angles = math.pi * (torch.arange(pairs).double() + 0.5) / max(pairs, 1)
    return times.repeat_interleave(2)[:n], torch.cat([angles.repeat_interleave(2), angles.new_zeros(odd)])


def _check_step(step: float, name: str) -> None:
    if not step > 0:
        raise NonPositiveStep(
            f"mean({name}) must be above 0 under model.discretization=zoh, got {step:g}: keep the spectral_projection "
            "callback on, lower optimizer.lr, or go back to an earlier checkpoint"
        )


def _refuse_loaded_step(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    delta = state_dict.get(f"{prefix}delta")
    if isinstance(module, DenseSSM) and module.discretization == "zoh" and isinstance(delta, Tensor):
        _check_step(float(delta.double().mean()), f"{prefix}delta")
