"""Which tensors shape the loss although they ask for no gradient: the non-parameter gradient probe."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from statewise.health.attributes import HiddenTensor
from statewise.health.probes.supervision import Seen, look
from statewise.health.probes.take import Take
from statewise.health.probes.trial import Trial, Twin

# Most tensors asked one by one, a forward pass each, where asking all at once fails.
_ALONE = 16

Candidates = Mapping[int, tuple[HiddenTensor, Tensor]]


@dataclass(frozen=True)
class Asked:
    """The hidden tensors that the loss has a gradient for, what it looks at, and the run of which copy showed it."""

    shaping: tuple[HiddenTensor, ...]
    seen: Seen
    take: Take
    twin: Twin


def ask(trial: Trial, step: str, candidates: Candidates, twin: Twin | None = None) -> Asked:
    """Run the step in the mode of the real one, every candidate asking for a gradient. twin: a copy that is as new.

    Raises:
        Exception: whatever the step raises.
    """
    try:
        return _shaping(trial, twin or trial.twin(), step, candidates)
    except RuntimeError:
        if not candidates:
            raise
    # Some tensors cannot ask for a gradient: what the forward pass writes into (a cache, a running average), or what an
    # operation takes as a constant (class weights). Leave them out, one by one if need be.
    twin = trial.twin()
    copies = {key: twin.memo[key] for key in candidates if isinstance(twin.memo.get(key), Tensor)}
    versions = {key: tensor._version for key, tensor in copies.items()}
    plain = _shaping(trial, twin, step, {})
    rest = {key: candidates[key] for key, tensor in copies.items() if tensor._version == versions[key]}
    alone = [{key: value} for key, value in list(rest.items())[:_ALONE]]
    unique: dict[int, HiddenTensor] = {}
    for asked in [rest, *alone]:
        try:
            unique |= {fact.key: fact for fact in _shaping(trial, trial.twin(), step, asked).shaping}
        except RuntimeError:
            continue
    return replace(plain, shaping=tuple(unique.values()))


def _shaping(trial: Trial, twin: Twin, step: str, candidates: Candidates) -> Asked:
    copies = {key: twin.memo.get(key) for key in candidates}
    asked = {key: tensor for key, tensor in copies.items() if isinstance(tensor, Tensor) and tensor.is_leaf}
    for tensor in asked.values():
        tensor.requires_grad_(True)
    take = trial.play(twin, watch=False)
    if take.error is not None:
        raise take.error
    gradients, seen = look(take, step, list(asked.values()), trial.batch)
    shaping = tuple(candidates[key][0] for key, grad in zip(asked, gradients, strict=False) if grad is not None)
    return Asked(shaping, seen, take, twin)
