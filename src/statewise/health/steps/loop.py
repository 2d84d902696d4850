"""Counts of what a training loop does: backward passes, announced and made updates, updates without any gradient."""

from collections import deque

from statewise.health.signals import Loop

# Announced updates among which those that were not made are counted.
_WINDOW = 50
# Batches at the start whose counts are always judged; backward passes without an update that may be too many.
_BEGINNING, _LONG = 60, 10


class LoopCounter:
    """Plain counters, reset at the start of a fit; what an optimizer's steps came to is counted for each by itself."""

    def __init__(self, accumulate: int, manual: bool, scaler: bool) -> None:
        self.accumulate, self._manual, self._scaler = accumulate, manual, scaler
        self.batches = 0
        self.epoch_ended = False
        self._backwards = self._attempts = self._made = self._empty = 0
        self._since_update = self._usual = 0
        self._idle = self._usual_idle = 0
        self._seen = 0
        self._any = False
        self._backward_before_empty = False
        self._skipped: dict[int, deque[bool]] = {}
        self._declined: dict[int, int] = {}

    def backward(self) -> None:
        """A backward pass begins."""
        self._backwards += 1
        self._since_update += 1

    def attempt(self) -> None:
        """An update is announced."""
        self._attempts += 1

    def update(self, optimizer: int, with_gradients: bool, declined: bool | None) -> None:
        """An update was made. declined: the optimizer's own count of steps did not advance; None: nobody looked."""
        self._made += 1
        self._empty = 0 if with_gradients else self._empty + 1
        if not with_gradients:
            self._backward_before_empty = self._since_update > 0
        self._usual = max(self._usual, self._since_update)
        self._since_update = 0
        self._skipped.setdefault(optimizer, deque(maxlen=_WINDOW)).append(False)
        if declined is not None:
            self._declined[optimizer] = self._declined.get(optimizer, 0) + 1 if declined else 0

    def skip(self, optimizer: int) -> None:
        """An update was announced and not made."""
        self._skipped.setdefault(optimizer, deque(maxlen=_WINDOW)).append(True)
        self._since_update = 0
        self._any = True

    def end_batch(self) -> None:
        """A batch is over: whether it came to anything, a backward pass or an announced update."""
        self.batches += 1
        seen = self._backwards + self._attempts + self._made
        if seen == self._seen:
            self._idle += 1
        else:
            self._usual_idle, self._idle = max(self._usual_idle, self._idle), 0
        self._seen = seen

    @property
    def steady(self) -> bool:
        """Whether the loop has found its rhythm and keeps it: nothing that a rule could say."""
        odd = self._empty or self._idle or self._any or any(self._declined.values())
        return self.batches > _BEGINNING and self._made > 0 and not odd and self._since_update < _LONG

    def facts(self) -> Loop:
        """The counters as facts."""
        # Nearly always nothing was skipped.
        rows, shares = ({}, {}) if not self._any else self._skips()
        worst = max(rows, key=lambda number: (rows[number], shares[number]), default=0)
        declining = max(self._declined, key=lambda number: self._declined[number], default=0)
        return Loop(
            batches=self.batches,
            backwards=self._backwards,
            updates=self._made,
            attempts=self._attempts,
            empty_updates=self._empty,
            backward_before_empty=self._backward_before_empty,
            accumulate=self.accumulate,
            manual=self._manual,
            scaler=self._scaler,
            epoch_ended=self.epoch_ended,
            since_update=self._since_update,
            usual_backwards=self._usual,
            idle_batches=self._idle,
            usual_idle=self._usual_idle,
            skipping=worst,
            skipped_run=rows.get(worst, 0),
            skipped_share=shares.get(worst, 0.0),
            announced=len(self._skipped.get(worst, ())),
            declining=declining,
            declined_run=self._declined.get(declining, 0),
        )

    def _skips(self) -> tuple[dict[int, int], dict[int, float]]:
        rows = {number: _length(history) for number, history in self._skipped.items()}
        return rows, {number: sum(history) / len(history) for number, history in self._skipped.items()}


def _length(history: deque[bool]) -> int:
    """How many skipped ones the history ends with."""
    run = 0
    for skipped in reversed(history):
        if not skipped:
            break
        run += 1
    return run
