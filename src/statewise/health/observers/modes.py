"""Which modules take part in training steps while they are in evaluation mode."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from statewise.health.observer import Observer, Run
from statewise.health.parameters import Inventory
from statewise.health.signals import Signal

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
# Layers of other people that subclass neither torch's dropout nor its norms.
_DROPS = re.compile(r"drop_?(out|path|connect|block|layer)|stochastic_?depth", re.IGNORECASE)
_BATCH_NORMS = re.compile(r"batch_?norm", re.IGNORECASE)


@dataclass(frozen=True)
class Sleeper:
    """The outermost module of a part that is in evaluation mode.

    `dropping` and `norms` are the modules below it whose mode changes what they compute (dropout, batch norm and the like).
    """

    path: str
    kind: str
    parameters: tuple[str, ...]
    frozen: bool
    dropping: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Modes(Signal):
    """A training step ran; these parts of the module took part in it in evaluation mode."""

    waiting: ClassVar[str] = "no training batch was reached"

    asleep: tuple[Sleeper, ...]


class ModeWatch(Observer):
    """Reads modes before each step, and asks by hooks, only where one is off, whether it was so while it was called.

    A step may set the modes that it wants when it begins: what counts is the mode in which a module runs.
    """

    always = frozenset({"begin_batch"})

    def __init__(self) -> None:
        super().__init__()
        self._inventory: Inventory | None = None
        self._sensitive: list[tuple[str, nn.Module]] = []
        self._norms: set[str] = set()
        self._known: frozenset[str] | None = None
        self._ran: set[str] = set()
        self._awake: set[str] = set()
        self._handles: list[RemovableHandle] = []
        self._waiting: tuple[Sleeper, ...] | None = None

    def begin_batch(self, run: Run, batch: Any) -> Iterator[Signal]:
        """Nothing is news as long as the same modules are off as before."""
        if self._inventory is not run.inventory:
            self._inventory = run.inventory
            self._sensitive = [(path, part) for path, part in run.module.named_modules() if _matters(part)]
            self._norms = {path for path, part in self._sensitive if _is_norm(part)}
        off = frozenset([path for path, part in self._sensitive if not part.training])
        if off == self._known and run.batch > 1:
            return
        # The rest of this batch is not to be missed.
        run.listen = max(run.listen, 1)
        self._known = off
        asleep = _asleep(run, off, self._norms)
        if not asleep:
            # Another batch began instead: what ran before it was an evaluation.
            self._waiting = None
            self._close_hooks()
            yield Modes(())
            return
        # Before it runs nobody knows whether it will take part, or in which mode.
        self._waiting, self._ran, self._awake = asleep, set(), set()
        self._close_hooks()
        for path, part in self._sensitive:
            if path in off:
                self._handles.append(part.register_forward_pre_hook(self._listener(path)))

    def _listener(self, path: str) -> Any:
        def listen(part: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not torch.compiler.is_compiling():
                (self._awake if part.training else self._ran).add(path)

        return listen

    def after_backward(self, run: Run) -> Iterator[Signal]:
        """The forward pass is over, and gradients say which parameters took part."""
        yield from self._tell(run)

    def before_update(self, run: Run, number: int) -> Iterator[Signal]:
        """The same, where nobody announces a backward pass."""
        yield from self._tell(run)

    def end_batch(self, run: Run) -> Iterator[Signal]:
        """The same, where no step was made."""
        yield from self._tell(run)

    def _tell(self, run: Run) -> Iterator[Signal]:
        if self._waiting is None:
            return
        self._close_hooks()
        asleep, self._waiting = self._waiting, None
        yield Modes(tuple(self._as_it_ran(run, part) for part in asleep))

    def _as_it_ran(self, run: Run, part: Sleeper) -> Sleeper:
        """Only with the layers that were called in evaluation mode."""
        inside = {*part.dropping, *part.norms}
        # A module that is never called by itself (a LightningModule whose step is `training_step`) runs all the same.
        ran = {path for path in inside if path in self._ran or path == ""}
        if not inside & (self._ran | self._awake) and _has_gradients(run, part.parameters):
            # Calls inside a compiled function are seen by nobody.
            ran = inside
        return replace(
            part,
            dropping=tuple(path for path in part.dropping if path in ran),
            norms=tuple(path for path in part.norms if path in ran),
        )

    def _close_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def close(self) -> None:
        """Remove hooks, let go of modules."""
        self._close_hooks()
        self._inventory, self._sensitive, self._waiting, self._known = None, [], None, None


def _has_gradients(run: Run, names: tuple[str, ...]) -> bool:
    parameters = dict(run.module.named_parameters(remove_duplicate=False))
    return any(name in parameters and parameters[name].grad is not None for name in names)


def _asleep(run: Run, off: frozenset[str], norms: set[str]) -> tuple[Sleeper, ...]:
    """The outermost modules in evaluation mode, each with what is below it."""
    found: list[Sleeper] = []
    # A hook of the module's own may have put a container aside: parents come before their children.
    tops: list[str] = []
    owned = {fact.path: tuple(fact.own.values()) for fact in run.inventory.modules}
    trained = {fact.name for fact in run.inventory.parameters if fact.requires_grad}
    for path, part in run.module.named_modules():
        if part.training or any(not top or path.startswith(f"{top}.") for top in tops):
            continue
        tops.append(path)
        below = path and f"{path}."
        parameters = tuple(n for p, names in owned.items() if p == path or p.startswith(below) for n in names)
        inside = [name for name in off if name == path or name.startswith(below)]
        found.append(
            Sleeper(
                path=path,
                kind=type(part).__name__,
                parameters=tuple(dict.fromkeys(parameters)),
                frozen=bool(parameters) and not trained.intersection(parameters),
                dropping=tuple(sorted(name for name in inside if name not in norms)),
                norms=tuple(sorted(name for name in inside if name in norms)),
            )
        )
    return tuple(found)


def _matters(part: nn.Module) -> bool:
    """Whether the mode changes what this module computes."""
    return not isinstance(part, torch.jit.ScriptModule) and (_is_norm(part) or _drops(part))


def _is_norm(part: nn.Module) -> bool:
    if isinstance(part, _NORMS):
        return bool(part.track_running_stats)
    return bool(_BATCH_NORMS.search(type(part).__name__)) and any("running" in name for name in part._buffers)


def _drops(part: nn.Module) -> bool:
    """A dropout, or a layer with a rate of its own (attention, recurrent layers, `self.dropout = 0.1`)."""
    rates = {name: value for name, value in vars(part).items() if isinstance(value, float) and 0 < value < 1}
    if isinstance(part, nn.modules.dropout._DropoutNd) or _DROPS.search(type(part).__name__):
        return bool(rates)
    return any("drop" in name.lower() for name in rates)
