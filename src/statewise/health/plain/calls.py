"""The calls of torch that make up a training loop, heard where no framework tells: backward passes, clipping, loss scaling.

While somebody listens, `torch.autograd.backward` and `grad`, the clipping functions and `GradScaler.step` are replaced by
functions that tell and then do the same; the last one to leave puts the originals back.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils.module_tracker import ModuleTracker

Call = Callable[..., Any]


class Listener:
    """Hears of the calls that are made in the thread in which it began to listen; does nothing about them."""

    def before_backward(self, tensors: tuple[Any, ...], inputs: tuple[Any, ...] | None) -> None:
        """Something is differentiated: with respect to all leaves, or to `inputs` where autograd.grad is asked."""

    def after_backward(self, inputs: tuple[Any, ...] | None) -> None:
        """It was."""

    def before_clip(self, parameters: list[Tensor]) -> None:
        """The gradients of these are about to be clipped."""

    def before_scaled_step(self, optimizer: Optimizer) -> None:
        """A GradScaler is about to step, or to skip."""

    def after_scaled_step(self, optimizer: Optimizer) -> None:
        """It did."""


_listening: list[tuple[int, Listener]] = []
_replaced: list[tuple[Any, str, Call, Call]] = []
_lock = threading.RLock()
_autograd = ModuleTracker()
_own = threading.local()


def listen(listener: Listener) -> None:
    """Tell it of every such call of this thread from now on."""
    with _lock:
        if not _listening:
            _replace_all()
        _listening.append((threading.get_ident(), listener))


def leave(listener: Listener) -> None:
    """Tell it no more; harmless where it does not listen."""
    with _lock:
        _listening[:] = [(thread, other) for thread, other in _listening if other is not listener]
        if not _listening:
            _restore_all()


def _here() -> list[Listener]:
    """Who hears of this call. Nobody, where a call is part of another one (a checkpoint within a backward pass)."""
    if _autograd.is_bw or getattr(_own, "inside", False):
        return []
    thread = threading.get_ident()
    return [listener for own, listener in _listening if own == thread]


def _replace_all() -> None:
    _replace(torch.autograd, "backward", _backward)
    _replace(torch.autograd, "grad", _grad)
    # What clip_grad_norm_ calls once it knows the norm: heard however clip_grad_norm_ was imported.
    if hasattr(clip_grad, "_clip_grads_with_norm_"):
        _replace(clip_grad, "_clip_grads_with_norm_", _clip)
    for owner in (clip_grad, torch.nn.utils):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            _replace(owner, name, _clip)
    _replace(torch.amp.GradScaler, "step", _scaled_step)


def _replace(owner: Any, name: str, telling: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        listeners = _here()
        return telling(listeners, original, *args, **kwargs) if listeners else original(*args, **kwargs)

    setattr(owner, name, replacement)
    _replaced.append((owner, name, replacement, original))


def _restore_all() -> None:
    for owner, name, replacement, original in reversed(_replaced):
        # Whoever replaced it once more keeps what he made: ours then tells nobody.
        if vars(owner).get(name) is replacement:
            setattr(owner, name, original)
    _replaced.clear()


def _alone(original: Call, *args: Any, **kwargs: Any) -> Any:
    """Call it, and hear nothing of the calls that it makes."""
    _own.inside = True
    try:
        return original(*args, **kwargs)
    finally:
        _own.inside = False


def _backward(listeners: list[Listener], original: Call, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = _tuple(tensors)
    for listener in listeners:
        listener.before_backward(tensors, None)
    result = _alone(original, tensors, *args, **kwargs)
    for listener in listeners:
        listener.after_backward(None)
    return result


def _grad(listeners: list[Listener], original: Call, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    sources = inputs.values() if isinstance(inputs, dict) else inputs
    outputs, targets = _tuple(outputs), _tuple(sources)
    for listener in listeners:
        listener.before_backward(outputs, targets)
    result = _alone(original, outputs, inputs if isinstance(inputs, dict) else targets, *args, **kwargs)
    for listener in listeners:
        listener.after_backward(targets)
    return result


def _clip(listeners: list[Listener], original: Call, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    parameters = list(_tuple(parameters))
    for listener in listeners:
        listener.before_clip(parameters)
    return _alone(original, parameters, *args, **kwargs)


def _scaled_step(
    listeners: list[Listener], original: Call, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any
) -> Any:
    if not scaler.is_enabled():
        return original(scaler, optimizer, *args, **kwargs)
    for listener in listeners:
        listener.before_scaled_step(optimizer)
    result = original(scaler, optimizer, *args, **kwargs)
    for listener in listeners:
        listener.after_scaled_step(optimizer)
    return result


def _tuple(values: Any) -> tuple[Any, ...]:
    if isinstance(values, (Tensor, GradientEdge)) or not isinstance(values, Iterable):
        return (values,)
    return tuple(values)
