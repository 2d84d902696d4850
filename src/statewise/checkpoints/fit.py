"""Whether the parameters of a checkpoint are those of a model: every name, every shape. Nothing is left as it was drawn."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from statewise.checkpoints.causes import likely_causes
from statewise.checkpoints.entry import MODEL_PREFIX
from statewise.checkpoints.foreign import belong_together

log = logging.getLogger(__name__)

SHOWN = 3
RESUME_ADVICE = "resume without the overrides that change the model or the data's columns, or start a new run"
RESTORE_ADVICE = "take a checkpoint that was written with this configuration, or train anew"


def refuse_other_shapes(path: Path, saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Compare the parameters of a checkpoint with those of the model that is to take them: all names, all shapes.

    Raises:
        ValueError: one line that names the first parameters that differ, with both shapes, and the likely cause.
    """
    tell_of_precision(fitted(saved, wanted, source=path), wanted, path)


def fitted(
    saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, source: Path | str, advice: str = RESUME_ADVICE
) -> dict[str, Tensor]:
    """The saved tensors under the names of a model that wants exactly these.

    Prefixes of wrappers and holders do not count. Another precision is taken as well: loading converts the values.

    Raises:
        ValueError: a name is missing or superfluous, or a shape is another one.
    """
    partners = belong_together(saved, wanted)
    found = {partner: saved[name] for name, partner in partners.items()}
    known = {name: found[name] for name in wanted if name in found}
    superfluous = {name: saved[name] for name in saved if name not in partners}
    faults = [
        f"{name} is {list(known[name].shape)} in the checkpoint and {list(tensor.shape)} in the model"
        for name, tensor in wanted.items()
        if name in known and known[name].shape != tensor.shape
    ]
    faults += [
        f"{name} is {_kind(known[name])} in the checkpoint and {_kind(tensor)} in the model"
        for name, tensor in wanted.items()
        if name in known and _kind(known[name]) != _kind(tensor)
    ]
    faults += [f"{name} is missing in the checkpoint" for name in wanted if name not in known]
    faults += [f"{name} is in the checkpoint but not in the model" for name in superfluous]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        shown = "; ".join(fault.replace(MODEL_PREFIX, "", 1) for fault in faults[:SHOWN])
        causes = "".join(f"; likely cause: {cause}" for cause in likely_causes({**superfluous, **known}, wanted))
        raise ValueError(f"{source} does not fit this model: {shown}{more}{causes}; {advice}")
    return known


def load_strictly(module: nn.Module, saved: Mapping[str, Tensor], *, source: Path | str) -> None:
    """Load all parameters of a module; it is not touched where one does not fit.

    Raises:
        ValueError: as `fitted`, or the module refuses the values.
    """
    wanted = module.state_dict()
    weights = fitted(saved, wanted, source=source, advice=RESTORE_ADVICE)
    tell_of_precision(weights, wanted, source)
    try:
        module.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"{source} does not fit this model: {lines[-1]}; {RESTORE_ADVICE}") from error


def _kind(tensor: Tensor) -> str:
    """What loading converts without a word, though the values mean something else."""
    return "complex" if tensor.is_complex() else "real" if tensor.is_floating_point() else "integer"


def tell_of_precision(known: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: Path | str) -> None:
    """One line for all parameters of which the precision changes: a result to the bit is not to be expected then."""
    changed: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
    for name, tensor in wanted.items():
        if tensor.is_floating_point() and known[name].dtype != tensor.dtype:
            changed.setdefault((known[name].dtype, tensor.dtype), []).append(name)
    for (before, after), names in changed.items():
        kept = torch.promote_types(before, after) == after
        what = "kept, in a wider type" if kept else "rounded"
        log.warning(
            "%s: %s of %s parameters are %s and the model is %s (hardware.precision): their values are %s, and what follows is "
            "not that of the run to the bit",
            source,
            len(names),
            len(wanted),
            str(before).removeprefix("torch."),
            str(after).removeprefix("torch."),
            what,
        )
