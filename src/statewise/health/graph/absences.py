"""Which parameters lost the gradient that they used to have, whichever way it went."""

import numpy as np

from statewise.health.steps.ledger import GradientLedger

# Steps without a gradient after which it is worth a look what became of it, and when it is named unused.
_VANISHING = (2, 8)
_SILENT = (19, 21)


class Absences:
    """Steps running in which a parameter that has had gradients got none, be it None or exactly zero.

    Attributes:
        run: their number for each parameter of the ledger.
    """

    def __init__(self, ledger: GradientLedger) -> None:
        self.ledger = ledger
        self.run = np.maximum(ledger.none_run, ledger.zero_run)
        self._steps = ledger.steps
        self._some = bool(self.run.any())

    def count(self) -> None:
        """Take over what the ledger counted since."""
        ledger = self.ledger
        new = ledger.steps - self._steps
        if not new:
            return
        self._steps = ledger.steps
        some = bool(ledger.none_run.any() or ledger.zero_run.any())
        if some or self._some:
            gone = np.maximum(ledger.none_run, ledger.zero_run)
            self.run = np.where(gone >= new, self.run + new, gone)
        self._some = some

    def candidates(self) -> list[int]:
        """Worth a look now: missing for long enough to be no chance, and not for so long that it was looked at."""
        if not self._some:
            return []
        short = (self.run >= _VANISHING[0]) & (self.run <= _VANISHING[1])
        long = (self.run >= _SILENT[0]) & (self.run <= _SILENT[1])
        return [int(index) for index in np.flatnonzero((short | long) & (self.ledger.alive > 0))]

    def rare(self, index: int, chance: float) -> bool:
        """Whether one more such step would be that improbable, given how common they were before."""
        run = int(self.run[index])
        before = self._steps - run
        share = (before - int(self.ledger.alive[index]) + 1) / (before + 2)
        return bool(share ** (run + 1) < chance)
