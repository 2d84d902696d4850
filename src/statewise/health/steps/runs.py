"""What each real step of an optimizer did to its parameters, as runs of steps; plain arrays, one entry per parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from statewise.health.steps.fingerprint import Fingerprint
from statewise.health.steps.ledger import GradientLedger

# Below this share of elements changed, an update counts as swallowed (health.md, N1).
SWALLOWED = 0.05
# From this share of elements on that begin a step where they began the last one, a tensor counts as held, and from this
# share on that lie at one of two values: of those few cross from one to the other and are on their way.
HELD, _AT_ENDS = 0.99, 0.95
# Clipping that leaves less than this of the norm.
_NOTHING_LEFT = 1e-4
# Usual sizes of an update in units of the values.
_RATIOS = 1e-6, 1e-1
# Of fewer elements it means nothing that all lie at the largest or the smallest value.
MANY = 8


@dataclass(frozen=True)
class Closer:
    """One parameter, compared element by element: counts, and the gradient's root mean square."""

    asked: float
    followed: float
    changed: float
    size: float
    # Of the elements that the last step moved, the share that began this step as they began the last one, and the share
    # that besides lies at the largest or the smallest value and was moved further out. None where it was not compared.
    back: float | None
    outward: float
    # Share of all elements that lie at the largest or the smallest value.
    ends: float


@dataclass(frozen=True)
class Step:
    """One step: blocks of elements (Fingerprint) and what was looked at more closely."""

    lr: np.ndarray
    weight_decay: np.ndarray
    absent: np.ndarray
    # As the optimizer used it; before clipping; after the backward pass. NaN where there was none.
    used: np.ndarray
    unclipped: np.ndarray | None
    produced: np.ndarray | None
    before: np.ndarray | None
    after: np.ndarray | None
    # Largest absolute element of gradients whose block is zero.
    largest: Mapping[int, float] = field(default_factory=dict)
    closer: Mapping[int, Closer] = field(default_factory=dict)
    # Elements that began the backward pass with the very gradient of the last step, and were not cleared since.
    left: np.ndarray | None = None
    # Whether the step before this one was looked at too.
    follows: bool = True


