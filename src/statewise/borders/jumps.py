"""Does the training loss jump where an epoch begins? Statistics of losses alone, on numbers; nobody is asked why.

What a border does to the loss is compared with what the places inside epochs do: at each of these, as at the border, the mean
of the next k losses against the mean of the max(k, 4) before. Under the null hypothesis the border is a place like any other.
Differences are of log losses where all of them are positive, so that a rise means the same early and late in a run.

Symbols: k the scale, 1 to 32 batches; z the rise at the border in robust standard deviations of the inner comparisons; beyond
the rise in units of the largest of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

SCALES = (1, 2, 4, 8, 16, 32)
BEFORE = 4
# Epochs that are compared with, and the places of each that are kept: half from its beginning, half from its end.
EPOCHS, PLACES = 5, 4096
# Inner comparisons that a border needs to be judged, and batches that an epoch needs.
ENOUGH, SHORTEST = 24, 4
# A smaller rise is not worth a word.
SMALLEST = 0.02
# Standard deviations up to which one border speaks for a rise that recurs: a single wild batch must not decide alone.
CAP, RECENT = 4.0, 16
MAD = 1.4826


@dataclass(frozen=True)
class Comparison:
    """A border at one scale. `rise` is a difference of logs where `Reading.logs`, else of losses."""

    scale: int
    rise: float
    z: float
    beyond: float
    share: float  # of the batches after the border that carry the rise: above the level before it by half the rise
    rank: float  # z as the rank of the rise among the inner comparisons says it, whatever their distribution

    @property
    def vote(self) -> float:
        """What this border says for a rise that recurs, at most CAP: chance passes all inner comparisons seldom, not never."""
        return min(self.z, CAP if self.beyond >= 1.2 else self.rank)


@dataclass(frozen=True)
class Reading:
    """A border at all scales that its epochs allow; none where there is too little to compare with."""

    comparisons: tuple[Comparison, ...]
    logs: bool
    smallest: float  # the rise that is worth a word, in the units of the comparisons
    batches: int  # of the shorter epoch

    @property
    def judged(self) -> bool:
        return bool(self.comparisons)

    def stands_out(self, *, z: float, beyond: float, least: int, share: int) -> Comparison | None:
        """The clearest comparison over at least `least` batches and at most 1/share of an epoch that passes both bars."""
        passed = [
            found
            for found in self.comparisons
            if found.scale >= least
            and found.scale * share <= self.batches
            and found.rise >= self.smallest
            and found.z >= z
            and found.beyond >= beyond
            and found.share > 0.5
        ]
        return max(passed, key=lambda found: found.z, default=None)


def kept_places(losses: Float[np.ndarray, " n"]) -> Float[np.ndarray, " places"]:
    """An epoch as it is remembered: whole, or its two ends with a gap (NaN) between them."""
    if len(losses) <= PLACES:
        return losses
    half = PLACES // 2
    return np.concatenate([losses[:half], [np.nan], losses[-half:]])


def read_border(epochs: Sequence[Float[np.ndarray, " _"]]) -> Reading:
    """The border between the last two of these epochs, beside the inner places of all of them.

    Args:
        epochs: losses batch by batch, the newest epoch last; NaN where there is none.
    """
    finite = [losses[np.isfinite(losses)] for losses in epochs]
    batches = min(len(losses) for losses in finite[-2:]) if len(finite) > 1 else 0
    if batches < SHORTEST:
        return Reading((), False, 0.0, batches)
    logs = all(bool((losses > 0).all()) for losses in finite)
    series = [np.log(losses) for losses in finite] if logs else finite
    smallest = float(np.log1p(SMALLEST)) if logs else SMALLEST * float(np.median(np.abs(np.concatenate(series))))
    found = []
    for scale in SCALES:
        if 4 * scale > batches and scale > 1:
            break
        inner = np.concatenate([inner_rises(losses, scale) for losses in series])
        if len(inner) < ENOUGH:
            continue
        before = min(max(scale, BEFORE), len(series[-2]))
        after, level = series[-1][:scale], float(series[-2][-before:].mean())
        rise = float(after.mean()) - level
        middle = float(np.median(inner))
        # Of the rises alone: falls are wide where a loss falls fast at first.
        spread = max(MAD * float(np.median(inner[inner >= middle] - middle)), smallest / CAP)
        above = rise - max(middle, 0.0)
        largest = max(float(inner.max()) - max(middle, 0.0), spread)
        share = float((after > level + 0.5 * rise).mean())
        rank = NormalDist().inv_cdf((int((inner < rise).sum()) + 0.5) / (len(inner) + 1))
        found.append(Comparison(scale, rise, above / spread, above / largest, share, rank))
    return Reading(tuple(found), logs, smallest, batches)


def inner_rises(losses: Float[np.ndarray, " n"], scale: int) -> Float[np.ndarray, " inner"]:
    """At each place inside an epoch the mean of the next `scale` losses less that of those before."""
    before = max(scale, BEFORE)
    if len(losses) < before + scale:
        return np.empty(0)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    place = np.arange(before, len(losses) - scale + 1)
    return np.asarray((sums[place + scale] - sums[place]) / scale - (sums[place] - sums[place - before]) / before)


def recurs(votes: Sequence[float], *, bar: float = 6.9) -> bool:
    """Whether the votes of the latest borders at one scale are too high too often to be chance; needs three at least."""
    recent = np.clip(np.asarray(votes[-RECENT:], dtype=float), -CAP, CAP)
    if len(recent) < 3:
        return False
    return bool(recent.sum() / np.sqrt(len(recent)) >= bar and np.median(recent) >= 2.5)


def same_order(earlier: Float[np.ndarray, " n"], later: Float[np.ndarray, " m"]) -> float:
    """How surely two epochs have the same batches at the same places, in standard deviations; 0.0 where too short to say.

    Compared are the changes of the loss from place to place, by their ranks: a trend, a transient at the beginning or one
    wild batch does not make two epochs alike, the same rows at the same place do. Wider groups of batches too, for rows
    that are shuffled within a part of the file only. The sign of chance is either; the first eighth is left out.
    """
    n = min(len(earlier), len(later), PLACES // 2)
    first = max(n // 8, 1)
    pair = np.stack([earlier[first:n], later[first:n]])
    best = 0.0
    for width in (1, 2, 4, 8, 16):
        groups = pair.shape[1] // width
        if groups < (24 if width > 1 else 8):
            break
        means = pair[:, : groups * width].reshape(2, groups, width).mean(2)
        changes = np.diff(means, axis=1)
        changes = changes[:, np.isfinite(changes).all(0)]
        if changes.shape[1] < 7:
            continue
        ranks = np.stack([centred_ranks(row) for row in changes])
        scale = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
        # Neighbouring changes share a loss: their correlation of -1/2 widens the chance by 3/2.
        alike = float((ranks[0] * ranks[1]).sum()) / scale if scale > 0 else 0.0
        best = max(best, alike * float(np.sqrt(changes.shape[1] / 1.5)))
    return best


def centred_ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Ranks with mean zero; equal values share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(middle[inverse] - (len(values) + 1) / 2)


def recovered_after(losses: Float[np.ndarray, " n"], level: float, rise: float) -> int | None:
    """The batches of an epoch after which half of a rise above `level` is gone, read off means over an eighth of the epoch.

    None where that takes more than a third of it: what begins anew recovers, what is another part of the data does not.
    """
    losses = losses[np.isfinite(losses)]
    width = max(len(losses) // 8, 2)
    for place in range(1, len(losses) // 3 + 1):
        if float(np.mean(losses[place : place + width])) - level <= 0.5 * rise:
            return place
    return None


def usual_profile(epochs: Sequence[Float[np.ndarray, " _"]]) -> Float[np.ndarray, " n"]:
    """The median loss at every place of an epoch, of those epochs that are as long as the last one."""
    alike = np.stack([losses for losses in epochs if len(losses) == len(epochs[-1])])
    return np.asarray(np.median(alike[:, np.isfinite(alike).all(0)], axis=0))


def level(losses: Float[np.ndarray, " n"], logs: bool) -> float:
    """Their mean, the geometric one where they are compared by their logs."""
    return float(np.exp(np.log(losses).mean()) if logs else losses.mean())
