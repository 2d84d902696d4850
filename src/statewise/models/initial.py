"""The law of a layer's initial values: what must be true of it when it has just been made, whatever the seed.

State-space layers begin with rates and steps that were chosen: a generic initialisation over them leaves a layer that runs,
trains and remembers nothing of use. The law stands beside the initialisation, in the layer, and can be asked for.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn


class Law(NamedTuple):
    """`quantity`, made of one parameter (its name in the layer), lies between two bounds, up to rounding."""

    parameter: str
    quantity: str
    values: Tensor
    low: Tensor | float
    high: Tensor | float


def forget_when_loaded(layer: nn.Module) -> None:
    """Loaded values have a history: from then on `layer.has_history` is true, and its law is silent."""
    layer.has_history = False  # type: ignore[assignment]
    layer.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]


def _loaded(layer: nn.Module, keys: Any) -> None:
    layer.has_history = True  # type: ignore[assignment]
