"""The training loss of a whole epoch, also of one that was interrupted, or that several processes train together."""

from collections.abc import Mapping

import torch
from torch import Tensor

from statewise.metrics import mean_over_targets
from statewise.parallel.step_agreement import StepAgreement


class EpochLoss:
    """Sums and counts of the batches so far, in float64, of the rows that this process has trained on.

    Args:
        agreement: with the other processes; their sums are added where the whole is asked for.
    """

    def __init__(self, agreement: StepAgreement) -> None:
        self._agreement = agreement
        self._sums: Tensor | None = None  # (m)
        self._counts: Tensor | None = None  # (m)

    def add(self, sums: Tensor, counts: Tensor) -> None:
        """One batch more."""
        if self._sums is None or self._counts is None:
            self._sums, self._counts = torch.zeros_like(sums, dtype=torch.float64), torch.zeros_like(counts)
        elif self._sums.device != sums.device:  # from a checkpoint
            self._sums, self._counts = self._sums.to(sums.device), self._counts.to(sums.device)
        self._sums.add_(sums)
        self._counts.add_(counts)

    def close(self) -> Tensor | None:
        """The loss of the epoch, and begin anew; None where nothing was added."""
        state = self.state_dict()
        self._sums = self._counts = None
        return mean_over_targets(state["sums"], state["counts"]) if state else None

    def state_dict(self) -> dict[str, Tensor]:
        """What all processes have added so far; empty between epochs."""
        if self._sums is None or self._counts is None:
            return {}
        # Copied: what is added later must not reach a state that was asked for before.
        sums, counts = self._sums.clone(), self._counts.clone()
        return {"sums": self._agreement.summed(sums), "counts": self._agreement.summed(counts)}

    def load_state_dict(self, state: Mapping[str, Tensor], *, first: bool) -> None:
        """Go on in an epoch; of several processes the first takes what all had."""
        self._sums, self._counts = state.get("sums"), state.get("counts")
        if self._sums is not None and self._counts is not None and not first:
            self._sums, self._counts = torch.zeros_like(self._sums), torch.zeros_like(self._counts)
