"""What one optimizer's real steps do to its parameters: gradients, values before and after, one transfer a reading.

A step that is watched compares a fixed block of each parameter's elements (Fingerprint) before and after the update.
A parameter whose block looks wrong is compared element by element in the next steps (Suspects). A step that is not watched
(Duty says which) notes the learning rates, whether there was any gradient, and what Glimpses see.
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
from statewise.health.steps.glimpses import Glimpses
from statewise.health.steps.ledger import GradientLedger
from statewise.health.steps.own_count import OwnCount
from statewise.health.steps.runs import Step, StepRuns
from statewise.health.steps.sharded import ShardedFingerprint, fingerprint
from statewise.health.steps.suspects import KEPT, Suspects, read_closer
from statewise.health.steps.whole_gradients import largest
from statewise.parallel.shards import over_all

# A gradient this small beside the values has vanished by itself: no learning rate makes it a fault of rounding.
_VANISHED = 1e-5
# Steps at the start, and after a suspicion, in which gradients are looked at right after the backward pass too.
_EARLY = 6


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
                if id(tensor) in names and tensor.requires_grad and tensor.numel() > 0 and over_all(tensor):
                    self.parameters.append(tensor)
                    self.group_of.append(index)
        self.names = tuple(names[id(parameter)] for parameter in self.parameters)
        self.bias_before_norm: frozenset[str] = frozenset()
        self.blocks = fingerprint(self.parameters)
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
        sharded = isinstance(self.blocks, ShardedFingerprint)
        # What one process sees of its parts must not change what all of them do together.
        self._glimpses = Glimpses(self.parameters, self._on_cpu and not sharded)
        self._absent = np.zeros(len(self.parameters), dtype=bool)
        self._alarm = False
        self._begun = self._followed = False
        self._own_count = OwnCount(optimizer)
        self._early_until = _EARLY
        self._taken: dict[str, Tensor] = {}
        self._used: Tensor | None = None
        self._suspects = Suspects(self.parameters)

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
        self._own_count.take(self.parameters)
        with torch.no_grad():
            self._taken["before"] = self.blocks.values()
            self._taken["unclipped"] = self.blocks.gradients()
            self._suspects.before()

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
            if self._followed:
                self._glimpses.expect(~self._absent & (self.ledger.none_total == 0))
            self._alarm = self._glimpses.alarm(self.steps)
            self._followed, self._used = False, None
        self.declined = self._begun and self._own_count.stood_still() if self.watching else None
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
            self._followed, self._used = False, None
            self._suspects.lose_track()
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

    def drop(self) -> None:
        """Let go of what is pending where it can be counted by all processes together only, and they may not all be there."""
        if isinstance(self.blocks, ShardedFingerprint):
            self.pending.clear()

    def close(self) -> None:
        """Let go of all that was kept of the parameters."""
        self.blocks.clear()
        self._forget()
        self._used = None
        self._suspects.lose_track()

    def state_dict(self) -> dict[str, Any]:
        """What is usual for each parameter, as plain values."""
        return self.runs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was usual before a restart, or before the parameter groups changed."""
        self.runs.load_state_dict(state)

    def _look(self, lr: np.ndarray) -> None:
        groups = self.optimizer.param_groups
        decay = np.array([_number(group.get("weight_decay", 0.0)) for group in groups])[self._groups]
        absent = np.array([parameter.grad is None for parameter in self.parameters], dtype=bool)
        blocks = {"used": self.blocks.gradients(), **self._taken}
        if self._begun:
            blocks["after"] = self.blocks.values()
        closer, compared = self._suspects.compare(absent)
        whole = largest(self.parameters, self.blocks, blocks["used"], absent, self._on_cpu)
        self.pending.append(_Entry(lr, decay, absent, self._followed, blocks, whole, closer, compared))
        if self._begun:
            self._suspects.end()
        else:
            self._suspects.lose_track()
        self._used, self._followed, self._absent = blocks["used"], True, absent
        self._alarm = False

    def _forget(self) -> None:
        self.blocks.release()
        self._suspects.forget()
        self._own_count.forget()
        self._taken, self._begun = {}, False

    def _count(self, entry: _Entry, columns: list[np.ndarray]) -> Iterable[Signal]:
        given = iter(columns)
        blocks = {name: next(given) for name in entry.blocks}
        whole = {index: float(next(given)[0]) for index in entry.largest}
        if isinstance(self.blocks, ShardedFingerprint):
            blocks, whole = self.blocks.collect(blocks, whole)
        closer = {index: read_closer(next(given), index in entry.compared) for index in entry.closer}
        step = Step(
            lr=entry.lr,
            weight_decay=entry.weight_decay,
            absent=entry.absent,
            used=blocks["used"],
            unclipped=blocks.get("unclipped"),
            produced=blocks.get("produced"),
            before=blocks.get("before"),
            after=blocks.get("after"),
            largest=whole,
            closer=closer,
            left=blocks.get("left"),
            follows=entry.follows,
        )
        self.runs.count(step)
        self._suspects.name(self.runs.doubtful().tolist(), self.steps)
        ledger = self.runs.ledger
        if ledger.zero_run.any() or ledger.none_run.any() or self.runs.removed.any() or self.runs.cleared.any():
            self._early_until = max(self._early_until, self.steps + KEPT)
        self._glimpses.choose(self.runs.size, self.blocks.numels)
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


def _number(value: Any) -> float:
    return float(value) if value is not None else float("nan")
