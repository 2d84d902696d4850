"""The Mamba-2 layer: a state-space model whose step and matrices are chosen by the input.

    z, x, B, C, dt = in_proj(input)          x, B, C = silu(causal convolution(x, B, C))
    dt = softplus(dt + dt_bias)              A = -exp(A_log)
    h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t^T            y_t = h_t C_t + D x_t            one scalar A a head
    output = out_proj(norm(y silu(z)))

Dao and Gu, "Transformers are SSMs" (2024, arXiv 2405.21060). Parameters are named as in its authors' package, except
that the convolution is `conv_weight` [c, k] and `conv_bias` here. With groups, B and C are shared by the heads of a
group, and the norm takes the channels of each group by themselves, as it does there.

Symbols: b batch, t time, d width of the stream, h heads, p head size (headdim), g groups (n_groups), n state, k length of
the convolution, c its channels (x, B and C side by side).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statewise.choices import at_least
from statewise.models.contract import layer_contract
from statewise.models.forecaster import Forecaster, resolve_anchor
from statewise.models.gated_norm import GatedRMSNorm
from statewise.models.initial import Law, forget_when_loaded
from statewise.scan import ssd_triton
from statewise.scan.causal_conv import causal_conv
from statewise.scan.dense import full_precision
from statewise.scan.ssd import ssd


class Mamba2State(NamedTuple):
    """What the layer remembers between two calls; the state is float32 or wider."""

    conv: Tensor
    """The inputs that the convolution still needs, [b, k - 1, c]."""
    ssm: Tensor
    """The state of every head, [b, h, p, n]."""


class Mamba2(nn.Module):
    """One Mamba-2 layer on sequences of width d_model.

    The steps dt start between dt_min and dt_max, evenly in their logarithm and not below dt_init_floor; the rates -A
    start evenly in A_init_range. Both are drawn once a head. backend says what runs the recurrence: scan/ssd_triton.py.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        n_groups: int = 1,
        chunk_size: int = 64,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        A_init_range: Sequence[float] = (1.0, 16.0),
        backend: str = "auto",
    ) -> None:
        super().__init__()
        at_least(1, model__d_model=d_model, model__d_state=d_state, model__d_conv=d_conv, model__expand=expand)
        at_least(1, model__headdim=headdim, model__n_groups=n_groups, model__chunk_size=chunk_size)
        ssd_triton.check(backend)
        self.width, self.d_inner, self.n_groups, self.d_state = d_model, expand * d_model, n_groups, d_state
        self.n_heads = _heads(self.d_inner, headdim, n_groups)
        self.headdim, self.chunk_size, self.backend = headdim, chunk_size, backend
        channels = self.d_inner + 2 * n_groups * d_state
        self.in_proj = nn.Linear(d_model, self.d_inner + channels + self.n_heads, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(channels, d_conv))
        self.conv_bias = nn.Parameter(torch.empty(channels))
        self.dt_bias = nn.Parameter(torch.empty(self.n_heads))
        self.A_log = nn.Parameter(torch.empty(self.n_heads))
        self.D = nn.Parameter(torch.ones(self.n_heads))
        self.norm = GatedRMSNorm(self.d_inner, groups=n_groups)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.rates = _rates(dt_min, dt_max, dt_init_floor, A_init_range)
        self._initialise(*self.rates)
        forget_when_loaded(self)

    @torch.no_grad()
    def _initialise(self, dt_min: float, dt_max: float, dt_floor: float, A_min: float, A_max: float) -> None:
        for parameter in (self.conv_weight, self.conv_bias):
            nn.init.uniform_(parameter, -1 / math.sqrt(self.conv_weight.shape[1]), 1 / math.sqrt(self.conv_weight.shape[1]))
        # Drawn in float64: the narrow dtypes would round the bounds themselves.
        uniform = torch.rand(self.n_heads, dtype=torch.float64)
        dt = torch.exp(math.log(dt_min) + uniform * (math.log(dt_max) - math.log(dt_min))).clamp_min(dt_floor)
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        self.A_log.copy_(torch.log(A_min + torch.rand(self.n_heads, dtype=torch.float64) * (A_max - A_min)))

    def initial_state(self, batch: int) -> Mamba2State:
        """The state before the first step: zeros on the parameters' device, in their dtype or in float32."""
        channels, k = self.conv_weight.shape
        conv = self.conv_weight.new_zeros(batch, k - 1, channels, dtype=self._wide)
        return Mamba2State(conv, conv.new_zeros(batch, self.n_heads, self.headdim, self.d_state))

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.A_log.dtype, torch.float32)

    def forward(
        self, x: Float[Tensor, "b t d"], state: Mamba2State | None = None, *, last_only: bool = False
    ) -> tuple[Float[Tensor, "b s d"], Mamba2State]:
        """Outputs of all steps (s = t), or of the last one (s = 1), and the state after the last step.

        Mixed precision reaches the two projections; everything between them is computed in float32 or wider.
        """
        rest = self.in_proj.out_features - self.d_inner
        if last_only:
            # Only the gate is not needed before the last step: everything else enters the state.
            gate, weight = torch.split(self.in_proj.weight, [self.d_inner, rest])
            z, xBCdt = F.linear(x[:, -1:], gate), F.linear(x, weight)  # (b 1 h*p), (b t c+h)
        else:
            z, xBCdt = torch.split(self.in_proj(x), [self.d_inner, rest], dim=-1)
        with full_precision(self.A_log):
            y, state = self._mix(xBCdt.to(self._wide), state, last_only)  # (b s h*p)
            y = self.norm(y, z.to(y.dtype))
        return self.out_proj(y.to(self.out_proj.weight.dtype)), state

    def _mix(self, xBCdt: Tensor, state: Mamba2State | None, last_only: bool) -> tuple[Tensor, Mamba2State]:
        """Convolution and recurrence: what they give and leave behind, in float32 or wider."""
        xBC, dt = torch.split(xBCdt, [self.conv_weight.shape[0], self.n_heads], dim=-1)  # (b t c), (b t h)
        wide = xBC.dtype
        weight, bias, A_log, D = (v.to(wide) for v in (self.conv_weight, self.conv_bias, self.A_log, self.D))
        # Zeros before the first inputs cost little, a state of zeros as much as any.
        past = xBC.new_zeros(xBC.shape[0], weight.shape[1] - 1, weight.shape[0]) if state is None else state.conv.to(wide)
        xBC, conv = causal_conv(xBC, weight, bias, past, silu=True)
        x, B, C = self._split(xBC)  # (b t h p), (b t g n), (b t g n)
        dt, A = F.softplus(dt + self.dt_bias), -torch.exp(A_log)
        scan = ssd_triton.choose(self.backend, x)
        if scan is ssd:
            h0 = None if state is None else state.ssm
            y, h = ssd(x, dt, A, B, C, h0, D=D, chunk_size=self.chunk_size, last_only=last_only)
        else:
            h0 = self.initial_state(len(x)).ssm if state is None else state.ssm
            y, h = scan(x, dt, A, B, C, h0, chunk_size=self.chunk_size, last_only=last_only)
            y = torch.addcmul(y, D[:, None], x[:, -1:] if last_only else x)  # (b s h p)
        return y.flatten(2), Mamba2State(conv, h)

    def step(self, x_t: Float[Tensor, "b d"], state: Mamba2State) -> tuple[Float[Tensor, "b d"], Mamba2State]:
        """One time step: the output and the state after it."""
        zxBCdt = self.in_proj(x_t)  # (b h*p+c+h)
        with full_precision(self.A_log):
            wide = self._wide
            sizes = [self.d_inner, self.conv_weight.shape[0], self.n_heads]
            z, xBC, dt = torch.split(zxBCdt.to(wide), sizes, dim=-1)
            window = torch.cat([state.conv.to(wide), xBC[:, None]], dim=1)  # (b k c)
            xBC = F.silu((window * self.conv_weight.T).sum(1) + self.conv_bias)  # (b c)
            x, B, C = self._split(xBC)  # (b h p), (b g n), (b g n)
            dt = F.softplus(dt + self.dt_bias)  # (b h)
            decay = torch.exp(dt * -torch.exp(self.A_log.to(wide)))  # (b h)
            (b, h, p), (g, n) = x.shape, B.shape[1:]
            dtx = (dt[:, :, None] * x).view(b, g, -1, 1)  # (b g r*p 1)
            ssm = torch.addcmul((decay[:, :, None, None] * state.ssm).view(b, g, -1, n), dtx, B[:, :, None])  # (b g r*p n)
            y = torch.addcmul((ssm @ C[..., None]).view(b, h, p), self.D[:, None], x)
            y = self.norm.plain(y.view(b, -1), z)
        return self.out_proj(y.to(self.out_proj.weight.dtype)), Mamba2State(window[:, 1:], ssm.view(b, h, p, n))

    def _split(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bc = self.n_groups * self.d_state
        x, B, C = torch.split(xBC, [self.d_inner, bc, bc], dim=-1)
        lead = xBC.shape[:-1]
        B, C = B.reshape(*lead, self.n_groups, self.d_state), C.reshape(*lead, self.n_groups, self.d_state)
        return x.reshape(*lead, self.n_heads, self.headdim), B, C

    def no_weight_decay(self) -> list[nn.Parameter]:
        """Everything but the matrices: decay would move the rates and the steps, which is no regularisation."""
        return [self.A_log, self.D, self.dt_bias, self.norm.weight, self.conv_bias]

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """All parameters of the layer must train; none is a constant."""
        return layer_contract(self, "A_log", "D", "dt_bias", "norm.weight", "conv_bias")

    @torch.no_grad()
    def initial_laws(self) -> tuple[Law, ...]:
        """What the initialisation makes true; nothing once its values were loaded or changed on purpose."""
        if self.has_history:
            return ()
        dt_min, dt_max, dt_floor, A_min, A_max = self.rates
        steps = F.softplus(self.dt_bias.double())
        return (
            Law("dt_bias", "softplus(dt_bias)", steps, max(dt_min, dt_floor), max(dt_max, dt_floor)),
            Law("A_log", "A_log", self.A_log, math.log(A_min), math.log(A_max)),
        )

    @torch.no_grad()
    def state_memory(self) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """Parameters; how much of each head's state survives a step, and how much a step changes it, where the input is 0."""
        exponent = -F.softplus(self.dt_bias.double()) * self.A_log.double().exp()
        return ("dt_bias", "A_log"), exponent.exp(), -torch.expm1(exponent)


def mamba2(
    *,
    n_features: int,
    n_outputs: int,
    target_inputs: tuple[int, ...] | None,
    targets_are_levels: bool,
    horizon: int,
    d_model: int = 32,
    n_layers: int = 2,
    d_state: int = 16,
    d_conv: int = 4,
    expand: int = 2,
    headdim: int = 64,
    n_groups: int = 1,
    chunk_size: int = 64,
    dt_min: float = 0.001,
    dt_max: float = 0.1,
    dt_init_floor: float = 1e-4,
    A_init_range: Sequence[float] = (1.0, 16.0),
    backend: str = "auto",
    norm: str = "rms",
    residual: bool = True,
    dropout: float = 0.0,
    linear_skip: int = 0,
    anchor: str = "auto",
    checkpoint_blocks: bool = False,
) -> Forecaster:
    """A forecaster whose layers are Mamba-2 layers.

    n_features, n_outputs (horizon * n_targets), target_inputs, targets_are_levels and horizon come from the data, the
    rest from `model`.
    """
    at_least(1, model__n_layers=n_layers)
    layers = [
        Mamba2(
            d_model=d_model,
            d_state=d_state,
            d_conv=d_conv,
            expand=expand,
            headdim=headdim,
            n_groups=n_groups,
            chunk_size=chunk_size,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_init_floor=dt_init_floor,
            A_init_range=A_init_range,
            backend=backend,
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
        activation="none",
        glu=False,
        dropout=dropout,
        linear_skip=linear_skip,
        anchor_inputs=resolve_anchor(anchor, target_inputs, targets_are_levels),
        checkpoint_blocks=checkpoint_blocks,
    )


def _heads(d_inner: int, headdim: int, n_groups: int) -> int:
    """The number of heads, where the sizes fit."""
    if d_inner % headdim:
        raise ValueError(
            f"model.headdim must divide model.expand * model.d_model = {d_inner}, got {headdim}: choose a divisor of {d_inner}"
        )
    heads = d_inner // headdim
    if heads % n_groups:
        raise ValueError(f"model.n_groups must divide the {heads} heads, got {n_groups}: choose a divisor of {heads}")
    return heads


def _rates(dt_min: float, dt_max: float, dt_floor: float, A_range: Sequence[float]) -> tuple[float, float, float, float, float]:
    """What the initial draws are bounded by, checked."""
    if not 0 < dt_min < math.inf:
        raise ValueError(f"model.dt_min must be above 0, got {dt_min}: choose a small step such as 0.001")
    if not dt_min <= dt_max < math.inf:
        raise ValueError(f"model.dt_max must be at least model.dt_min = {dt_min}, got {dt_max}: raise it or lower model.dt_min")
    if not 0 <= dt_floor < math.inf:
        raise ValueError(f"model.dt_init_floor must not be negative, got {dt_floor}: use 0 for no floor")
    if len(A_range) != 2 or not 0 < A_range[0] <= A_range[1] < math.inf:
        raise ValueError(f"model.A_init_range must be two positive numbers, ascending, got {list(A_range)}: try [1, 16]")
    return dt_min, dt_max, dt_floor, A_range[0], A_range[1]
