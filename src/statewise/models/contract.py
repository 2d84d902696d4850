"""What a layer of ours promises training health: a plain dict, because models know nothing of health."""

from torch import nn


def layer_contract(layer: nn.Module, *exempt: str) -> dict[str, tuple[str, ...]]:
    """All parameters train and none is a constant; the layer is causal; `exempt` gets no weight decay where it exists.

    Names are relative to the layer, "" is the layer itself.
    """
    names = tuple(name for name, _ in layer.named_parameters())
    kept = tuple(name for name in exempt if name in names)
    return {"trainable": names, "constants": (), "causal": ("",), "no_weight_decay": kept}
