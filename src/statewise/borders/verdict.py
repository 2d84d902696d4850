"""The borders of a run, one after another: which of them the training loss jumps at, and what is said about it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from statewise.borders.causes import (
    ORDER,
    SURE,
    UNKNOWN,
    Evidence,
    in_one_sentence,
    rate_rose,
    reason,
    said,
    shown,
    weights_changed,
)
from statewise.borders.jumps import (
    BEFORE,
    EPOCHS,
    RECENT,
    Comparison,
    Reading,
    kept_places,
    level,
    read_border,
    recovered_after,
    recurs,
    same_order,
    usual_profile,
)

# Losses on either side that are drawn, and borders.
AROUND, DRAWN = 24, 40
# Standard deviations from which on one border jumps, whatever is known of causes.
STRONG = 7.0
# A vote from which on a border counts to a rise that recurs.
COUNTED = 2.0
# A fall at a border is what seeing the same rows again looks like: only a large one is put down to their order.
LEAST_FALL = float(np.log(1.2))


class Borders:
    """Takes one epoch after another and says which borders jump, each cause once.

    Attributes:
        borders, judged, jumps: how many there were, could be judged, and jump.
        around: (epoch that begins, last losses before it, first losses of it), at most `DRAWN` of `AROUND` losses a side.
    """

    def __init__(self) -> None:
        self.borders = self.judged = self.jumps = 0
        self.around: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._epochs: list[np.ndarray] = []
        self._votes: dict[int, list[float]] = {}
        self._orders: list[float] = []
        self._causes: dict[str, dict[str, Any]] = {}
        self._unsaid = ""

    def add(self, epoch: int, losses: Float[np.ndarray, " n"], evidence: Evidence) -> list[str]:
        """One epoch, counted from 1, and what differed where it began; returns the sentences that are new."""
        self._epochs = [*self._epochs[1 - EPOCHS :], kept_places(losses)]
        if len(self._epochs) < 2:
            return []
        before, now = self._epochs[-2:]
        self.borders += 1
        self.around = [*self.around[1 - DRAWN :], (epoch, before[-AROUND:], now[:AROUND])]
        self._orders = [*self._orders[1 - RECENT :], same_order(before, now)]
        reading = read_border(self._epochs)
        if not reading.judged:
            return []
        self.judged += 1
        for found in reading.comparisons:
            votes = self._votes.setdefault(found.scale, [])
            votes.append(found.vote)
            del votes[:-RECENT]
        evidence = replace(evidence, order=self._order())
        jump, earlier = self._jump(reading, evidence)
        waiting, self._unsaid = self._unsaid, ""
        new = [] if jump is None else self._say(epoch, reading, jump, earlier, evidence)
        if UNKNOWN in self._causes and (evidence.order >= SURE or ORDER in self._causes):
            self._put_down_to_order()
            waiting = ""
        return [waiting, *new] if waiting else new

    def end(self) -> list[str]:
        """What is still to be said when no further epoch comes."""
        waiting, self._unsaid = self._unsaid, ""
        return [waiting] if waiting else []

    def report(self) -> dict[str, Any]:
        """Plain values: {"borders", "judged", "jumps", "sentence", "causes": {cause: {"borders", "first_epoch", ...}}}."""
        return {
            "borders": self.borders,
            "judged": self.judged,
            "jumps": self.jumps,
            "sentence": in_one_sentence(self.judged, self._causes, self.jumps),
            "causes": {cause: dict(entry) for cause, entry in self._causes.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {
            "counts": [self.borders, self.judged, self.jumps],
            "around": [(epoch, _tensor(before), _tensor(after)) for epoch, before, after in self.around],
            "epochs": [_tensor(losses) for losses in self._epochs],
            "votes": {scale: list(votes) for scale, votes in self._votes.items()},
            "orders": list(self._orders),
            "causes": {cause: dict(entry) for cause, entry in self._causes.items()},
            "unsaid": self._unsaid,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.borders, self.judged, self.jumps = state["counts"]
        self.around = [(epoch, before.numpy(), after.numpy()) for epoch, before, after in state["around"]]
        self._epochs = [losses.numpy() for losses in state["epochs"]]
        self._votes = {int(scale): list(votes) for scale, votes in state["votes"].items()}
        self._orders = list(state["orders"])
        self._causes = {cause: dict(entry) for cause, entry in state["causes"].items()}
        self._unsaid = state["unsaid"]

    def _order(self) -> float:
        """How surely the epochs so far have the same order; what chance makes of several widths is taken off."""
        return float(sum(order - 1.0 for order in self._orders) / np.sqrt(len(self._orders)))

    def _jump(self, reading: Reading, evidence: Evidence) -> tuple[Comparison | None, int]:
        """The comparison by which this border jumps, and how many borders before it did so unsaid."""
        found = reading.stands_out(z=STRONG, beyond=2.0, least=4, share=4)
        if found is None and (weights_changed(evidence) or rate_rose(evidence)):
            found = reading.stands_out(z=5.0, beyond=1.2, least=2, share=4)
        if found is None and (evidence.forgotten or evidence.memory):  # one batch may be all that it takes to recover
            found = reading.stands_out(z=STRONG, beyond=2.0, least=1, share=4)
        if found is not None:
            return found, 0
        if evidence.order >= SURE:
            # The same losses come again and again: that they do so at every border is no evidence.
            return self._jump_of_profile(reading, evidence) if self.borders > 1 else None, 0
        recurring = [found for found in reading.comparisons if recurs(self._votes[found.scale])]
        recurring = [found for found in recurring if found.vote >= COUNTED and found.rise >= reading.smallest]
        if not recurring:
            return None, 0
        found = max(recurring, key=lambda found: sum(self._votes[found.scale]))
        earlier = sum(vote >= COUNTED for vote in self._votes[found.scale][:-1])
        return found, 0 if self.jumps else earlier

    def _jump_of_profile(self, reading: Reading, evidence: Evidence) -> Comparison | None:
        # Not the first epoch of a run: its beginning is that of the training.
        profile = usual_profile(self._epochs[1:] if self.borders < EPOCHS else self._epochs)
        least = 1 if evidence.forgotten else 2
        found = read_border([profile, profile]).stands_out(z=5.0, beyond=1.3, least=least, share=4)
        if found is None and reading.logs:
            mirrored = read_border([1.0 / profile, 1.0 / profile])
            found = mirrored.stands_out(z=5.0, beyond=1.5, least=4, share=8)
            found = found if found is not None and found.rise >= LEAST_FALL else None
        return found

    def _say(self, epoch: int, reading: Reading, jump: Comparison, earlier: int, evidence: Evidence) -> list[str]:
        before, now = (losses[np.isfinite(losses)] for losses in self._epochs[-2:])
        low, high = level(before[-max(jump.scale, BEFORE) :], reading.logs), level(now[: jump.scale], reading.logs)
        evidence = replace(evidence, recovers=recovered_after(now, low, high - low) if high > low else None)
        causes = shown(evidence, strong=jump.z >= STRONG)
        self.jumps += 1 + earlier
        rise = high / low - 1.0 if reading.logs else None
        new = [cause for cause in causes if cause not in self._causes]
        opening = said(epoch, jump, reading.logs, (low, high), earlier)
        for cause in causes:
            first = {"first_epoch": epoch, "rise": rise, "sentence": f"{opening}: {reason(cause, evidence)}"}
            entry = self._causes.setdefault(cause, {"borders": earlier, **first})
            entry["borders"] += 1
        if not new:
            return []
        sentence = f"{opening}: {'; and '.join(reason(cause, evidence) for cause in new)}"
        if causes == (UNKNOWN,):  # the next epoch may show that the order is the same in all of them
            self._unsaid = sentence
            return []
        return [sentence]

    def _put_down_to_order(self) -> None:
        """Jumps from before it was known that all epochs have the same order."""
        entry = self._causes.pop(UNKNOWN)
        if ORDER in self._causes:
            known = self._causes[ORDER]
            known["borders"] += entry["borders"]
            known["first_epoch"] = min(known["first_epoch"], entry["first_epoch"])
        else:
            opening = entry["sentence"].partition(": no cause")[0]
            self._causes[ORDER] = entry | {"sentence": f"{opening}: {reason(ORDER, Evidence())}"}


def _tensor(losses: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(losses.copy())
