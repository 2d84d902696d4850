"""The state of every gradient at every real step of its optimizer, as counts: a few microseconds a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# A run of zeros is a fault from this length on ...
SHORTEST_RUN = 5
# ... where, given how often the parameter was zero before, chance would make one so long less often than this.
_CHANCE = 1e-4


class GradientLedger:
    """Counts per parameter: current runs of zero and of absent gradients, and how common they were before.

    Rare experts, dropped layers and masked batches leave zeros behind in healthy runs. A run therefore counts as unusual
    only where its length does not fit the share of such steps seen before it: q ** length below 1e-4, with
    q = (earlier + 1) / (steps + 2), Laplace's estimate. A parameter that never had a gradient needs SHORTEST_RUN steps.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        count = len(self.names)
        self.steps = 0
        self.alive = np.zeros(count, dtype=np.int64)
        self.zero_run = np.zeros(count, dtype=np.int64)
        self.zero_total = np.zeros(count, dtype=np.int64)
        self.none_run = np.zeros(count, dtype=np.int64)
        self.none_total = np.zeros(count, dtype=np.int64)

    def record(self, size: np.ndarray, absent: np.ndarray) -> None:
        """Count one step. size: of the gradient, 0 only where all of it is (NaN where absent); absent: it was None."""
        self.steps += 1
        zero = size == 0.0
        self.zero_run = np.where(zero, self.zero_run + 1, 0)
        self.none_run = np.where(absent, self.none_run + 1, 0)
        self.zero_total += zero
        self.none_total += absent
        self.alive += ~(zero | absent)

    def suspicious(self) -> np.ndarray:
        """Which parameters have a run long enough to look at."""
        return (self.zero_run >= SHORTEST_RUN) | (self.none_run >= SHORTEST_RUN)

    def zero_unusual(self, index: int) -> bool:
        """Whether the current run of zeros is far outside what this parameter has shown."""
        return self._unusual(int(self.zero_run[index]), int(self.zero_total[index]), int(self.alive[index]))

    def none_unusual(self, index: int) -> bool:
        """The same for absent gradients."""
        return self._unusual(int(self.none_run[index]), int(self.none_total[index]), int(self.alive[index]))

    def _unusual(self, run: int, total: int, alive: int) -> bool:
        if run < SHORTEST_RUN:
            return False
        if alive == 0:
            return True
        share = (total - run + 1) / (self.steps - run + 2)
        return bool(share**run < _CHANCE)

    def state_dict(self) -> dict[str, Any]:
        """Plain values by parameter name, so that a resumed run knows what was usual."""
        return {
            "steps": self.steps,
            "parameters": {name: [int(column[i]) for column in self._columns()] for i, name in enumerate(self.names)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what is known of the parameters that still exist."""
        self.steps = int(state["steps"])
        for index, name in enumerate(self.names):
            for column, value in zip(self._columns(), state["parameters"].get(name, ()), strict=False):
                column[index] = value

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.alive, self.zero_run, self.zero_total, self.none_run, self.none_total
