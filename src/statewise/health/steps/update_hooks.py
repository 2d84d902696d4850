"""When an optimizer's update begins and ends: once each, however its class is built."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class UpdateHooks:
    """Calls `before(optimizer, closure)` and `after(optimizer)` around every real step of the given optimizers.

    A step that calls its parent class's step fires torch's hooks twice; an optimizer that wraps another over the same
    tensors (sharpness-aware minimisation, look-ahead) may step through that one, and clear the gradients afterwards. Both
    are one update of the optimizer that the run knows; it ends with the wrapped one's step, where there is one. `before`
    comes ahead of the closure, if any: gradients may not be there yet. A step that a GradScaler skips fires nothing.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        before: Callable[[Optimizer, bool], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        self._before, self._after = before, after
        self._depth: Counter[int] = Counter()
        self._ended: set[int] = set()
        self._handles: list[RemovableHandle] = []
        for known in optimizers:
            for optimizer in (known, *_wrapped(known)):
                self._handles.append(optimizer.register_step_pre_hook(partial(self._enter, known)))
                handle = optimizer.register_step_post_hook(partial(self._leave, known))
                # First among the post hooks: what a projection writes afterwards is not the optimizer's update.
                optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
                self._handles.append(handle)

    def reset(self) -> None:
        """No step is under way: one that ended in an exception never leaves."""
        self._depth.clear()
        self._ended.clear()

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, known: Optimizer, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth[id(known)] += 1
        if self._depth[id(known)] == 1:
            # torch hands the optimizer itself over as the first argument.
            rest = args[1:] if args and args[0] is optimizer else args
            self._before(known, any(callable(value) for value in (*rest[:1], kwargs.get("closure"))))

    def _leave(self, known: Optimizer, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = id(known)
        self._depth[key] -= 1
        over = self._depth[key] <= 0
        if (over or optimizer is not known) and key not in self._ended:
            self._ended.add(key)
            self._after(known)
        if over:
            self._depth[key] = 0
            self._ended.discard(key)


def _wrapped(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Optimizers that it keeps as attributes and that hold the same tensors."""
    mine = _held(optimizer)
    for value in vars(optimizer).values():
        if isinstance(value, Optimizer) and value is not optimizer and _held(value) == mine:
            yield value


def _held(optimizer: Optimizer) -> set[int]:
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
