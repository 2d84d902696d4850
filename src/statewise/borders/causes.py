"""Why the training loss jumps where an epoch begins, as far as it can be shown; and the sentences that say so.

A cause counts as shown by what was seen at the border, never by the look of the loss alone: the weights differ, the learning
rate is higher, a state that was carried is gone, or the losses follow the place in the epoch, epoch after epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statewise.borders.jumps import Comparison

CHANGED_WEIGHTS = "changed_weights"
RATE = "learning_rate_restart"
STATE = "state_reset"
ORDER = "order_of_data"
UNKNOWN = "no_cause_found"
CAUSES = {  # what people call them, the most direct first
    CHANGED_WEIGHTS: "changed weights",
    RATE: "learning-rate restart",
    STATE: "state reset",
    ORDER: "order of data",
    UNKNOWN: "no cause found",
}
# A weight that moved by less cannot raise a loss that anybody sees; a rate that rose by less is a warm-up.
LEAST_CHANGE, LEAST_RATIO = 1e-3, 1.2
# Standard deviations from which on two epochs have the same order, and those beside a jump that is beyond doubt.
SURE, LIKELY = 4.5, 3.0
MAX_NAMES = 3


@dataclass(frozen=True)
class Evidence:
    """What was seen at one border beside the losses."""

    rate_before: float = 0.0  # of the parameter group whose rate rises most
    rate_after: float = 0.0
    changed: tuple[tuple[str, float], ...] = ()  # parameters and by how much of their size they differ, largest first
    between_batches: float = 0.0  # the same inside an epoch, from one batch to the next
    state: str = ""  # the name of a state that is carried from batch to batch
    forgotten: str = ""  # how: "gone", "zero"; empty where it was not seen to be
    memory: str = ""  # the optimizer whose memory begins anew
    order: float = 0.0  # how surely the epochs have the same order, in standard deviations
    recovers: int | None = None  # batches after which the loss is back


def shown(evidence: Evidence, *, strong: bool) -> tuple[str, ...]:
    """The causes that the evidence shows, the most direct first; UNKNOWN alone where there is none."""
    causes = []
    if weights_changed(evidence):
        causes.append(CHANGED_WEIGHTS)
    if rate_rose(evidence):
        causes.append(RATE)
    anew = bool(evidence.forgotten or evidence.memory)
    if evidence.recovers is not None and (anew or (evidence.state and not causes)):
        causes.append(STATE)
    if evidence.order >= (LIKELY if strong else SURE) and not (causes and evidence.recovers is not None):
        causes.append(ORDER)
    return tuple(causes) or (UNKNOWN,)


def weights_changed(evidence: Evidence) -> bool:
    """Whether somebody wrote into the weights at the border and does not do so after every batch."""
    largest = evidence.changed[0][1] if evidence.changed else 0.0
    return largest >= LEAST_CHANGE and evidence.between_batches < 0.25 * largest


def rate_rose(evidence: Evidence) -> bool:
    return evidence.rate_after >= LEAST_RATIO * evidence.rate_before > 0 or evidence.rate_after > evidence.rate_before == 0


def reason(cause: str, evidence: Evidence) -> str:
    """The end of the sentence: what was seen."""
    if cause == CHANGED_WEIGHTS:
        named = ", ".join(f"{name} by {100 * size:.2g} %" for name, size in evidence.changed[:MAX_NAMES])
        more = f" and {len(evidence.changed) - MAX_NAMES} more" if len(evidence.changed) > MAX_NAMES else ""
        return (
            f"the weights are not those with which the epoch before ended ({named}{more}): something rewrites them in between, "
            "such as a callback at the end of an epoch"
        )
    if cause == RATE:
        return f"the learning rate goes up there, from {evidence.rate_before:.3g} to {evidence.rate_after:.3g}: a restart"
    if cause == STATE:
        return _state(evidence)
    if cause == ORDER:
        return (
            "the loss follows the place in the epoch, in every epoch alike: the batches come in the same order each time, and "
            "those at its beginning are unlike those at its end"
        )
    back = f"; the loss is back after {_batches(evidence.recovers)}" if evidence.recovers is not None else ""
    return (
        "no cause was found: neither the weights nor the learning rate change there, no state is known that is forgotten, and "
        f"the batches do not come in one and the same order{back}"
    )


def _state(evidence: Evidence) -> str:
    back = f"the first batches are worse, the loss is back after {_batches(evidence.recovers)}"
    if evidence.forgotten:
        how = {"gone": "is forgotten", "zero": "begins with zeros"}[evidence.forgotten]
        name = (
            "the carried state"
            if evidence.state == "carried"
            else f"the state `{evidence.state}`, carried from batch to batch,"
        )
        return f"{name} {how} there: {back}"
    if evidence.memory:
        return f"the memory of the optimizer ({evidence.memory}) begins anew there: {back}"
    return (
        f"a state `{evidence.state}` is carried from batch to batch, and there it does not fit (it begins anew inside the "
        f"step, or the data go back to their beginning and it does not): {back}"
    )


def said(epoch: int, found: Comparison, logs: bool, levels: tuple[float, float], recurring: int) -> str:
    """The beginning of the sentence: what the loss does at the border before `epoch`, counted from 1."""
    before, after = levels
    first = "first batch lies" if found.scale == 1 else f"first {found.scale} batches lie"
    often = f", as at {recurring} borders before it" if recurring else ""
    return (
        f"the training loss jumps where epoch {epoch} begins{often}: the {first} {_how_far(before, after, logs)} the end "
        f"of epoch {epoch - 1} ({before:.4g} → {after:.4g})"
    )


def _how_far(before: float, after: float, logs: bool) -> str:
    side = "above" if after > before else "below"
    if not logs:
        return side
    ratio = after / before
    return f"at {ratio:.3g} times" if ratio >= 2 else f"{100 * abs(ratio - 1):.2g} % {side}"


def in_one_sentence(judged: int, causes: Mapping[str, Mapping[str, Any]], jumps: int) -> str:
    """What the borders of a run come to."""
    if not judged:
        return "No border of epochs could be judged: that takes epochs of 4 batches or more, and more epochs if they are short."
    borders = f"{judged} {'border' if judged == 1 else 'borders'}"
    if not jumps:
        return f"No jump of the training loss at {borders} of epochs."
    parts = [f"{CAUSES[cause]} at {entry['borders']}" for cause, entry in causes.items()]
    return f"The training loss jumps at {jumps} of {borders} of epochs: {', '.join(parts)}."


def _batches(count: int | None) -> str:
    return "one batch" if count == 1 else f"{count} batches"
