"""The forecaster: input projection, a stack of sequence layers of any kind, output projection.

    stream = input_proj(x)
    for every layer:  stream = stream + dropout(glu(activation(ssm(norm(stream)))))      each part is optional
    prediction = output_proj(stream) (+ linear skip over the last inputs) (+ the last value of the target)

Symbols: b batch, t time, d width of the stream, f features, m targets. Parameters carry flat, stable names
(`input_proj.weight`, `norm_0.weight`, `ssm_0.A`, `glu_0.weight`, `output_proj.weight`): they are an exchange format.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statewise.choices import at_least, one_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "none": None,
}
NORMS = ("layer", "rms", "none")
ANCHORS = ("auto", "last", "none")

RMS_EPS = 1e-5
# An anchored model starts near "no change"; zero itself would leave everything before it without a gradient.
ANCHORED_OUTPUT_SCALE = 0.1


@runtime_checkable
class Layer(Protocol):
    """What the forecaster asks of a sequence layer; it is an nn.Module as well. The state's type is the layer's own."""

    width: int
    """The width of the stream that it reads and writes."""

    def __call__(self, x: Tensor, state: Any = None, *, last_only: bool = False) -> tuple[Tensor, Any]:
        """x [b, t, d] to y [b, t, d], or [b, 1, d] for the last step only, and the state after the last step."""

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One time step: x_t [b, d] to y_t [b, d] and the next state."""

    def initial_state(self, batch: int) -> Any:
        """The state before the first step."""

    def no_weight_decay(self) -> list[nn.Parameter]:
        """The parameters that weight decay must leave alone."""

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """Which parameters must train, which are constants or get no weight decay, and whether it is causal (contract.py)."""


class ForecasterState(NamedTuple):
    """All that a forecaster remembers between two calls."""

    layers: tuple[Any, ...]
    """The state of every layer, in order."""
    inputs: Tensor
    """The inputs that the linear skip still needs, [b, linear_skip - 1, f]; zero steps long without one."""


