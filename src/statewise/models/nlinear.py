"""NLinear: one linear map from the past of a target to its future, relative to its last value [1]. A baseline.

    y_(t+i) = x_t + sum over k = 1 .. look_back - 1 of W_(i,k) (x_(t-k) - x_t) + b_i

Each target is predicted from its own past alone, by default all of them with the same W and b. That the last value is
taken off in front and put back behind makes the prediction follow a shift of the level, which no training row has shown.

[1] Zeng et al. 2023, Are transformers effective for time series forecasting? (arXiv 2205.13504)
Symbols: b batch, t time, f features, m targets, i step of the horizon, k steps back.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statewise.choices import at_least
from statewise.models.contract import layer_contract
from statewise.models.forecaster import resolve_anchor
from statewise.scan.dense import full_precision


class NLinearState(NamedTuple):
    """The newest look_back - 1 values of every target, oldest first."""

    past: Tensor  # (b look_back-1 m)
    seen: Tensor  # (b look_back-1): 1 where there is such a value, 0 where the series had not begun


class NLinear(nn.Module):
    """Predicts horizon values of every target after each time step; outputs lie horizon first, `y.view(b, s, horizon, m)`.

    A causal filter: what it carries from call to call is the end of the inputs, so that it streams and trains on every
    time step like the other models, on windows of any length. A value from before the series began counts as equal to
    the last one (as 0, the mean, where the map is not relative). The weights of lags that no window reaches stay 0.

    Args:
        target_inputs: the input column of each target.
        horizon: steps ahead.
        look_back: values of the past that the map sees, the last one included.
        individual: weights of its own for every target.
        relative: to the last value, as in [1]; without it (for changes, where the last value is no level to start from)
            the map is of the plain values, [1]'s model Linear.
    """

    columns: Tensor

    def __init__(
        self,
        *,
        target_inputs: tuple[int, ...],
        horizon: int,
        look_back: int,
        individual: bool = False,
        relative: bool = True,
    ) -> None:
        super().__init__()
        at_least(2 if relative else 1, model__look_back=look_back)
        self.horizon, self.look_back, self.relative = horizon, look_back, relative
        maps = len(target_inputs) if individual else 1
        # Oldest value first. Relative to the last value the last value itself is always 0: it has no weight.
        # Zeros, because a single linear map has no symmetry to break: it starts as "no change" and is found from anywhere.
        self.weight = nn.Parameter(torch.zeros(maps, horizon, look_back - 1 if relative else look_back))
        self.bias = nn.Parameter(torch.zeros(maps, horizon))
        self.register_buffer("columns", torch.tensor(target_inputs), persistent=False)

    def initial_state(self, batch: int) -> NLinearState:
        """The state before the first step: no value seen."""
        past = self.weight.new_zeros(batch, self.look_back - 1, len(self.columns))
        return NLinearState(past, past.new_zeros(past.shape[:2]))

    def forward(
        self, x: Float[Tensor, "b t f"], state: NLinearState | None = None, *, last_only: bool = False
    ) -> tuple[Float[Tensor, "b s horizon_m"], NLinearState]:
        """Predictions after all steps (s = t), or after the last one (s = 1), and the state to go on from.

        Those of all steps take memory for look_back values at each of them.
        """
        if state is None:
            state = self.initial_state(x.shape[0])
        with full_precision(self.weight):
            own = x.index_select(2, self.columns).to(self.weight.dtype)  # (b t m)
            past = torch.cat([state.past, own], dim=1)  # (b look_back-1+t m)
            seen = torch.cat([state.seen, own.new_ones(own.shape[:2])], dim=1)  # (b look_back-1+t)
            needed = self.look_back if last_only else past.shape[1]
            y = self._predict(past[:, -needed:], seen[:, -needed:])  # (b s horizon m)
        kept = past.shape[1] - (self.look_back - 1)
        # Copies: a view would keep the whole window alive as long as the state.
        return y.flatten(2), NLinearState(past[:, kept:].clone(), seen[:, kept:].clone())

    def step(self, x_t: Float[Tensor, "b f"], state: NLinearState) -> tuple[Float[Tensor, "b horizon_m"], NLinearState]:
        """The prediction after one more time step, and the next state."""
        y, state = self(x_t[:, None], state, last_only=True)
        return y[:, 0], state

    def _predict(self, past: Tensor, seen: Tensor) -> Tensor:
        windows = past.unfold(1, self.look_back, 1)  # (b s m look_back)
        last = windows[..., -1]  # (b s m)
        if self.relative:
            known = seen.unfold(1, self.look_back, 1)[:, :, None]  # (b s 1 look_back)
            windows = (windows[..., :-1] - last[..., None]) * known[..., :-1]  # (b s m look_back-1)
        weight = self.weight.expand(len(self.columns), -1, -1)  # (m horizon k)
        y = torch.einsum("bsmk,mik->bsim", windows, weight) + self.bias.T  # (b s horizon m)
        return y + last[:, :, None] if self.relative else y

    def no_weight_decay(self) -> list[nn.Parameter]:
        """Nothing of its own: the optimiser exempts the bias by itself, and on the weights decay is ridge regression."""
        return []

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """Both parameters must train."""
        return layer_contract(self)


def nlinear(
    *,
    n_features: int,
    n_outputs: int,
    target_inputs: tuple[int, ...] | None,
    targets_are_levels: bool,
    horizon: int,
    look_back: int,
    individual: bool = False,
    anchor: str = "auto",
) -> NLinear:
    """NLinear for these data; look_back is data.window unless `model` says otherwise.

    n_features, n_outputs (horizon * n_targets), target_inputs, targets_are_levels and horizon come from the data, the
    rest from `model`. anchor decides whether the map is relative to the last value, as it does for the other models.

    Raises:
        ValueError: a target is not among the inputs, so that it has no past to be predicted from; or an argument is out
        of range.
    """
    if target_inputs is None:
        raise ValueError(
            "model=nlinear predicts each of data.targets from its own past, and not all of them are in data.features: add "
            "them there, or choose another model"
        )
    anchored = resolve_anchor(anchor, target_inputs, targets_are_levels)
    return NLinear(
        target_inputs=tuple(target_inputs),
        horizon=horizon,
        look_back=look_back,
        individual=individual,
        relative=anchored is not None,
    )
