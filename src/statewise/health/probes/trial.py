"""Copies of a module, and its step run on them as often as probes ask."""

import copy
import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from statewise.health.graph.flow import is_compiled
from statewise.health.probes.randomness import RandomState, reseed, undisturbed
from statewise.health.probes.rebinding import rebind_functions
from statewise.health.probes.rows import fresh, leaves
from statewise.health.probes.stage import CannotRehearse, Stage, StopStep
from statewise.health.probes.step import listen_to_metrics, loss_in
from statewise.health.probes.structure import MACHINERY, attribute_leaves
from statewise.health.probes.take import Call, Recorder, Take
from statewise.health.probes.watcher import Watcher

_LARGEST = 2**30


class Twin:
    """A copy of the module with what the stage attaches to it."""

    def __init__(self, module: nn.Module, stage: Stage) -> None:
        self.memo: dict[int, Any] = {id(thing): thing for thing in stage.shared}
        # Hooks of training health itself watch the real run: the copy must not even copy what they belong to.
        ours = [hook for part in module.modules() for hook in _hooks_of_health(part)]
        self.memo |= {id(hook): hook for hook in ours}
        # What a module keeps from its last step may hang in a graph, which no copy can.
        self.memo |= {id(kept): kept.detach().clone() for kept in _computed(module)}
        originals = list(module.parameters())
        # A module has a dozen tables of hooks and the like, most of them empty, and deepcopy is slow to find that out.
        for part in module.modules():
            for table in vars(part).values():
                if type(table) is OrderedDict and not table:
                    self.memo.setdefault(id(table), OrderedDict())
        self.module = copy.deepcopy(module, self.memo)
        for part in self.module.modules():
            for name, value in vars(part).items():
                if name.endswith("_hooks") and isinstance(value, dict):
                    for key in [key for key, hook in value.items() if any(hook is other for other in ours)]:
                        del value[key]
        rebind_functions(self.module, self.memo)
        self.logged: dict[str, Any] = {}
        stage.prepare(self.module, self.logged)
        self.metrics = listen_to_metrics(self.module)
        # Nothing writes into the module itself while its copies are tried: no need to keep a second copy of the values.
        self._initial = [(copied, real.detach()) for copied, real in zip(self.module.parameters(), originals, strict=True)]
        things = [*self.module.modules(), *(thing for thing in self.memo.values() if isinstance(thing, nn.Module))]
        self._modes = [(thing, thing.training) for thing in things]
        self._recorder: Recorder | None = None
        # Whether each run begins with the parameters of the first: for steps that write into them.
        self.restoring = False

    @classmethod
    def of(cls, module: nn.Module) -> "Twin":
        """A module of a copy, as a copy of its own."""
        twin = cls.__new__(cls)
        twin.module, twin.memo, twin.logged, twin.metrics = module, {}, {}, {}
        twin.restoring, twin._initial, twin._modes, twin._recorder = False, [], [], None
        return twin

    def evaluate(self) -> None:
        """Evaluation mode, also of modules that hide from the tree: that they hide is another finding."""
        for thing, _ in self._modes:
            thing.training = False

    def train(self) -> None:
        """The modes that the module had."""
        for thing, mode in self._modes:
            thing.training = mode

    def recorder(self) -> Recorder:
        """What listens to its modules, from the first time it is asked for."""
        if self._recorder is None:
            self._recorder = Recorder(self.module)
        return self._recorder

    def values(self) -> list[tuple[Tensor, Tensor]]:
        """The parameters and what they are now."""
        return [(parameter, parameter.detach().clone()) for parameter in self.module.parameters()]

    def moved(self) -> bool:
        """Whether a step wrote into parameters."""
        return any(not torch.equal(parameter, value) for parameter, value in self._initial)

    @torch.no_grad()
    def assign(self, values: list[tuple[Tensor, Tensor]] | None = None) -> None:
        """Put the parameters back to what they were at some time, or at the beginning."""
        for parameter, value in values if values is not None else self._initial:
            parameter.copy_(value)


