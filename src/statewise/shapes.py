"""Whether what a model gives has the shape of the targets. Compared, not broadcast: the loss of wrong pairs looks alive.

Symbols: b batch, s time steps, m targets.
"""

from collections.abc import Sequence

from torch import Tensor

AXES = ("batch", "time", "horizon", "target")


def shaped_like_targets(y: Tensor, targets: Tensor, *, horizon: int, names: Sequence[str], supervision: str) -> Tensor:
    """The output of a model, ``[b, s, horizon * m]``, as ``[b, s, horizon, m]``.

    Raises:
        ValueError: it is not of the shape of the targets; the message names the settings that disagree.
    """
    m = len(names)
    if y.ndim != 3 or y.shape[-1] != horizon * m:
        raise ValueError(
            f"the model's output has shape {list(y.shape)}, data.horizon={horizon} and {m} data.targets need "
            f"[batch, time, {horizon * m}]: the model must be built with n_outputs = horizon x targets"
        )
    prediction = y.reshape(*y.shape[:2], horizon, m)
    if prediction.shape != targets.shape:
        reasons = {
            "batch": "the data module's inputs and targets are not of the same windows",
            "time": f"data.supervision and task.supervision={supervision} disagree",
            "horizon": f"data.horizon and the task's horizon={horizon} disagree",
            "target": f"data.targets and the task's targets ({', '.join(names)}) disagree",
        }
        reason = f"data.supervision and task.supervision={supervision} disagree, or the batches are malformed"
        if targets.ndim == prediction.ndim:
            sizes = zip(AXES, prediction.shape, targets.shape, strict=True)
            reason = reasons[next(axis for axis, ours, theirs in sizes if ours != theirs)]
        raise ValueError(
            f"the prediction has shape {list(prediction.shape)} (batch, time, horizon, target), the targets "
            f"{list(targets.shape)}: {reason}"
        )
    return prediction
