"""Which parameter of a module a leaf of the graph is.

Nearly always itself. Where parameters are sharded over processes a forward pass uses whole ones, which torch's fully_shard
keeps beside the parts: those have the gradients and are what the optimizer holds. The whole ones stand in the module while
it runs, and after a validation pass perhaps until the next one.
"""

from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from statewise.parallel.shards import sharded

_PARTS: Any = WeakIdKeyDictionary()


def registered(thing: Any) -> Any:
    """The parameter that a tensor stands for; anything else is itself."""
    return _PARTS.get(thing, thing) if len(_PARTS) and isinstance(thing, Tensor) else thing


def in_parts(module: nn.Module) -> bool:
    """Whether any of its parameters is sharded, wherever its whole stands at the moment."""
    note_whole_parameters(module)
    return any(sharded(registered(parameter)) for parameter in module.parameters())


def note_whole_parameters(module: nn.Module) -> None:
    """Remember whose whole each whole parameter is; they exist from the first forward pass on."""
    for part in module.modules():
        tell: Any = getattr(part, "_get_fsdp_state", None)
        for group in _groups(tell() if callable(tell) else None):
            for held in group.fsdp_params:
                whole = getattr(held, "_unsharded_param", None)
                if whole is not None:
                    _PARTS[whole] = held.sharded_param


def _groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    one = getattr(state, "_fsdp_param_group", None) if several is None else None
    return list(several or ()) + ([] if one is None else [one])