class Forecaster(nn.Module):
    """Predicts horizon values of every target after each time step, from inputs up to that step.

    The width of the stream is that of the layers. Outputs lie horizon first: `y.view(b, s, horizon, m)`.
    anchor_inputs names the input column of every target: then the network predicts the change against the value
    there, the same for all steps of the horizon. linear_skip adds a linear map of the last so many inputs.
    checkpoint_blocks keeps of every block only what goes into it and computes the rest again in the backward pass: the
    same numbers, dropout included, in a fraction of the memory and the time of one more forward pass.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        n_features: int,
        n_outputs: int,
        horizon: int = 1,
        norm: str = "layer",
        residual: bool = True,
        activation: str = "gelu",
        glu: bool = True,
        dropout: float = 0.0,
        linear_skip: int = 0,
        anchor_inputs: tuple[int, ...] | None = None,
        checkpoint_blocks: bool = False,
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a forecaster needs at least one layer: model.n_layers must be at least 1")
        at_least(1, n_features=n_features, data__horizon=horizon, n_outputs=n_outputs)
        at_least(0, model__linear_skip=linear_skip)
        one_of("model.norm", norm, NORMS)
        one_of("model.activation", activation, ACTIVATIONS)
        if not 0 <= dropout < 1:
            raise ValueError(f"model.dropout must be at least 0 and below 1, got {dropout}")
        width = layers[0].width
        if any(layer.width != width for layer in layers):
            raise ValueError(f"all layers must have one width, got {[layer.width for layer in layers]}")
        if norm != "none" and width == 1:
            left = "nothing" if norm == "layer" else "only the sign"
            raise ValueError(
                f"model.norm={norm} leaves {left} of a single channel: use model.norm=none, or raise model.d_model"
            )
        _check_outputs(n_outputs, horizon, n_features, anchor_inputs)

        self.n_layers, self.horizon, self.linear_skip, self.anchor_inputs = len(layers), horizon, linear_skip, anchor_inputs
        self.norm, self.activation, self.glu, self.dropout = norm, ACTIVATIONS[activation], glu, dropout
        self.residual, self.checkpoint_blocks = residual, checkpoint_blocks
        self.input_proj = nn.Linear(n_features, width)
        for i, layer in enumerate(layers):
            if norm == "layer":
                self.add_module(f"norm_{i}", nn.LayerNorm(width))
            elif norm == "rms":
                self.add_module(f"norm_{i}", nn.RMSNorm(width, eps=RMS_EPS))
            self.add_module(f"ssm_{i}", cast(nn.Module, layer))
            if glu:
                self.add_module(f"glu_{i}", nn.Linear(width, 2 * width))
        self.output_proj = nn.Linear(width, n_outputs)
        if linear_skip:
            # Horizon first like the output, then feature by feature, newest input last.
            self.skip_proj = nn.Linear(n_features * linear_skip, n_outputs, bias=False)
            nn.init.zeros_(self.skip_proj.weight)
        if anchor_inputs is not None:
            with torch.no_grad():
                self.output_proj.weight.mul_(ANCHORED_OUTPUT_SCALE)
                self.output_proj.bias.zero_()
            columns = torch.tensor(anchor_inputs * horizon)
            self.register_buffer("anchor_columns", columns, persistent=False)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The sequence layers, first to last."""
        return tuple(cast(Layer, getattr(self, f"ssm_{i}")) for i in range(self.n_layers))

    def blocks(self) -> list[list[nn.Module]]:
        """The modules of every block in the order in which they run: what several processes gather at one time."""
        kinds = ("norm", "ssm", "glu")
        named = [[getattr(self, f"{kind}_{i}", None) for kind in kinds] for i in range(self.n_layers)]
        return [[module for module in block if module is not None] for block in named]

    def no_weight_decay(self) -> list[nn.Parameter]:
        """What the layers exempt; biases and norms are the optimiser's own rule."""
        return [parameter for layer in self.layers for parameter in layer.no_weight_decay()]

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        """Causal as its layers are; they say themselves what must train."""
        return {"causal": ("",)}

    def initial_state(self, batch: int) -> ForecasterState:
        """The state before the first step: nothing seen, and an input history of zeros."""
        return ForecasterState(tuple(layer.initial_state(batch) for layer in self.layers), self._no_inputs(batch))

    def _no_inputs(self, batch: int) -> Tensor:
        return self.input_proj.weight.new_zeros(batch, max(self.linear_skip - 1, 0), self.input_proj.in_features)

    def forward(
        self, x: Float[Tensor, "b t f"], state: ForecasterState | None = None, *, last_only: bool = False
    ) -> tuple[Float[Tensor, "b s horizon_m"], ForecasterState]:
        """Predictions after all steps (s = t), or after the last one (s = 1), and the state to go on from.

        With last_only whatever only earlier outputs need is not computed.
        """
        # No state, rather than the initial one: a layer that knows it begins with nothing does less.
        before = [None] * self.n_layers if state is None else state.layers
        history = self._no_inputs(x.shape[0]) if state is None else state.inputs
        stream = self.input_proj(x)  # (b t d)
        states = []
        recompute = self.checkpoint_blocks and self.training and torch.is_grad_enabled()
        block = partial(checkpoint, self._block, use_reentrant=False) if recompute else self._block
        for i, layer in enumerate(self.layers):
            last = last_only and i == self.n_layers - 1
            stream, layer_state = block(i, layer, stream, before[i], last)  # (b s d)
            states.append(layer_state)
        y, inputs = self._head(stream, x, history)
        return y, ForecasterState(tuple(states), inputs)

    def step(self, x_t: Float[Tensor, "b f"], state: ForecasterState) -> tuple[Float[Tensor, "b horizon_m"], ForecasterState]:
        """The prediction after one more time step, and the next state."""
        stream = self.input_proj(x_t)  # (b d)
        states = []
        for i, layer in enumerate(self.layers):
            y_t, layer_state = layer.step(self._norm(i, stream), state.layers[i])  # (b d)
            states.append(layer_state)
            stream = self._block_end(i, stream, y_t)
        y, inputs = self._head(stream[:, None], x_t[:, None], state.inputs)
        return y[:, 0], ForecasterState(tuple(states), inputs)

    def _block(self, i: int, layer: Layer, stream: Tensor, state: Any, last_only: bool) -> tuple[Tensor, Any]:
        y, state = layer(self._norm(i, stream), state, last_only=last_only)  # (b s d)
        return self._block_end(i, stream[:, -1:] if last_only else stream, y), state

    def _norm(self, i: int, stream: Tensor) -> Tensor:
        if self.norm == "none":
            return stream
        norm = getattr(self, f"norm_{i}")
        # Under mixed precision a projection leaves its output narrower than the norm's weight.
        return cast(Tensor, norm(stream.to(norm.weight.dtype)))

    def _block_end(self, i: int, stream: Tensor, y: Tensor) -> Tensor:
        """What follows a layer: activation, gate, dropout and the residual sum, on any leading axes."""
        if self.activation is not None:
            y = self.activation(y)
        if self.glu:
            y = F.glu(getattr(self, f"glu_{i}")(y), dim=-1)
        if self.dropout:
            y = F.dropout(y, self.dropout, self.training)
        return stream + y if self.residual else y

    def _head(self, stream: Tensor, x: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions for the last steps, as many as the stream has, and the inputs that the next call needs."""
        s = stream.shape[1]
        y = self.output_proj(stream)  # (b s horizon*m)
        if self.linear_skip:
            past = torch.cat([history, x], dim=1)  # (b k-1+t f)
            windows = past[:, past.shape[1] - (self.linear_skip - 1 + s) :].unfold(1, self.linear_skip, 1)  # (b s f k)
            y = y + self.skip_proj(windows.flatten(2))
            # A copy: a view would keep all inputs of this call alive as long as the state.
            history = past[:, past.shape[1] - (self.linear_skip - 1) :].clone()
        if self.anchor_inputs is not None:
            y = y + x[:, -s:].index_select(2, cast(Tensor, self.anchor_columns))
        return y, history


def resolve_anchor(anchor: str, target_inputs: tuple[int, ...] | None, targets_are_levels: bool) -> tuple[int, ...] | None:
    """The input columns to anchor on, or None: what `model.anchor` means for these data.

    A return has no last value worth adding, and a target that is no input has none at all: auto means none there, and
    an explicit last is refused.
    """
    one_of("model.anchor", anchor, ANCHORS)
    if anchor == "none":
        return None
    if target_inputs is not None and targets_are_levels:
        return tuple(target_inputs)
    if anchor == "last":
        reason = "the targets are changes, not levels" if target_inputs is not None else "not every target is an input"
        raise ValueError(f"model.anchor=last is impossible here, {reason}: use model.anchor=auto or none")
    return None


def _check_outputs(n_outputs: int, horizon: int, n_features: int, anchor_inputs: tuple[int, ...] | None) -> None:
    if n_outputs % horizon:
        raise ValueError(f"n_outputs must be horizon * n_targets, got {n_outputs} outputs at data.horizon={horizon}")
    if anchor_inputs is None:
        return
    if len(anchor_inputs) * horizon != n_outputs:
        raise ValueError(
            f"n_outputs must be horizon * n_targets, got {n_outputs} outputs at data.horizon={horizon} "
            f"and {len(anchor_inputs)} anchored targets"
        )
    if not all(0 <= column < n_features for column in anchor_inputs):
        raise ValueError(f"the anchored input columns must lie in 0..{n_features - 1}, got {list(anchor_inputs)}")
