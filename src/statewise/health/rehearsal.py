"""One step of a copy of the module, to ask what the real step cannot be asked without disturbing it.

Two questions: which tensors shape the loss although they ask for no gradient (the non-parameter gradient probe), and which
time steps of the prediction the loss looks at. The copy has its own parameters, buffers and attributes, and the random
states are put back, so that the run afterwards is the same to the bit.
"""

import copy
import inspect
import random
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from statewise.health.attributes import HiddenTensor
from statewise.health.graph import edge, walk
from statewise.health.signals import Supervision

_LARGEST = 2**30
# Most tensors asked one by one, a forward pass each, where asking all at once fails.
_ALONE = 16


class CannotRehearse(RuntimeError):
    """Why the copy's step could not be run."""


@dataclass(frozen=True)
class Rehearsal:
    """What the copy's step showed. `supervision` is None where no prediction or no loss was found, `why` says so.

    With `ask_again` another batch may show it.
    """

    shaping: tuple[HiddenTensor, ...]
    supervision: Supervision | None
    why: str
    ask_again: bool = False


@dataclass(frozen=True)
class Stage:
    """How to run a step of the copy as the framework would, without its side effects.

    prepare(copy, logged): attach stand-ins; every value the step logs goes into `logged`. shared: objects that the
    module refers to and that must not be copied. context: autocast and default dtype of a real step.
    """

    prepare: Callable[[nn.Module, dict[str, Any]], None]
    shared: Sequence[Any] = ()
    context: Callable[[], AbstractContextManager] = nullcontext


