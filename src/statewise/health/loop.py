"""Counts of what a training loop does: backward passes, announced and made updates, updates without any gradient."""

from statewise.health.signals import Loop


class LoopCounter:
    """Plain counters, reset at the start of a fit."""

    def __init__(self, accumulate: int, manual: bool, scaler: bool) -> None:
        self._accumulate, self._manual, self._scaler = accumulate, manual, scaler
        self.batches = 0
        self.epoch_ended = False
        self._backwards = self._attempts = self._made = self._empty = 0
        self._since_update = 0
        self._backward_before_empty = False

    def backward(self) -> None:
        """A backward pass begins."""
        self._backwards += 1
        self._since_update += 1

    def attempt(self) -> None:
        """An update is announced."""
        self._attempts += 1

    def update(self, with_gradients: bool) -> None:
        """An update was made."""
        self._made += 1
        self._empty = 0 if with_gradients else self._empty + 1
        if not with_gradients:
            self._backward_before_empty = self._since_update > 0
        self._since_update = 0

    def facts(self) -> Loop:
        """The counters as facts."""
        return Loop(
            batches=self.batches,
            backwards=self._backwards,
            updates=self._made,
            attempts=self._attempts,
            empty_updates=self._empty,
            backward_before_empty=self._backward_before_empty,
            accumulate=self._accumulate,
            manual=self._manual,
            scaler=self._scaler,
            epoch_ended=self.epoch_ended,
        )