class Trial:
    """One step of a module with one batch. Within `with trial:` nothing that the real run draws from is disturbed.

    Args:
        run: run(copy, batch) does the step and returns what it returns; None: call the copy with batch = (args, kwargs).

    Raises:
        CannotRehearse: the module is too large, or sharded.
    """

    def __init__(
        self,
        module: nn.Module,
        batch: Any,
        stage: Stage,
        run: Callable[[nn.Module, Any], Any] | None = None,
        held: Iterable[Tensor] = (),
    ) -> None:
        everything = [*module.parameters(), *module.buffers(), *held]
        size = sum(tensor.numel() * tensor.element_size() for tensor in everything if not _lazy(tensor))
        if size > _LARGEST:
            raise CannotRehearse(f"the module holds {size / 2**30:.1f} GiB, too much to copy")
        if any(type(tensor).__name__ == "DTensor" for tensor in everything):
            raise CannotRehearse("the parameters are sharded over processes")
        if any(_lazy(tensor) for tensor in everything):
            raise CannotRehearse("lazy parameters get their shapes at the first batch")
        self.module, self.batch, self.stage = module, batch, stage
        self._run = run or _call

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Around everything that is tried."""
        modes = (torch.inference_mode(False), torch.enable_grad(), _uncollected())
        with modes[0], modes[1], modes[2], undisturbed(self.module) as state, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._state: RandomState = state
            yield

    def rewind(self) -> None:
        """What is drawn next is what the step drew first."""
        self._state.set()

    def twin(self) -> Twin:
        """A new copy."""
        return Twin(self.module, self.stage)

    def of(self, call: Call) -> "Trial":
        """One call of the step, as a step of its own."""
        part = copy.copy(self)
        part.batch, part._run = (call.args, call.kwargs), _call
        return part

    def play(self, twin: Twin, batch: Any = None, *, seed: int | None = None, watch: bool = True) -> Take:
        """Run the step on a copy, from the run's own random state or from a seed. What it raises is in the take.

        watch: follow the batch through the step.
        """
        given = fresh(self.batch if batch is None else batch)
        if twin.restoring:
            twin.assign()
        twin.logged.clear()
        twin.metrics.clear()
        watcher = Watcher(leaf for _, leaf in leaves(given)) if watch else None
        recorder = twin.recorder()
        recorder.begin(watcher)
        # Else the casts of one run's weights would be in the graph of the next, where autocast stands around the loop.
        torch.clear_autocast_cache()
        take = Take(calls=recorder.calls, watcher=watcher)
        self._state.set()
        before = self._state
        if seed is not None:
            reseed(seed)
            before = RandomState(self.module)
        try:
            with self.stage.context(), _eager(self.module), watcher or nullcontext():
                result = self._run(twin.module, given)
            take.loss = loss_in(result, twin.logged, twin.metrics)
        except StopStep as stop:
            take.loss = ("the loss", stop.loss)
        except Exception as error:
            take.error, take.at = error, recorder.open[-1].name if recorder.open else None
        take.drew = before.moved()
        return take


@contextmanager
def _uncollected() -> Iterator[None]:
    """Thousands of objects are made here and soon let go: the collector would search all that the process holds for cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _call(twin: nn.Module, batch: Any) -> Any:
    args, kwargs = batch
    return twin(*args, **kwargs)


def _hooks_of_health(part: nn.Module) -> list[Any]:
    tables = [v for name, v in vars(part).items() if v.__class__ in (dict, OrderedDict) and v and name.endswith("_hooks")]
    hooks = [hook for table in tables for hook in table.values()]
    home = [str(getattr(getattr(hook, "func", hook), "__module__", "")) for hook in hooks]
    return [hook for hook, module in zip(hooks, home, strict=True) if module.startswith("statewise.health.")]


def _computed(module: nn.Module) -> list[Tensor]:
    """Tensors in attributes that are results of operations under autograd."""
    values = [v for part in module.modules() for name, v in vars(part).items() if name not in MACHINERY]
    return [
        leaf for value in values for leaf in attribute_leaves(value) if isinstance(leaf, Tensor) and leaf.grad_fn is not None
    ]


def _lazy(tensor: Tensor) -> bool:
    return isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


def _eager(module: nn.Module) -> AbstractContextManager:
    """Compiling the copy would take a minute for nothing."""
    return torch.compiler.set_stance("force_eager") if any(map(is_compiled, module.modules())) else nullcontext()