class StopStep(Exception):
    """Raised by a stand-in where the step would start to differentiate."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__("the loss is known")
        self.loss = loss


def rehearse(
    module: nn.Module,
    step: str,
    batch: Any,
    batch_idx: int,
    candidates: Mapping[int, tuple[HiddenTensor, Tensor]],
    stage: Stage,
) -> Rehearsal:
    """Run `step` ("training_step" or "validation_step") of a copy once.

    Raises:
        CannotRehearse: with the reason, whatever went wrong: the real step is the judge of errors.
    """
    tensors = [*module.parameters(), *module.buffers(), *(tensor for _, tensor in candidates.values())]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > _LARGEST:
        raise CannotRehearse(f"the module holds {size / 2**30:.1f} GiB, too much to copy")
    if any(type(tensor).__name__ == "DTensor" for tensor in tensors):
        raise CannotRehearse("the parameters are sharded over processes")
    try:
        try:
            return _attempt(module, step, batch, batch_idx, candidates, stage)[0]
        except RuntimeError:
            if not candidates:
                raise
            # Some tensors cannot ask for a gradient: what the forward pass writes into (a cache, a running average), or
            # what an operation takes as a constant (class weights). Leave them out, one by one if need be.
            plain, written = _attempt(module, step, batch, batch_idx, {}, stage, candidates)
            rest = {key: value for key, value in candidates.items() if key not in written}
            alone = [{key: value} for key, value in list(rest.items())[:_ALONE]]
            shaping = [found for asked in [rest, *alone] if (found := _shaping(module, step, batch, batch_idx, asked, stage))]
            unique = {fact.key: fact for found in shaping for fact in found}
            return Rehearsal(tuple(unique.values()), plain.supervision, plain.why, plain.ask_again)
    except Exception as error:
        raise CannotRehearse(_one_line(error)) from error


def _shaping(
    module: nn.Module,
    step: str,
    batch: Any,
    batch_idx: int,
    asked: Mapping[int, tuple[HiddenTensor, Tensor]],
    stage: Stage,
) -> tuple[HiddenTensor, ...]:
    try:
        return _attempt(module, step, batch, batch_idx, asked, stage)[0].shaping
    except RuntimeError:
        return ()


def _attempt(
    module: nn.Module,
    step: str,
    batch: Any,
    batch_idx: int,
    candidates: Mapping[int, tuple[HiddenTensor, Tensor]],
    stage: Stage,
    observed: Mapping[int, tuple[HiddenTensor, Tensor]] | None = None,
) -> tuple[Rehearsal, set[int]]:
    with torch.inference_mode(False), torch.enable_grad(), _random_states(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memo: dict[int, Any] = {id(thing): thing for thing in stage.shared}
        twin = copy.deepcopy(module, memo)
        _rebind_functions(twin, memo)
        logged: dict[str, Any] = {}
        stage.prepare(twin, logged)
        asked = {key: memo[key] for key in candidates if isinstance(memo.get(key), Tensor) and memo[key].is_leaf}
        for tensor in asked.values():
            tensor.requires_grad_(True)
        versions = {k: memo[k]._version for k in observed or {} if isinstance(memo.get(k), Tensor)}
        outputs: list[list[Tensor]] = []
        for part in twin.modules():
            if not isinstance(part, torch.jit.ScriptModule):
                part.register_forward_hook(lambda _part, _args, result: outputs.append(_floats(result)))
        metrics = _listen_to_metrics(twin)
        given = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, batch)
        with stage.context(), _eager(module):
            loss = _loss_of(twin, step, given, batch_idx, logged, metrics)
        written = {key for key, version in versions.items() if memo[key]._version != version}
        if loss is None:
            return Rehearsal((), None, f"{step} neither returns nor logs a loss that has a gradient"), written
        return _ask(step, loss, candidates, asked, outputs, given), written


def _ask(
    step: str,
    loss: tuple[str, Tensor],
    candidates: Mapping[int, tuple[HiddenTensor, Tensor]],
    asked: dict[int, Tensor],
    outputs: list[list[Tensor]],
    batch: Any,
) -> Rehearsal:
    name, value = loss
    inputs = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    floats = [leaf for leaf in inputs if leaf.is_floating_point()]
    first = (floats or inputs or [torch.zeros(1)])[0]
    edges = walk(value).edges
    # The prediction: the first output of the last call that the loss looks at (a state may come out beside it).
    seen = [o for call in reversed(outputs) for o in call if o.ndim > 0 and o.shape[0] == first.shape[0] and edge(o) in edges]
    keys = list(asked)
    wanted = [asked[key] for key in keys] + seen
    gradients = torch.autograd.grad(value, wanted, allow_unused=True) if wanted else ()
    shaping = tuple(candidates[key][0] for key, grad in zip(keys, gradients, strict=False) if grad is not None)
    looked_at = ((o, grad) for o, grad in zip(seen, gradients[len(keys) :], strict=True) if grad is not None)
    prediction, gradient = next(((o, grad) for o, grad in looked_at if bool((grad != 0).any())), (None, None))
    if prediction is None or gradient is None:
        return Rehearsal(shaping, None, f"no module of {step} gives the prediction that its loss looks at")
    if left_out := _left_out_by_masks(batch, prediction):
        why = f"a mask in the batch leaves out {left_out} of the prediction in every sample"
        return Rehearsal(shaping, None, why, ask_again=True)
    used = gradient.detach() != 0
    positions = used.any(dim=0)
    times = length = None
    if prediction.ndim >= 3:
        length = int(prediction.shape[1])
        times = int(used.transpose(0, 1).reshape(length, -1).any(dim=1).sum())
    supervision = Supervision(
        step=step,
        loss=name,
        prediction=tuple(prediction.shape[1:]),
        positions=int(positions.sum()),
        times=times,
        length=length,
        inputs=(tuple(first.shape[1:]),),
    )
    return Rehearsal(shaping, supervision, "")


def _left_out_by_masks(batch: Any, prediction: Tensor) -> str:
    """What boolean tensors of the batch exclude for all samples, if their shape fits the prediction: no choice of the step."""
    for leaf in tree_leaves(batch):
        if not isinstance(leaf, Tensor) or leaf.dtype != torch.bool or leaf.ndim < 2 or leaf.shape[0] != prediction.shape[0]:
            continue
        anywhere = leaf.any(dim=0)
        if anywhere.numel() == prediction[0].numel():
            missing, what = int((~anywhere).sum()), "values"
        elif prediction.ndim >= 3 and leaf.shape[1] == prediction.shape[1]:
            missing, what = int((~anywhere.reshape(leaf.shape[1], -1).any(dim=1)).sum()), "time steps"
        else:
            continue
        if missing:
            return f"{missing} {what}"
    return ""


def _rebind_functions(twin: nn.Module, memo: dict[int, Any]) -> None:
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


def _listen_to_metrics(twin: nn.Module) -> dict[str, Tensor]:
    """What is handed to torchmetrics objects that are called a loss: some steps log it only when the epoch ends."""
    heard: dict[str, Tensor] = {}

    def listener(name: str, update: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*args: Any, **kwargs: Any) -> Any:
            given = [leaf for leaf in _floats((args, kwargs)) if leaf.requires_grad]
            if given:
                heard[name] = given[0].sum()
            return update(*args, **kwargs)

        return listen

    for name, part in twin.named_modules():
        is_metric = any(kind.__module__.startswith("torchmetrics") for kind in type(part).__mro__)
        if is_metric and "loss" in name.lower():
            vars(part)["update"] = listener(name, part.update)
    return heard


def _loss_of(
    twin: nn.Module, step: str, batch: Any, batch_idx: int, logged: dict[str, Any], metrics: dict[str, Tensor]
) -> tuple[str, Tensor] | None:
    function = getattr(twin, step)
    given = {"batch": batch, "batch_idx": batch_idx, "dataloader_idx": 0}
    names = list(inspect.signature(function).parameters)
    try:
        # Positional, as the framework does it: people name these arguments as they like.
        result = function(*list(given.values())[: max(1, min(len(names), 3 if "dataloader_idx" in names else 2))])
    except StopStep as stop:
        return "the loss", stop.loss
    if isinstance(result, Mapping):
        result = result.get("loss")
    if isinstance(result, Tensor) and result.ndim == 0 and result.requires_grad:
        return "the returned loss", result
    for name, value in logged.items():
        if "loss" in name.lower() and isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad:
            return f"`{name}`", value
    return next(((f"the metric `{name}`", value) for name, value in metrics.items()), None)


@contextmanager
def _random_states(module: nn.Module) -> Iterator[None]:
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - other people's code draws from it
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _eager(module: nn.Module) -> AbstractContextManager:
    """Compiling the copy would take a minute for nothing."""
    compiled = any(
        getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule"
        for part in module.modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _floats(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"