class StepRuns:
    """Counts steps. `should_show(index, size, largest, scale, lr)`: whether an update ought to change the values.

    Attributes (arrays follow the parameters; runs are of consecutive steps that were looked at):
        ledger: runs of zero and absent gradients.
        swallowed: steps in which an update that should show changed less than 5 % of the elements, by the best evidence
            there is; `swallowed_sure`: how many of them were compared element by element.
        written_back: steps that began with the values of the step before, although it had changed them.
        held: the same for at least 99 % of the elements, each of them pushed outwards at a bound; or at least 95 % of the
            elements lie at one of the two ends, wherever the step before had moved them (`share_held`: on average).
        stale: steps whose gradient still held that of the step before.
        removed: steps whose gradient was non-zero before clipping and zero at the update; `scaled`: by a factor of 0.
        cleared: steps whose gradient was non-zero after the backward pass and gone before clipping.
        moved: the value changed in the last step although the gradient was exactly zero; `decayed`: by lr * weight_decay.
        following: the last step changed at least 5 % of the elements that had a gradient; `followed`: any step ever did.
        suspicion: the next step must be looked at, because of what this one showed.
        odd_ratio: steps whose update was tiny or huge beside the values.
        update_ratio: root mean square of the last update over that of the values.
        clipped: steps whose whole norm was cut to less than 1e-4 of it (not to 0); `clip_norms`: (before, after) of the last.
    """

    def __init__(self, blocks: Fingerprint, names: tuple[str, ...], eps: np.ndarray, should_show: Callable[..., bool]) -> None:
        self.blocks, self._eps, self._should_show = blocks, eps, should_show
        count = len(names)
        self.ledger = GradientLedger(names)
        self.swallowed, self.swallowed_sure = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.share_changed = np.ones(count)
        self.following, self.followed = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        self.suspicion = False
        self.written_back, self.back_sure = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.held, self.share_held = np.zeros(count, dtype=np.int64), np.zeros(count)
        numels = blocks.numels
        self._at_ends = 1 - np.maximum((1 - _AT_ENDS) * numels, np.minimum(1 + numels // 16, 2)) / np.maximum(numels, 1)
        self.stale = np.zeros(count, dtype=np.int64)
        self.removed, self.cleared = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.scaled = np.zeros(count, dtype=bool)
        self.moved, self.decayed = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        self.update_ratio, self.value_size = np.full(count, np.nan), np.full(count, np.nan)
        self.odd_ratio = np.zeros(count, dtype=np.int64)
        self.size = np.full(count, np.nan)
        self.clipped, self.clip_norms = 0, (float("nan"), float("nan"))
        self.peak, self.lr_peak = np.zeros(count), np.zeros(count)
        self._last: Step | None = None
        # Elements that the last two compared updates changed, and how many of each block.
        self._moves = self._moved_last = np.zeros(blocks.size, dtype=bool)
        self._moving = self._moving_last = np.zeros(count)
        self._minus = np.zeros(count, dtype=bool)
        self._changed = np.zeros(count, dtype=bool)

    def state_dict(self) -> dict[str, Any]:
        """What is usual for each parameter, and what the last step was like: plain values by parameter name."""
        numbers = np.stack([self.update_ratio, self.value_size, self.size], axis=1)
        # What is not known is None: as NaN it would differ from itself.
        latest = [[None if value != value else value for value in row] for row in numbers.tolist()]
        return self.ledger.state_dict() | {"latest": dict(zip(self.ledger.names, latest, strict=True))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what is known of the parameters that still exist."""
        self.ledger.load_state_dict(state)
        known = state.get("latest", {})
        for index, name in enumerate(self.ledger.names):
            if name in known:
                latest = [np.nan if value is None else value for value in known[name]]
                self.update_ratio[index], self.value_size[index], self.size[index] = latest

    def doubtful(self) -> np.ndarray:
        """Parameters that the next step should compare element by element."""
        return np.flatnonzero(~self.blocks.complete & ((self.swallowed > 0) | (self.written_back > 0) | (self.held > 0)))

    def count(self, step: Step) -> None:
        """One more step."""
        if not step.follows:
            for run in (self.swallowed, self.swallowed_sure, self.written_back, self.back_sure, self.held, self.stale):
                run[:] = 0
            for run in (self.removed, self.cleared):
                run[:] = 0
            self.clipped = 0
            self._last = None
        sums, present = self.blocks.sums, ~step.absent
        # False for NaN.
        asked = np.abs(step.used) > 0
        self.size = np.sqrt(sums(step.used * step.used) / self.blocks.lengths)
        for index, largest in step.largest.items():
            if not self.size[index] > 0:
                self.size[index] = largest / np.sqrt(self.blocks.numels[index])
        whole = self.blocks.complete.copy()
        whole[list(step.largest)] = True
        zero = present & whole & (self.size == 0)
        # A step at which nothing could move (a warm-up that starts at lr 0) says nothing about gradients behind a
        # zero-initialised layer.
        if (step.lr > 0).any():
            self.ledger.record(np.where(zero, 0.0, np.where(present, np.maximum(self.size, 1e-300), np.nan)), step.absent)
        self._count_removed(step, zero)
        self._count_stale(step)
        self.peak, self.lr_peak = np.fmax(self.peak, self.size), np.fmax(self.lr_peak, step.lr)
        self.moved[:], self.decayed[:] = False, False
        changed = np.zeros(len(zero), dtype=bool)
        self._moved_last, self._moving_last = self._moves, self._moving
        if step.before is not None and step.after is not None:
            changed = self._count_values(step, zero, asked & self.blocks.spread(present))
            self._count_back(step, step.before)
        self._changed, self._last = changed, step
        runs = (self.swallowed, self.written_back, self.held, self.stale, self.removed, self.cleared, self.ledger.zero_run)
        self.suspicion = bool(self.clipped or any(run.any() for run in runs))

    def _count_removed(self, step: Step, zero: np.ndarray) -> None:
        gone = zero | step.absent
        if step.unclipped is not None and step.produced is None and not self.cleared.any() and _same(step.unclipped, step.used):
            # Nobody touched them, as nearly always: nothing was clipped or taken away.
            self.removed[:], self.scaled[:], self._minus[:], self.clipped = 0, False, False, 0
            return
        if step.unclipped is not None:
            there = self.blocks.some(np.abs(step.unclipped) > 0)
            self.removed = np.where(gone & there, self.removed + 1, 0)
            # A product with 0 keeps the sign; a cleared gradient has none.
            sources = [step.unclipped] if step.produced is None else [step.unclipped, step.produced]
            below = np.logical_or.reduce([source < 0 for source in sources])
            self._minus = self.blocks.some((step.used == 0) & np.signbit(step.used) & below)
            self._count_clipped(step, step.unclipped)
        if step.produced is not None:
            early = step.unclipped if step.unclipped is not None else step.used
            was = self.blocks.some(np.abs(step.produced) > 0)
            now = self.blocks.some(np.abs(early) > 0)
            self.cleared = np.where(was & ~now & gone, self.cleared + 1, 0)
        self.scaled = np.where((self.removed > 0) | (self.cleared > 0), self.scaled | self._minus, False)

    def _count_clipped(self, step: Step, unclipped: np.ndarray) -> None:
        weights = self.blocks.numels / self.blocks.lengths
        norms = [float(np.sqrt((self.blocks.sums(np.nan_to_num(g) ** 2) * weights).sum())) for g in (unclipped, step.used)]
        cut = norms[0] > 0 and 0 < norms[1] < _NOTHING_LEFT * norms[0] and np.isfinite(norms[0])
        self.clipped = self.clipped + 1 if cut else 0
        self.clip_norms = (norms[0], norms[1])

    def _count_stale(self, step: Step) -> None:
        if step.left is None or self._last is None:
            self.stale[:] = 0
            return
        if not step.left.any():
            self.stale[:] = 0
            return
        used = self.blocks.counts(np.abs(self._last.used) > 0)
        self.stale = np.where((used > 0) & (self.blocks.counts(step.left != 0) == used), self.stale + 1, 0)

    def _count_values(self, step: Step, zero: np.ndarray, asked: np.ndarray) -> np.ndarray:
        sums, before, after = self.blocks.sums, step.before, step.after
        assert before is not None
        assert after is not None
        moves = after != before
        counts = self.blocks.counts
        wanted, followed, moving = counts(asked), counts(moves & asked), counts(moves)
        self._moves, self._moving = moves, moving
        changed = moving > 0
        for index, look in step.closer.items():
            wanted[index], followed[index], changed[index] = look.asked, look.followed, look.changed > 0
        self.value_size = np.sqrt(sums(before * before) / self.blocks.lengths)
        with np.errstate(divide="ignore", invalid="ignore"):
            delta = after - before
            self.update_ratio = np.sqrt(sums(delta * delta) / self.blocks.lengths) / self.value_size
            share = np.where(wanted > 0, followed / wanted, 1.0)
        # No movement at all is for other rules to judge.
        odd = ((self.update_ratio > 0) & (self.update_ratio < _RATIOS[0])) | (self.update_ratio > _RATIOS[1])
        self.odd_ratio = np.where(odd & (wanted > 0), self.odd_ratio + 1, 0)
        self.moved = zero & changed
        if self.moved.any():
            decay = step.lr * step.weight_decay
            error = self.blocks.greatest(np.abs(delta + self.blocks.spread(decay) * before))
            self.decayed = self.moved & (decay > 0) & (error <= 4 * self._eps * self.blocks.greatest(np.abs(before)))
        low = share < SWALLOWED
        self.following = ~low & (wanted > 0)
        self.followed |= self.following
        self.swallowed[self.following] = 0
        self.swallowed_sure[self.swallowed == 0] = 0
        largest = float(np.nanmax(self.size)) if np.isfinite(self.size).any() else 0.0
        for index in np.flatnonzero(low).tolist():
            size = step.closer[index].size if index in step.closer else float(self.size[index])
            if step.unclipped is not None:
                size = max(size, self._block_size(step.unclipped, index))
            if self._should_show(index, size, largest, float(self.value_size[index]), float(step.lr[index])):
                self.share_changed[index] = share[index]
                self.swallowed[index] += 1
                self.swallowed_sure[index] += bool(self.blocks.complete[index] or index in step.closer)
        return changed

    def _count_back(self, step: Step, before: np.ndarray) -> None:
        last = self._last
        if last is None or last.before is None or last.after is None:
            return
        # Only what the last step moved can come back: rows of an embedding that no batch hits stay where they are.
        counts = self.blocks.counts
        same = (before == last.before) & self._moved_last
        top, bottom = self.blocks.greatest(before), self.blocks.least(before)
        at_top, at_bottom = before == self.blocks.spread(top), before == self.blocks.spread(bottom)
        if same.any():
            push = last.after - last.before
            above, below = counts(same & at_top & (push > 0)), counts(same & at_bottom & (push < 0))
            moved = np.maximum(self._moving_last, 1)
            back = counts(same) / moved
            # In a tensor of one value the two ends are the same: a bound pushes back one way only.
            outward = np.where(top == bottom, np.maximum(above, below), above + below) / moved
        else:
            back, outward = np.zeros(len(top)), np.zeros(len(top))
        ends = counts(at_top | at_bottom)
        ends = np.where((self.blocks.numels >= MANY) & (top != bottom), ends / self.blocks.lengths, 0.0)
        for index, look in step.closer.items():
            if look.back is not None:
                back[index], outward[index], ends[index] = look.back, look.outward, look.ends
        sure = self.blocks.complete.copy()
        sure[[index for index, look in step.closer.items() if look.back is not None]] = True
        # At a bound every element is pushed outwards and comes back: a clamp. Anything else is somebody who writes.
        bound = outward >= HELD
        whole = (back == 1.0) & self._changed & ~bound
        self.written_back = np.where(whole, self.written_back + 1, 0)
        self.back_sure = np.where(whole, self.back_sure + sure, 0)
        held = self._changed & (((back >= HELD) & (bound | (back < 1.0))) | ((ends > 0) & (ends >= self._at_ends)))
        self.held = np.where(held, self.held + 1, 0)
        total = np.where(self.held > 1, self.share_held * (self.held - 1), 0.0)
        self.share_held = (total + np.maximum(np.where(bound, back, 0.0), ends)) / np.maximum(self.held, 1)

    def _block_size(self, elements: np.ndarray, index: int) -> float:
        start = int(self.blocks.lengths[:index].sum())
        block = elements[start : start + int(self.blocks.lengths[index])]
        return float(np.sqrt(np.mean(block * block))) if np.isfinite(block).all() else 0.0


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """To the bit, NaN included."""
    return bool((one.view(np.int64) == other.view(np.int64)).all())
