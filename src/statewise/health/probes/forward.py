"""The probes of a module whose forward pass is all that is known: a training loop of somebody's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from statewise.health.attributes import HiddenTensor
from statewise.health.probes import evaluation
from statewise.health.probes.causality import EarlierOutputs
from statewise.health.probes.reduction import Halves
from statewise.health.probes.stage import CannotRehearse, Stage
from statewise.health.probes.take import one_line
from statewise.health.probes.trial import Trial
from statewise.health.signals import Signal


def probe_forward(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    candidates: Mapping[int, tuple[HiddenTensor, Tensor]] | None = None,
    causal: Sequence[str] = (),
    stage: Stage | None = None,
) -> tuple[list[Signal], dict[type[Signal], str]]:
    """Ask a copy of `module` what its forward pass with these arguments can show, in evaluation mode.

    The module, its modes, its buffers and all random states are afterwards as before. Rows are taken to lie on the first
    axis of all tensors, unless they may as well lie on the second: then nothing is said about rows.

    Args:
        module: what the loop calls.
        args: its positional arguments, as they were at the call.
        kwargs: its keyword arguments.
        candidates: hidden tensors as `scan_attributes` finds them, to name a state that is sized by the batch.
        causal: paths of modules that are declared causal (`Declared.causal`).
        stage: autocast and objects that must not be copied; `stage.feed.batch_size` where the loop's batch size is known.

    Returns:
        Signals for the rules, and by kind of signal why something was not asked.
    """
    concerned = {*evaluation.KINDS} | ({EarlierOutputs} if causal else set())
    try:
        stage = stage or Stage()
        trial = Trial(module, (tuple(args), dict(kwargs)), stage)
        with trial.going_on():
            done = evaluation.evaluate(trial, candidates or {}, causal)
    except Exception as error:
        reason = str(error) if isinstance(error, CannotRehearse) else one_line(error)
        return [], dict.fromkeys(concerned, f"a trial of the forward pass on a copy failed: {reason}")
    done.unable.setdefault(Halves, "the loss of a loop of your own is not known before it is differentiated")
    return [signal for signal in done.signals if not isinstance(signal, Halves)], done.unable
