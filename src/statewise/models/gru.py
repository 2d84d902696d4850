"""The gated recurrent unit: the recurrence that state-space models set out to replace, as a baseline.

    r_t = sigmoid(W_ir x_t + b_ir + W_hr h_(t-1) + b_hr)            which part of the past the candidate sees
    z_t = sigmoid(W_iz x_t + b_iz + W_hz h_(t-1) + b_hz)            how much of the past stays
    c_t = tanh(W_ic x_t + b_ic + r_t * (W_hc h_(t-1) + b_hc))       the candidate
    h_t = (1 - z_t) * c_t + z_t * h_(t-1)                           state and output in one

[1] Cho et al. 2014, Learning phrase representations using RNN encoder-decoder (arXiv 1406.1078)
Symbols: b batch, t time, d width of the stream, which is also the size of the state. The gates stand in the order r, z, c
in torch's parameters (`gru.weight_ih_l0` and so on, drawn uniformly from +-1 / sqrt(d)).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statewise.choices import at_least
from statewise.models.contract import layer_contract
from statewise.models.forecaster import Forecaster, resolve_anchor
from statewise.scan.dense import full_precision


class GRU(nn.Module):
    """One GRU layer on sequences of width d_model, computed by torch's own kernels.

    Unlike a linear recurrence it has no shortcut through time: a step needs the output of the one before. It stays in
    the precision of its parameters under mixed precision, because a rounded state is rounded again at every step.
    """

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        at_least(1, model__d_model=d_model)
        self.width = d_model
        self.gru = nn.GRU(d_model, d_model, batch_first=True)

    def initial_state(self, batch: int) -> Float[Tensor, "b d"]:
        """The state before the first step: zeros, in the parameters' dtype and on their device."""
        return self.gru.all_weights[0][0].new_zeros(batch, self.width)

    def forward(
        self, x: Float[Tensor, "b t d"], state: Float[Tensor, "b d"] | None = None, *, last_only: bool = False
    ) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b d"]]:
        """Outputs of all steps (s = t), or of the last one (s = 1), and the state after the last step."""
        h0 = self.initial_state(x.shape[0]) if state is None else state
        with full_precision(h0):
            y, h = self.gru(x.to(h0.dtype), h0[None])  # (b t d), (1 b d)
        return h.transpose(0, 1) if last_only else y, h[0]

    def step(self, x_t: Float[Tensor, "b d"], state: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """One time step: the output and the state after it, which are the same."""
        with full_precision(state):
            h = torch.gru_cell(x_t.to(state.dtype), state, *self.gru.all_weights[0])  # (b d)
        return h, h

    def no_weight_decay(self) -> list[nn.Parameter]:
        """Nothing of its own: the optimiser exempts biases by itself."""
        return []

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """All parameters must train.

        Of the two biases of r and of z only the sum counts, but each gets the gradient of the sum.
        """
        return layer_contract(self)


def gru(
    *,
    n_features: int,
    n_outputs: int,
    target_inputs: tuple[int, ...] | None,
    targets_are_levels: bool,
    horizon: int,
    d_model: int = 32,
    n_layers: int = 2,
    norm: str = "layer",
    residual: bool = True,
    dropout: float = 0.0,
    linear_skip: int = 0,
    anchor: str = "auto",
    checkpoint_blocks: bool = False,
) -> Forecaster:
    """A forecaster whose layers are GRUs, without activation and gate after them: they have their own.

    n_features, n_outputs (horizon * n_targets), target_inputs, targets_are_levels and horizon come from the data, the
    rest from `model`.
    """
    at_least(1, model__n_layers=n_layers)
    return Forecaster(
        [GRU(d_model=d_model) for _ in range(n_layers)],
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
