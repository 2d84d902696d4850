"""The forward passes with which the batches of a plain loop begin."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.module_tracker import ModuleTracker

# Batches for which all modules are listened to, to find those that a batch begins with.
_SEARCHES = 4


class ForwardPasses:
    """Calls `begins(part, args, kwargs)` ahead of forward passes under autograd; it says whether a batch began with this one.

    All modules are heard for a batch. Later only the outermost ones, and those that a batch did begin with: a hook on every
    module would cost a share of a fast step. What is compiled as one piece is not heard at all.
    """

    def __init__(self, model: nn.Module, begins: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], bool]) -> None:
        self._model, self._begins = model, begins
        self._autograd = ModuleTracker()
        self._ears: dict[int, tuple[nn.Module, RemovableHandle]] = {}
        self._openers = {id(part) for part in _outermost(model)}
        self._searches = _SEARCHES
        self.search()

    def search(self) -> None:
        """Listen to all modules, a few times at most."""
        if self._searches > 0:
            self._searches -= 1
            for part in self._model.modules():
                if id(part) not in self._ears and not isinstance(part, torch.jit.ScriptModule):
                    self._ears[id(part)] = (part, part.register_forward_pre_hook(self._hear, with_kwargs=True))

    def narrow(self) -> None:
        """Listen only to modules that a batch may begin with."""
        for key in [key for key in self._ears if key not in self._openers]:
            self._ears.pop(key)[1].remove()

    def remove(self) -> None:
        """Take all hooks off."""
        for _, ear in self._ears.values():
            ear.remove()
        self._ears.clear()

    def _hear(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # A hook that was removed within the call is still made, without the keywords.
        if torch.compiler.is_compiling() or kwargs is None or not torch.is_grad_enabled() or self._autograd.is_bw:
            return
        hooks, before = part._forward_pre_hooks, set(part._forward_pre_hooks)
        if not self._begins(part, args, kwargs):
            return
        self._openers.add(id(part))
        # Hooks that were added just now would miss this very call.
        for key in [key for key in hooks if key not in before]:
            hook: Any = hooks[key]
            hook(part, args, kwargs) if key in part._forward_pre_hooks_with_kwargs else hook(part, args)
        # Ours stay the last: they may remove hooks, and torch calls removed ones that are still to come.
        for other, ear in self._ears.values():
            other._forward_pre_hooks.move_to_end(ear.id)  # type: ignore[attr-defined]


def _outermost(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that can be called."""
    if isinstance(model, (nn.ModuleList, nn.ModuleDict)):
        for part in model.children():
            yield from _outermost(part)
    else:
        yield model
