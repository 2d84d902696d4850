"""What the processes of a run tell each other at every training batch: how many targets are observed in the parts of all.

By these counts each weights its own loss. They are exchanged on the CPU, before the batch moves to a device. Nothing is
exchanged where there is one process.
"""

from typing import Any

from torch import Tensor

from statewise.parallel import ranks


class StepAgreement:
    """The memory of one process; every process asks for the same exchanges in the same order.

    A copy of the task that holds it, on which something is only tried, has nobody to agree with.
    """

    def __init__(self) -> None:
        self._alone = False
        self._counts: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "StepAgreement":
        copy = StepAgreement()
        copy._alone = True
        return copy

    @property
    def together(self) -> bool:
        return not self._alone and ranks.together()

    def exchange(self, counts: Tensor) -> None:
        """Tell the others the observed targets of this process's part of a batch, `[m]`."""
        self._counts = ranks.summed(counts)

    def take(self) -> Tensor | None:
        """The counts of all processes together for the batch at hand, once; None where they were not exchanged."""
        counts, self._counts = self._counts, None
        return counts

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU; the values themselves where there is nobody else."""
        return ranks.summed(values.cpu()) if self.together else values
