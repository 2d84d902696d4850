"""Functions that a copied module holds, made to refer to the copy."""

import copy
import types
from typing import Any

from torch import Tensor, nn


def rebind_functions(twin: nn.Module, memo: dict[int, Any]) -> None:
    """deepcopy leaves functions as they are: those held as attributes or hooks would still close over the original."""
    for part in twin.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, (types.FunctionType, types.MethodType)):
                vars(part)[name] = _translated(value, memo)
            elif name.endswith("_hooks") and isinstance(value, dict):
                for key, hook in list(value.items()):
                    value[key] = _translated(hook, memo)


def _translated(value: Any, memo: dict[int, Any]) -> Any:
    """The copy's counterpart of what a function refers to."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, _translated(value.__self__, memo))
    # What a function remembers between its calls is a state of the module like any other.
    if isinstance(value, (Tensor, list, dict, set)):
        return copy.deepcopy(value, memo)
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return value
    # Known before its cells are filled: functions may refer to one another.
    cells = tuple(types.CellType() for _ in value.__closure__)
    twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    twin.__kwdefaults__ = value.__kwdefaults__
    memo[id(value)] = twin
    for old, new in zip(value.__closure__, cells, strict=True):
        try:
            new.cell_contents = _translated(old.cell_contents, memo)
        except ValueError:  # a cell that is not filled yet
            continue
    return twin
