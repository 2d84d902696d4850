"""What one optimizer's real steps do to its parameters: gradients, values before and after, one transfer a reading.

A step that is watched compares a fixed block of each parameter's elements (Fingerprint) before and after the update.
A parameter whose block looks wrong is compared element by element in the next steps, and only that is proof. A step
that is not watched (Duty says which) notes the learning rates, whether there was any gradient, whether an eighth of the
parameters still have one, and now and then whether that of a few is zero: what is missing calls the watch back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.readings import Readings
from statewise.health.signals import Signal
from statewise.health.steps.fingerprint import Fingerprint
from statewise.health.steps.ledger import GradientLedger
from statewise.health.steps.runs import MANY, Closer, Step, StepRuns

# A gradient this small beside the values has vanished by itself: no learning rate makes it a fault of rounding.
_VANISHED = 1e-5
# How long a suspect is compared element by element: a verdict needs three steps running.
_KEPT = 5
# Steps at the start, and after a suspicion, in which gradients are looked at right after the backward pass too.
_EARLY = 6
# Largest number of elements copied at once for comparisons.
_ELEMENTS = 50_000_000
# Parameters whose gradients are looked at in between, how large they may be, and in how many steps once.
_SENTINELS, _SENTINEL_SIZE, _PEEK = 4, 4096, 4
# In how many parts it is asked in between whether all gradients are there, one part a step.
_PARTS = 8
# Optimizers that count their steps from the first one on.
_COUNTING = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


@dataclass(frozen=True)
class _Entry:
    """One watched step, its tensors still on their device; `order` says what the numbers of the reading are."""

    lr: np.ndarray
    weight_decay: np.ndarray
    absent: np.ndarray
    follows: bool
    blocks: dict[str, Tensor]
    largest: dict[int, Tensor]
    closer: dict[int, Tensor]
    compared: frozenset[int]


class UpdateMonitor:
    """Watches one optimizer: `backward` before and `after_backward` after each backward pass, `before` once gradients are
    complete, `after` when the update is made, `read` to transfer and count.

    Attributes:
        watching: whether the coming step is compared; set from outside (Duty).
        runs: what the steps did (StepRuns).
        empty: whether the last update found no gradient at all.
        lr_zero_run: per group, consecutive steps with lr 0; lr_positive: whether its lr was ever above it.
        declined: the optimizer's own count of steps did not advance in the last update; None where nobody looked.
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
        self.bias_before_norm: frozenset[str] = frozenset()
        self.blocks = Fingerprint(self.parameters)
        eps = np.array([torch.finfo(parameter.dtype).eps for parameter in self.parameters])
        self.runs = StepRuns(self.blocks, self.names, eps, self._should_show)
        self.lr_zero_run = [0] * len(optimizer.param_groups)
        self.lr_positive = [False] * len(optimizer.param_groups)
        self.watching, self.empty = True, False
        self.declined: bool | None = None
        self.pending: list[_Entry] = []
        self.steps = 0
        self._on_cpu = all(parameter.device.type == "cpu" for parameter in self.parameters)
        self._groups = np.array(self.group_of, dtype=np.int64)
        self._sentinels: list[nn.Parameter] = []
        self._held: list[nn.Parameter] = []
        self._absent = np.zeros(len(self.parameters), dtype=bool)
        self._alarm = False
        self._begun = self._followed = False
        self._counted: tuple[nn.Parameter, float | None] | None = None
        self._early_until = _EARLY
        self._taken: dict[str, Tensor] = {}
        self._used: Tensor | None = None
        self._suspects: dict[int, int] = {}
        self._pre: dict[int, Tensor] = {}
        self._back: dict[int, Tensor] = {}
        self._last: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def ledger(self) -> GradientLedger:
        """Runs of zero and absent gradients, of the steps that were watched."""
        return self.runs.ledger

    @property
    def adaptive(self) -> bool:
        """Whether the optimizer divides by the gradient's own size, so that a factor in front of it does not matter."""
        return any("exp_avg_sq" in state or "square_avg" in state or "sum" in state for state in self.optimizer.state.values())

    @property
    def suspicion(self) -> bool:
        """Whether the next step should be watched whatever it costs."""
        return self._alarm or bool(self._suspects) or self.runs.suspicion

    def backward(self) -> None:
        """A backward pass begins. Gradients that are still those of the last update were not cleared, so far."""
        if self._used is None or not self.watching:
            return
        if all(parameter.grad is None for parameter in self.parameters):
            self._used = None
            self._taken.pop("left", None)
            return
        with torch.no_grad():
            now = self.blocks.gradients()
            left = self._taken.get("left")
            # Another pass may fill them before they are cleared (the generator's, in the discriminator).
            self._taken["left"] = (now == self._used) & (now != 0) if left is None else left & (now != 0)

    def after_backward(self) -> None:
        """A backward pass ended. Its gradients are looked at early in a run, and where some went missing since."""
        if self.watching and self.steps < self._early_until and self.parameters:
            with torch.no_grad():
                self._taken["produced"] = self.blocks.gradients()

    def before(self) -> None:
        """Remember the values the update starts from. Repeated calls within a step (L-BFGS) change nothing.

        The moment matters: after the backward pass, so that a forward pass that overwrites a parameter is seen too.
        """
        if self._begun:
            return
        self._begun = True
        if not self.watching or not self.parameters:
            return
        self._counted = self._own_count()
        with torch.no_grad():
            self._taken["before"] = self.blocks.values()
            self._taken["unclipped"] = self.blocks.gradients()
            self._pre = {index: self.parameters[index].detach().clone() for index in self._choose()}
            self._back = {i: _came_back(v, *self._last[i]) for i, v in self._pre.items() if i in self._last}

    def after(self) -> None:
        """Read gradients and new values; nothing is transferred before `read`."""
        rates = [_number(group.get("lr")) for group in self.optimizer.param_groups]
        for index, lr in enumerate(rates):
            self.lr_zero_run[index] = self.lr_zero_run[index] + 1 if lr == 0.0 else 0
            self.lr_positive[index] |= lr > 0.0
        self.empty = bool(self.parameters) and all(parameter.grad is None for parameter in self.parameters)
        if self.watching and self.parameters:
            with torch.no_grad():
                self._look(np.array(rates)[self._groups])
        else:
            self._alarm = self._missing() or (self._on_cpu and self.steps % _PEEK == 0 and self._silent())
            self._followed, self._used = False, None
        self.declined = self._declined() if self.watching else None
        self.steps += 1
        if self.watching or self._taken:
            self._forget()
        else:
            self._begun = False

    def skip(self) -> bool:
        """The batch is over: whether an update that `before` announced was not made (a GradScaler found an infinity)."""
        skipped = self._begun
        if skipped:
            self._forget()
            self._followed, self._used, self._last = False, None, {}
        return skipped

    def read(self, readings: Readings) -> None:
        """Hand what is pending over to the next reading, which will count it step by step."""
        entries, self.pending = self.pending, []
        for entry in entries:
            parts = [*entry.blocks.values(), *entry.largest.values(), *entry.closer.values()]
            readings.ask_together(parts, partial(self._count, entry), ahead=True)

    def flush(self) -> None:
        """Transfer and count on its own."""
        readings = Readings()
        self.read(readings)
        readings.read()

    def close(self) -> None:
        """Let go of all that was kept of the parameters."""
        self.blocks.clear()
        self._forget()
        self._used, self._last = None, {}

    def state_dict(self) -> dict[str, Any]:
        """What is usual for each parameter, as plain values."""
        return self.runs.ledger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was usual before a restart, or before the parameter groups changed."""
        self.runs.ledger.load_state_dict(state)

    def _look(self, lr: np.ndarray) -> None:
        groups = self.optimizer.param_groups
        decay = np.array([_number(group.get("weight_decay", 0.0)) for group in groups])[self._groups]
        absent = np.array([parameter.grad is None for parameter in self.parameters], dtype=bool)
        blocks = {"used": self.blocks.gradients(), **self._taken}
        if self._begun:
            blocks["after"] = self.blocks.values()
        watched = [i for i in self._pre if not absent[i] and not _gradient(self.parameters[i]).is_sparse]
        closer = {index: self._compare(index) for index in watched}
        compared = frozenset(index for index in watched if index in self._back)
        largest = self._largest(blocks["used"], absent)
        self.pending.append(_Entry(lr, decay, absent, self._followed, blocks, largest, closer, compared))
        self._last = {i: (pre, self.parameters[i].detach() - pre) for i, pre in self._pre.items()} if self._begun else {}
        self._used, self._followed, self._absent = blocks["used"], True, absent
        self._alarm = False

    def _forget(self) -> None:
        self.blocks.release()
        self._taken, self._pre, self._back = {}, {}, {}
        self._begun, self._counted = False, None

    def _count(self, entry: _Entry, columns: list[np.ndarray]) -> Iterable[Signal]:
        given = iter(columns)
        blocks = {name: next(given) for name in entry.blocks}
        largest = {index: float(next(given)[0]) for index in entry.largest}
        closer = {}
        for index in entry.closer:
            asked, followed, changed, size, back, outward, ends = next(given).tolist()
            closer[index] = Closer(asked, followed, changed, size, back if index in entry.compared else None, outward, ends)
        step = Step(
            lr=entry.lr,
            weight_decay=entry.weight_decay,
            absent=entry.absent,
            used=blocks["used"],
            unclipped=blocks.get("unclipped"),
            produced=blocks.get("produced"),
            before=blocks.get("before"),
            after=blocks.get("after"),
            largest=largest,
            closer=closer,
            left=blocks.get("left"),
            follows=entry.follows,
        )
        self.runs.count(step)
        self._suspects = {index: until for index, until in self._suspects.items() if until > self.steps}
        for suspect in self.runs.doubtful().tolist():
            self._suspects[suspect] = self.steps + _KEPT
        ledger = self.runs.ledger
        if ledger.zero_run.any() or ledger.none_run.any() or self.runs.removed.any() or self.runs.cleared.any():
            self._early_until = max(self._early_until, self.steps + _KEPT)
        alive = np.flatnonzero((self.runs.size > 0) & (self.blocks.numels <= _SENTINEL_SIZE))
        self._sentinels = [self.parameters[index] for index in alive[-_SENTINELS:].tolist()]
        return ()

    def _should_show(self, index: int, size: float, largest: float, scale: float, lr: float) -> bool:
        """Whether this step's update ought to change the values. scale: root mean square of the values.

        Not while the lr is still a small part of what it will be, not for a gradient that is rounding noise beside the
        others, beside its own past or beside the values (a fitted model), not for a bias that a batch norm cancels, and not
        where a line search may find no better point.
        """
        group = self.optimizer.param_groups[self.group_of[index]]
        usual = max(_number(group.get("initial_lr", 0.0)), float(self.runs.lr_peak[index]))
        noise = min(32 * torch.finfo(self.parameters[index].dtype).eps, 0.05)
        return bool(
            lr > 0
            and lr >= 0.5 * usual
            and size >= noise * largest
            and size >= 0.01 * self.runs.peak[index]
            and size >= _VANISHED * scale
            and self.names[index] not in self.bias_before_norm
            and not isinstance(self.optimizer, torch.optim.LBFGS)
        )

    def _choose(self) -> list[int]:
        kept: list[int] = []
        elements = 0
        for index in sorted(self._suspects):
            elements += self.parameters[index].numel()
            if elements <= _ELEMENTS:
                kept.append(index)
        return kept

    def _largest(self, used: Tensor, absent: np.ndarray) -> dict[int, Tensor]:
        """A block of zeros may lie in a gradient that is not: those are measured whole (elsewhere than on a CPU, all)."""
        if self._on_cpu:
            elements = _array(used)
            asked = ~self.blocks.some(elements != 0) & ~self.blocks.complete
            # The blocks of sparse gradients are NaN.
            if np.isnan(elements).any():
                asked[[i for i, p in enumerate(self.parameters) if p.grad is not None and p.grad.is_sparse]] = True
            chosen = np.flatnonzero(asked & ~absent).tolist() if asked.any() else []
        else:
            chosen = np.flatnonzero(~absent).tolist()
        if not chosen:
            return {}
        dense = [_dense(self.parameters[index]) for index in chosen]
        return dict(zip(chosen, torch._foreach_norm(dense, float("inf")), strict=True))

    def _missing(self) -> bool:
        """Whether one that had a gradient in every watched step has none now: another eighth is asked in each step."""
        if self._followed:
            always = ~self._absent & (self.runs.ledger.none_total == 0)
            self._held = [parameter for parameter, there in zip(self.parameters, always.tolist(), strict=True) if there]
        return any(parameter.grad is None for parameter in self._held[self.steps % _PARTS :: _PARTS])

    def _silent(self) -> bool:
        """Whether those parameters have no gradient but zeros."""
        gradients = [parameter.grad for parameter in self._sentinels if parameter.grad is not None]
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        return bool(dense) and not any(bool(torch.linalg.vector_norm(gradient)) for gradient in dense)

    def _own_count(self) -> tuple[nn.Parameter, float | None] | None:
        """A parameter with a gradient, and how many steps the optimizer itself says that it made with it."""
        parameter = next((parameter for parameter in self.parameters if parameter.grad is not None), None)
        if parameter is None:
            return None
        step = self.optimizer.state.get(parameter, {}).get("step")
        if isinstance(step, Tensor):
            step = float(step) if step.device.type == "cpu" and step.numel() == 1 else None
        return parameter, step

    def _declined(self) -> bool:
        if not self._begun or self._counted is None:
            return False
        parameter, before = self._counted
        state = self.optimizer.state.get(parameter)
        if before is None:
            return isinstance(self.optimizer, _COUNTING) and not state
        step = (state or {}).get("step")
        return (not isinstance(step, Tensor) or step.device.type == "cpu") and step is not None and float(step) == before

    def _compare(self, index: int) -> Tensor:
        """Elements with a gradient, those that changed, all that changed; the gradient's size; what came back."""
        parameter, pre, gradient = self.parameters[index].detach(), self._pre[index], _gradient(self.parameters[index])
        asked = gradient != 0
        changed = parameter != pre
        size = torch.linalg.vector_norm(gradient.abs().float()) / gradient.numel() ** 0.5
        nothing = torch.zeros(3, device=pre.device)
        numbers = torch.stack([n.float() for n in (asked.sum(), (changed & asked).sum(), changed.sum(), size)])
        return torch.cat([numbers, self._back.get(index, nothing).to(numbers)])


def _came_back(pre: Tensor, last: Tensor, push: Tensor) -> Tensor:
    """Of the elements that were pushed, the share that is where it began, and that lies at an end and was pushed out; of
    all, the share at an end."""
    moved = (push != 0).sum().clamp_min(1)
    same = (pre == last) & (push != 0)
    if pre.is_complex():
        nothing = torch.zeros_like(moved, dtype=torch.float32)
        return torch.stack([same.sum() / moved, nothing, nothing])
    top, bottom = pre.max(), pre.min()
    above, below = (same & (pre == top) & (push > 0)).sum(), (same & (pre == bottom) & (push < 0)).sum()
    outward = torch.where(top == bottom, torch.maximum(above, below), above + below)
    at_ends = ((pre == top) | (pre == bottom)) & (top != bottom)
    ends = at_ends.sum() / pre.numel() if pre.numel() >= MANY else torch.zeros_like(moved)
    return torch.stack([same.sum() / moved, outward / moved, ends.to(torch.float32)])


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


def _array(block: Tensor) -> np.ndarray:
    return (block.float() if block.dtype in (torch.float16, torch.bfloat16) else block).numpy()


def _number(value: Any) -> float:
    return float(value) if value is not None else float("nan")
