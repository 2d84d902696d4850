"""Whether training batches repeat one another: in the loader, or in a step that goes on with an old one."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal

# Batches in a row that must be equal, and groups of equal batches that must follow one another.
_RUN, _GROUPS = 4, 2
# Elements of a tensor that enter its checksum, and tensors of a batch that do.
_SAMPLE, _LEAVES = 1024, 4
# How many batches are summed up whole once two in a row looked equal.
_CLOSER = 8
# Batches whose checksums are remembered: a step may go on with one of them.
_REMEMBERED = 64

# One number for each tensor: equal where the tensors are, as good as never elsewhere.
Sums = tuple[float, ...]


@dataclass(frozen=True)
class Repetition(Signal):
    """Consecutive batches of one epoch, compared by their content; all zero where nothing repeats.

    run: as many in a row are equal. groups: so many groups of `workers` equal batches followed one another, each other than
    the one before. stale: the module was given one and the same earlier batch in so many steps, while new ones came.
    """

    waiting: ClassVar[str] = "fewer than 4 batches of one epoch were seen"

    run: int = 0
    groups: int = 0
    workers: int = 0
    stale: int = 0


class BatchWatch(Observer):
    """A checksum of every batch, and of what the module is given; compared on the host, as numbers.

    A batch whose rows are all equal says nothing: some loops need no data.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ramps: dict[tuple[torch.device, int], Tensor] = {}
        # By identity: metrics change their hash as they count.
        self._handles: dict[int, RemovableHandle] = {}
        self._entries: set[int] = set()
        self._given: list[Tensor] = []
        self._used: list[Tensor] = []
        self._fresh = False
        self._closer = 0
        self._batch = 0
        self._told = False
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._seen: deque[Sums] = deque(maxlen=_REMEMBERED)
        self._interrupt()

    def _interrupt(self) -> None:
        """The batch before this one was not heard: it cannot be compared with."""
        self._last: Sums = ()
        self._last_whole: Sums = ()
        self._run = 1
        self._confirmed = False
        self._groups: list[int] = []
        self._stale, self._stale_input = 0, math.nan

    def start(self, run: Run) -> Iterator[Signal]:
        """Listen to what the module's own children are given; not where anything is compiled."""
        self._begin_epoch()
        if any(isinstance(optimizer, LBFGS) for optimizer in run.optimizers):
            self.unable[Repetition] = "L-BFGS needs the same batch again and again"
        elif run.setting.overfit:
            self.unable[Repetition] = "the same batches are meant to repeat (overfit_batches)"
        elif not any(_compiled(part) for part in run.module.modules()):
            children = [part for part in run.module.children() if not isinstance(part, torch.jit.ScriptModule)]
            self._handles = {id(part): part.register_forward_pre_hook(self._listen, with_kwargs=True) for part in children}
        return iter(())

    def begin_batch(self, run: Run, batch: Any) -> Iterator[Signal]:
        """Keep hold of it until its step has shown what it uses."""
        self._given, self._used, self._fresh = [], [], False
        if Repetition in self.unable:
            return iter(())
        if run.batch != self._batch + 1:
            self._interrupt()
        self._batch = run.batch
        if run.setting.overfit or run.setting.batches_per_epoch == 1:
            self.unable[Repetition] = "an epoch is one batch, or the same batches are meant to repeat"
            return iter(())
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
        self._given = [tensor for tensor in tensors if tensor.ndim and tensor.numel() > 1][:_LEAVES]
        if not self._given:
            self.unable[Repetition] = "a batch holds no tensors that could be compared"
        elif run.batch == 2:
            # From now on only where data enter: other children may be called a hundred times a step.
            for key in [key for key in self._handles if key not in self._entries]:
                self._handles.pop(key).remove()
        return iter(())

    def _listen(self, part: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        # Traced, this line is all that is left of the hook.
        if torch.compiler.is_compiling() or self._fresh or not self._given or len(self._used) > 1:
            return
        for value in (*inputs, *named.values()):
            if isinstance(value, Tensor) and value.numel() > 1 and not value.requires_grad and value.layout is torch.strided:
                self._entries.add(id(part))
                self._fresh = self._fresh or any(value.data_ptr() == given.data_ptr() for given in self._given)
                self._used.append(value)
                return

    def backward(self, run: Run, loss: Tensor) -> Iterator[Signal]:
        """The forward pass is over."""
        yield from self._look(run)

    def before_update(self, run: Run, number: int) -> Iterator[Signal]:
        """The same, where nobody announces a backward pass."""
        yield from self._look(run)

    def end_batch(self, run: Run) -> Iterator[Signal]:
        """The same, where no step was made."""
        yield from self._look(run)

    def end_epoch(self, run: Run) -> Iterator[Signal]:
        """A new epoch may begin with what the last one ended with."""
        self._begin_epoch()
        return iter(())

    def _look(self, run: Run) -> Iterator[Signal]:
        given, used, self._given, self._used = self._given, [] if self._fresh else self._used, [], []
        if not given:
            return
        closer, self._closer = self._closer > 0, max(self._closer - 1, 0)
        complete = all(tensor.numel() <= _SAMPLE for tensor in given)
        whole = given if closer and not complete else []
        note = partial(self._judge, run, complete=complete, workers=run.setting.workers)
        if all(tensor.device.type == "cpu" for tensor in (*given, *used)):
            sums, old = tuple(map(_digest, given)), tuple(map(_digest, used))
            yield from note(sums, old, tuple(_digest(tensor, tensor.numel()) for tensor in whole), lambda: _varied(given))
            return
        with torch.no_grad():
            values = [self._sum(tensor, _SAMPLE) for tensor in (*given, *used)]
            values += [self._sum(tensor, tensor.numel()) for tensor in whole]
            if closer:
                values.append(torch.stack([_rows_differ(tensor) for tensor in given]).any().to(values[0].dtype))
            numbers = torch.stack([value.to(given[0].device) for value in values])
        first, last = len(given), len(given) + len(used)

        def judge(n: list[float]) -> Iterator[Signal]:
            end = last + len(whole)
            varied = bool(n[end]) if closer else None
            return note(tuple(n[:first]), tuple(n[first:last]), tuple(n[last:end]), lambda: varied)

        run.readings.ask(numbers, judge)

    def _sum(self, tensor: Tensor, most: int) -> Tensor:
        flat = torch.view_as_real(tensor.detach()).reshape(-1) if tensor.is_complex() else tensor.detach().reshape(-1)
        wide = torch.float32 if tensor.device.type == "mps" else torch.float64
        numbers = _thinned(flat, most).to(wide)
        key = numbers.device, numbers.numel()
        if key not in self._ramps:
            if len(self._ramps) > 4 * _LEAVES:
                self._ramps.clear()
            # No two weights are the same: the sum changes where elements change places.
            self._ramps[key] = torch.frac(torch.arange(1, key[1] + 1, dtype=wide, device=key[0]) * math.sqrt(2)) + 0.5
        return numbers @ self._ramps[key]

    def _judge(
        self, run: Run, sums: Sums, used: Sums, whole: Sums, varied: Callable[[], bool | None], *, complete: bool, workers: int
    ) -> Iterator[Signal]:
        equal = sums == self._last
        several = varied() if equal else True
        if several is False:
            self._last, self._last_whole, self._run, self._groups = (), (), 1, []
            return
        # A sample can be equal by chance (a margin of zeros): whole batches must have been seen to be equal.
        seen = several is True and (complete or (bool(whole) and whole == self._last_whole))
        self._confirmed = equal and (self._confirmed or seen)
        if equal:
            self._closer = _CLOSER
            self._run += 1
            if not self._told:
                run.listen = max(run.listen, _GROUPS * max(workers, _RUN))
        else:
            self._groups = [*self._groups, self._run][-_GROUPS:]
            self._run = 1
        self._last, self._last_whole = sums, whole
        for repetition in (*self._in_the_loader(workers), *self._in_the_step(sums, used, equal)):
            # What was told is not followed up again, or a loop that means it would be heard for ever.
            self._told |= repetition != Repetition()
            yield repetition

    def _in_the_loader(self, workers: int) -> Iterator[Repetition]:
        if workers > 1 and self._run <= workers:
            before = self._groups[1 - _GROUPS :]
            if self._confirmed and self._run == workers and before == [workers] * (_GROUPS - 1):
                yield Repetition(groups=_GROUPS, workers=workers)
        elif self._confirmed and self._run >= _RUN:
            yield Repetition(run=self._run)
        elif self._run == 1 and len(self._seen) >= _RUN - 1:
            yield Repetition()

    def _in_the_step(self, sums: Sums, used: Sums, equal: bool) -> Iterator[Repetition]:
        """Given the very tensor that an earlier batch held, and none of this one."""
        old = used[0] if used and not set(used) & set(sums) and any(used[0] in batch for batch in self._seen) else math.nan
        self._stale = self._stale + 1 if old == self._stale_input else 0 if math.isnan(old) else 1
        self._stale_input = old
        if sums not in self._seen:
            self._seen.append(sums)
        if self._stale >= _RUN - 1 and not equal:
            yield Repetition(stale=self._stale + 1)

    def close(self) -> None:
        """Remove hooks, let go of tensors."""
        for handle in self._handles.values():
            handle.remove()
        self._handles, self._entries, self._ramps = {}, set(), {}
        self._given, self._used = [], []


def _compiled(part: nn.Module) -> bool:
    return getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule"


def _thinned(flat: Tensor, most: int) -> Tensor:
    # An odd distance, so that in a table not only one column is looked at.
    return flat[:: (flat.numel() // most) | 1] if flat.numel() > most else flat


def _digest(tensor: Tensor, most: int = _SAMPLE) -> float:
    """Of a tensor on the CPU: its bytes, which a NaN in it does not make different from themselves."""
    plain = tensor.detach()
    flat = plain.reshape(-1) if plain.is_contiguous() else plain[:: max(len(plain) // 32, 1)].reshape(-1)
    few = _thinned(flat, most)
    if few.dtype is torch.bfloat16 or few.is_conj() or few.is_neg():
        few = few.resolve_conj().resolve_neg().contiguous().view(torch.uint8)
    # Strides are left to numpy, whose calls are the cheaper ones.
    return float(hash(few.numpy().tobytes()))


def _varied(tensors: list[Tensor]) -> bool:
    return any(bool(_rows_differ(tensor)) for tensor in tensors)


def _rows_differ(tensor: Tensor) -> Tensor:
    """Whether rows differ; of a single row, whether its elements do."""
    rows = tensor.detach().reshape(len(tensor), -1) if len(tensor) > 1 else tensor.detach().reshape(-1, 1)
    rows = rows[:: max(len(rows) // 16, 1), :: max(rows.shape[1] // 64, 1)]
    return (rows[1:] != rows[:1]).any()
