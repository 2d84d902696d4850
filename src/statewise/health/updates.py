"""What one optimizer's real steps do to its parameters: gradients, values before and after, one transfer a reading."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.ledger import GradientLedger

# Steps at which every parameter is compared before and after the update; later a rotating share and the suspects.
_FULL_STEPS = 6
_ROTATION = 20
# One turn in four is watched: a share of the parameters costs as much as all norms together.
_IDLE = 4
# How long a suspect or a share of the rotation stays watched: a verdict needs three steps running.
_KEPT = 5
# Below this share of elements changed, an update counts as swallowed (health.md, N1).
_SWALLOWED = 0.05
# A gradient this small beside the values has vanished by itself: no learning rate makes it a fault of rounding.
_VANISHED = 1e-5
# Gradients whose squares may underflow in float32.
_TINY = 1e-15
# Largest number of elements copied at once for comparisons.
_ELEMENTS = 50_000_000


@dataclass(frozen=True)
class _Entry:
    """One step's reading, still on its device, and which parameter each of its numbers belongs to."""

    lr: np.ndarray
    absent: np.ndarray
    reading: Tensor | None
    present: list[int]
    before: list[int]
    prints: bool
    compared: list[int]
    watched: list[int]


class UpdateMonitor:
    """Watches one optimizer. Call `before` once gradients are there, `after` when the update is made, `flush` to read.

    Attributes (arrays follow `names`):
        ledger: runs of zero and absent gradients.
        swallowed_run: consecutive steps in which an update that should show changed less than 5 % of the elements.
        written_back_run: consecutive steps that began with the values of the step before, although it had changed them.
        moved: the value changed in the last step although the gradient was exactly zero.
        decayed: that change was lr * weight_decay * value.
        removed: consecutive steps whose gradient was non-zero before clipping and zero at the update.
        lr_zero_run: per group, consecutive steps with lr 0.
    """

    def __init__(self, optimizer: Optimizer, names: dict[int, str]) -> None:
        self.optimizer = optimizer
        self.parameters: list[nn.Parameter] = []
        self.group_of: list[int] = []
        for index, group in enumerate(optimizer.param_groups):
            for tensor in group["params"]:
                if id(tensor) in names and tensor.requires_grad and tensor.numel() > 0:
                    self.parameters.append(tensor)
                    self.group_of.append(index)
        self.names = tuple(names[id(parameter)] for parameter in self.parameters)
        self.ledger = GradientLedger(self.names)
        count, groups = len(self.parameters), len(optimizer.param_groups)
        self.bias_before_norm: frozenset[str] = frozenset()
        self.swallowed_run = np.zeros(count, dtype=np.int64)
        self.share_changed = np.ones(count)
        self.written_back_run = np.zeros(count, dtype=np.int64)
        self.moved = np.zeros(count, dtype=bool)
        self.decayed = np.zeros(count, dtype=bool)
        self.removed = np.zeros(count, dtype=np.int64)
        self.lr_zero_run = np.zeros(groups, dtype=np.int64)
        self.lr_positive = np.zeros(groups, dtype=bool)
        self.pending: list[_Entry] = []
        self._begun = False
        self._steps = 0
        self._pre: dict[int, Tensor] = {}
        self._last_pre: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}
        self._equal: dict[int, Tensor] = {}
        self._prints: Tensor | None = None
        self._suspects: dict[int, int] = {}
        self._last_print = np.full(count, np.nan)
        self._changed = np.zeros(count, dtype=bool)
        self._roots = np.array([parameter.numel() ** 0.5 for parameter in self.parameters])
        self._uniform = len({(parameter.dtype, parameter.device) for parameter in self.parameters}) == 1
        self._peak = np.zeros(count)
        self._tiny = np.zeros(count, dtype=bool)
        self._lr_peak = np.zeros(count)

    @torch.no_grad()
    def before(self) -> None:
        """Remember the values the update starts from. Repeated calls within a step (L-BFGS) change nothing.

        The moment matters: after the backward pass, so that a forward pass that overwrites a parameter is seen too.
        """
        if self._begun or not self.parameters:
            return
        self._begun = True
        self._pre = {index: self.parameters[index].detach().clone() for index in self._choose()}
        self._equal = {i: (v == self._last_pre[i]).all() for i, v in self._pre.items() if i in self._last_pre}
        # One number per parameter and step: an equal number only raises a suspicion, which a copy then settles.
        self._prints = _stack(list(torch._foreach_norm([*self.parameters])), self._uniform)
        self._before = {}
        early = self._steps < _FULL_STEPS
        asked = range(len(self.parameters)) if early else np.flatnonzero(self.ledger.zero_run > 0).tolist()
        present = [index for index in asked if self.parameters[index].grad is not None]
        self._before = dict(zip(present, self._gradient_norms(present), strict=True))

    @torch.no_grad()
    def after(self) -> None:
        """Read gradients and new values; nothing is transferred before `flush`."""
        lr = np.array([_number(group.get("lr")) for group in self.optimizer.param_groups])
        self.lr_zero_run = np.where(lr == 0.0, self.lr_zero_run + 1, 0)
        self.lr_positive |= lr > 0.0
        present = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        absent = np.ones(len(self.parameters), dtype=bool)
        absent[present] = False
        watched = [i for i in self._pre if not absent[i] and not _gradient(self.parameters[i]).is_sparse]
        parts = self._gradient_norms(present) + list(self._before.values())
        prints = self._begun and self._prints is not None
        vectors = [_stack(parts, self._uniform)] if parts else []
        vectors += [self._prints] if prints and self._prints is not None else []
        vectors += [_stack(list(self._equal.values()), self._uniform)] if self._equal else []
        vectors += [self._compare(index) for index in watched]
        self.pending.append(
            _Entry(
                lr=lr[self.group_of] if self.group_of else np.zeros(0),
                absent=absent,
                reading=torch.cat([v.to(vectors[0].device) for v in vectors]) if vectors else None,
                present=present,
                before=list(self._before),
                prints=prints,
                compared=list(self._equal),
                watched=watched,
            )
        )
        self._last_pre = self._pre if self._begun else {}
        self._pre, self._equal, self._before, self._prints = {}, {}, {}, None
        self._begun = False
        self._steps += 1

    def skip(self) -> None:
        """The update that `before` announced was not made (a GradScaler found an infinity)."""
        self._pre, self._equal, self._before, self._prints = {}, {}, {}, None
        self._begun = False

    def flush(self) -> None:
        """Transfer what is pending, in one piece, and count it step by step."""
        entries, self.pending = self.pending, []
        readings = [entry.reading for entry in entries if entry.reading is not None]
        numbers = iter(np.array(torch.cat(readings).tolist() if readings else []))
        for entry in entries:
            self._count(entry, numbers)

    def _count(self, entry: _Entry, numbers: Any) -> None:
        count = len(self.parameters)

        def take(indices: list[int] | range) -> np.ndarray:
            column = np.full(count, np.nan)
            for index in indices:
                column[index] = next(numbers)
            return column

        size = take(entry.present) / self._roots
        unclipped = take(entry.before) / self._roots
        prints = take(range(count)) if entry.prints else np.full(count, np.nan)
        equal = take(entry.compared)
        watched = {index: [next(numbers) for _ in range(4)] for index in entry.watched}
        # A step at which nothing could move (a warm-up that starts at lr 0) says nothing about gradients behind a
        # zero-initialised layer.
        counted = bool((entry.lr > 0).any())
        if counted:
            self.ledger.record(size, entry.absent)
            self.removed = np.where((size == 0) & (unclipped > 0), self.removed + 1, 0)
        back = (equal == 1.0) & self._changed
        self.written_back_run = np.where(back, self.written_back_run + 1, 0)
        self._changed = np.zeros(count, dtype=bool)
        self._peak = np.fmax(self._peak, size)
        self._tiny |= (size > 0) & (size < _TINY)
        self._lr_peak = np.fmax(self._lr_peak, entry.lr)
        largest = float(np.nanmax(size)) if np.isfinite(size).any() else 0.0
        self.moved = np.zeros(count, dtype=bool)
        self.decayed = np.zeros(count, dtype=bool)
        for index, (asked, followed, changed, decayed) in watched.items():
            self._changed[index] = changed > 0 and asked > 0
            self.moved[index] = changed > 0 and asked == 0
            self.decayed[index] = decayed > 0
            gradient = float(np.fmax(size[index], unclipped[index]))
            scale = float(prints[index] / self._roots[index])
            if asked > 0 and self._should_show(index, gradient, largest, scale, float(entry.lr[index])):
                self.share_changed[index] = followed / asked
                swallowed = self.share_changed[index] < _SWALLOWED
                self.swallowed_run[index] = self.swallowed_run[index] + 1 if swallowed else 0
        still = (prints == self._last_print) & (size > 0) & (entry.lr > 0)
        self._last_print = prints
        for suspect in np.flatnonzero(still | (self.ledger.zero_run > 0)).tolist():
            self._suspects[suspect] = self._steps + _KEPT

    def _should_show(self, index: int, size: float, largest: float, scale: float, lr: float) -> bool:
        """Whether this step's update ought to change the values. scale: root mean square of the values.

        Not while the lr is still a small part of what it will be, not for a gradient that is rounding noise beside the
        others, beside its own past or beside the values (a fitted model), not for a bias that a batch norm cancels.
        """
        group = self.optimizer.param_groups[self.group_of[index]]
        usual = max(_number(group.get("initial_lr", 0.0)), float(self._lr_peak[index]))
        noise = min(32 * torch.finfo(self.parameters[index].dtype).eps, 0.05)
        return bool(
            lr > 0
            and lr >= 0.5 * usual
            and size >= noise * largest
            and size >= 0.01 * self._peak[index]
            and size >= _VANISHED * scale
            and self.names[index] not in self.bias_before_norm
        )

    def _choose(self) -> list[int]:
        count = len(self.parameters)
        if self._steps < _FULL_STEPS:
            chosen = set(range(count))
        else:
            self._suspects = {index: until for index, until in self._suspects.items() if until > self._steps}
            width = -(-count // _ROTATION)
            turn, idle = divmod(self._steps // _KEPT, _IDLE)
            start = turn % _ROTATION * width
            chosen = set(self._suspects) | set(range(start, min(start + width, count)) if idle == 0 else ())
        kept: list[int] = []
        elements = 0
        for index in sorted(chosen):
            elements += self.parameters[index].numel()
            if elements <= _ELEMENTS:
                kept.append(index)
        return kept

    def _gradient_norms(self, indices: list[int]) -> list[Tensor]:
        """Exactly 0 only where every element is. A 2-norm is seven times as fast as a maximum, but its squares can
        underflow: who was zero, or tiny, is measured by the maximum."""
        doubtful = set(np.flatnonzero((self.ledger.zero_run > 0) | self._tiny).tolist())
        if not doubtful.intersection(indices):
            return list(torch._foreach_norm([_dense(self.parameters[index]) for index in indices])) if indices else []
        norms: dict[int, Tensor] = {}
        for order, chosen in ((2.0, set(indices) - doubtful), (float("inf"), doubtful.intersection(indices))):
            if chosen:
                dense = [_dense(self.parameters[index]) for index in chosen]
                norms |= zip(chosen, torch._foreach_norm(dense, order), strict=True)
        return [norms[index] for index in indices]

    def _compare(self, index: int) -> Tensor:
        """(elements with a gradient, those of them that changed, whether any changed, whether by decay alone)."""
        parameter, pre = self.parameters[index].detach(), self._pre[index]
        group = self.optimizer.param_groups[self.group_of[index]]
        asked = _gradient(self.parameters[index]) != 0
        changed = parameter != pre
        decay = _number(group.get("lr")) * _number(group.get("weight_decay", 0.0))
        if decay:
            error = (parameter - pre + decay * pre).abs().max()
            decayed = (error <= 4 * torch.finfo(pre.dtype).eps * pre.abs().max()) & changed.any()
        else:
            decayed = torch.zeros((), dtype=torch.bool, device=pre.device)
        return _stack([asked.sum(), (changed & asked).sum(), changed.any(), decayed])

    def state_dict(self) -> dict[str, Any]:
        """What is usual for each parameter, as plain values."""
        return self.ledger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was usual before a restart, or before the parameter groups changed."""
        self.ledger.load_state_dict(state)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("asked for a gradient that is not there")
    return parameter.grad


def _dense(parameter: nn.Parameter) -> Tensor:
    gradient = _gradient(parameter)
    if not gradient.is_sparse:
        return gradient
    values = gradient.coalesce().values()
    return values if values.numel() else torch.zeros(1, dtype=values.dtype, device=values.device)


def _stack(scalars: list[Tensor], uniform: bool = False) -> Tensor:
    """One float64 vector (float32 on devices without float64) from 0-dim tensors; uniform: all of one type and device."""
    wide = torch.float32 if scalars[0].device.type == "mps" else torch.float64
    if uniform:
        return torch.stack(scalars).to(wide)
    return torch.stack([scalar.to(device=scalars[0].device, dtype=wide) for scalar in scalars])


def _number(value: Any) -> float:
    return float(value) if value is not None else float("nan")
