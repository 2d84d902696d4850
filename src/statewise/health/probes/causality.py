"""Does a module that is declared causal look ahead? Its input is changed from some time on; its output before must stay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from statewise.health.probes.compare import difference, tolerance
from statewise.health.probes.structure import tensors
from statewise.health.probes.take import Call, Take
from statewise.health.probes.trial import Trial, Twin
from statewise.health.signals import Signal


@dataclass(frozen=True)
class Ahead:
    """Changed inputs from time `at` on changed the outputs before: by `deviation`, from time `first` on."""

    module: str
    at: int
    first: int
    length: int
    deviation: float


@dataclass(frozen=True)
class EarlierOutputs(Signal):
    """Modules that look ahead, the innermost that are declared causal; `untested` says why others could not be asked."""

    waiting: ClassVar[str] = "no module is declared causal (health.causal, or `causal` in its health_contract())"

    tested: tuple[str, ...]
    ahead: tuple[Ahead, ...] = ()
    untested: tuple[str, ...] = ()


def look_ahead(trial: Trial, twin: Twin, whole: Take, declared: Sequence[str]) -> EarlierOutputs:
    """Ask the outermost of the declared modules, and those within it only if it looks ahead."""
    calls = [call for call in whole.calls if call.name in declared]
    tested: list[str] = []
    untested: list[str] = []
    found: list[Ahead] = []
    for outer in _outermost(calls):
        answer = _ask(trial, twin, outer, whole)
        if answer is None or isinstance(answer, str):
            (untested if answer else tested).append(answer or outer.name)
            if answer is None:
                continue
        inner = [call for call in calls if outer.enter < call.enter and call.exit < outer.exit]
        answers = [(call, _ask(trial, twin, call, whole)) for call in inner]
        guilty = [one for _, one in answers if isinstance(one, Ahead)]
        tested += [call.name for call, one in answers if not isinstance(one, str)]
        if isinstance(answer, Ahead):
            tested.append(outer.name)
            found += guilty[:1] or [answer]
        else:
            found += guilty[:1]
    return EarlierOutputs(tuple(dict.fromkeys(tested)), tuple(found), tuple(dict.fromkeys(untested)))


def _outermost(calls: Sequence[Call]) -> Iterator[Call]:
    seen: set[str] = set()
    for call in sorted(calls, key=lambda c: c.enter):
        if call.name in seen or any(o.enter < call.enter and call.exit < o.exit for o in calls):
            continue
        seen.add(call.name)
        yield call


def _ask(trial: Trial, twin: Twin, call: Call, whole: Take) -> Ahead | str | None:
    """None: causal. Text: why it cannot be asked."""
    module = twin.module.get_submodule(call.name)
    name = f"`{call.name}`" if call.name else type(module).__name__
    given = next((t for t in call.inputs if t.ndim >= (3 if t.is_floating_point() else 2)), None)
    if given is None:
        return f"{name} is given no sequence"
    axis = _time_axis(module, call, whole, given)
    length = given.shape[axis]
    if length < 2:
        return f"{name} is given a single time step"
    at = max(length // 2, 1)
    with torch.no_grad():
        before = _output(trial, module, call, given, given, axis)
        after = _output(trial, module, call, given, _changed(given, axis, at), axis)
    if before is None or after is None or before.shape != after.shape:
        return f"{name} gives no output for every time step"
    gap = difference(before.narrow(axis, 0, at), after.narrow(axis, 0, at))
    scale = float(before.abs().max() / before.narrow(axis, 0, at).abs().max().clamp_min(1e-30))
    if gap <= tolerance(before) * max(scale, 1.0):
        return None
    moved = (before != after).transpose(0, axis).reshape(length, -1).any(dim=1)
    return Ahead(call.name, at, int(moved.nonzero()[0]), length, gap)


def _time_axis(module: nn.Module, call: Call, whole: Take, given: Tensor) -> int:
    """1, or the last where the first thing that takes the input is a convolution over it: those have channels first."""
    for inner in sorted(whole.inside(call), key=lambda c: c.enter):
        part = module.get_submodule(inner.name[len(call.name) :].lstrip(".")) if inner.name.startswith(call.name) else None
        if isinstance(part, nn.Conv1d) and any(t.shape[:2] == given.shape[:2] for t in inner.inputs):
            return given.ndim - 1
    return 1


def _changed(given: Tensor, axis: int, at: int) -> Tensor:
    """Other values from `at` on, of the same kind."""
    changed = given.detach().clone()
    later = changed.narrow(axis, at, given.shape[axis] - at)
    if given.is_floating_point():
        later.copy_(given.detach().abs().max() + 1 - later)
    else:
        # Other known values: those of a neighbouring row, backwards in time.
        later.copy_(later.clone().roll(1, 0).flip(axis))
    return changed


def _output(trial: Trial, module: nn.Module, call: Call, given: Tensor, instead: Tensor, axis: int) -> Tensor | None:
    def swapped(value: Any) -> Any:
        if value is given:
            return instead.clone()
        return type(value)(swapped(part) for part in value) if type(value) in (list, tuple) else value

    kwargs = {key: swapped(value) for key, value in call.kwargs.items()}
    # Layers that compute their last output only, when asked, can be asked for all.
    if kwargs.get("last_only") is True:
        kwargs["last_only"] = False
    trial.rewind()
    with trial.stage.context():
        made = tensors(module(*(swapped(value) for value in call.args), **kwargs))
    length = given.shape[axis]
    return next((o for o in made if o.is_floating_point() and o.ndim > axis and o.shape[axis] == length), None)
