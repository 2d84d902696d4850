"""Continuing a run: the parent's configuration, then this command's overrides."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import LightningDataModule, LightningModule
from omegaconf import DictConfig, OmegaConf

from statewise.attempts import ended_well
from statewise.callbacks.checkpoints import BestAndLast
from statewise.checkpoints import ENTRY, find_checkpoint, read_checkpoint, refuse_other_shapes
from statewise.parallel.ranks import environment_rank
from statewise.runs import CHECKPOINTS, remove_partial_files

log = logging.getLogger(__name__)

KEY = "resume"
NOT_INHERITED = (KEY, "trainer.stop_after_steps", "trainer.stop_after_epochs")  # they are about one run, not about the plan


def with_parents_overrides(arguments: Sequence[str], folder: Path) -> list[str]:
    """The command line of a run that continues another one: the parent's overrides first, where this one has none.

    Args:
        arguments: this command's.
        folder: what a relative ``resume=`` means.

    Raises:
        FileNotFoundError, ValueError: there is no such checkpoint, or it cannot be read.
    """
    place = next((argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] == KEY), "")
    if place in {"", "null"}:
        return list(arguments)
    parent = read_checkpoint(find_checkpoint(place, folder))[ENTRY]["overrides"]
    own = {_key(argument) for argument in arguments} | set(NOT_INHERITED)
    return [*(override for override in parent if _key(override) not in own), *arguments]


def with_parents_values(config: DictConfig, parent: Mapping[str, Any], own: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Set every value of `config` that this command does not override to the parent's, in place.

    Composing the parent's overrides again gives the parent's values unless a default has changed since, or a path was
    relative to another folder.

    Returns:
        The values this command changes: key -> (parent's, now).
    """
    keys = [_key(override) for override in own]
    now, before = _leaves(OmegaConf.to_container(config, resolve=True)), _leaves(parent)
    changed = {}
    for key, value in before.items():
        if key in NOT_INHERITED or key not in now or now[key] == value:
            continue
        if any(key == override or key.startswith(f"{override}.") for override in keys):
            changed[key] = (value, now[key])
        else:
            OmegaConf.update(config, key, value)
    return changed


def refuse_without_effect(key: str, before: Any, now: Any) -> None:
    """Refuse a changed value that the checkpoint would undo in silence.

    Raises:
        ValueError: it is one of the optimizer's, whose state goes on with its own.
    """
    if key.startswith("optimizer."):
        raise ValueError(
            f"{key}={now} would have no effect: a resumed run goes on with the optimizer of its checkpoint, where it is "
            f"{before}; leave it out, or begin a new run"
        )


def refuse_resume(config: DictConfig, checkpoint: Mapping[str, Any], task: LightningModule, data: LightningDataModule) -> None:
    """Say what cannot be continued before anything is trained, and what will not be exact.

    Raises:
        ValueError: the model has other parameters than the checkpoint, there is nothing left to train, or the checkpoint was
            written after Lightning had closed an epoch that was not finished.
    """
    refuse_other_shapes(Path(config.resume), checkpoint["state_dict"], task.state_dict())
    if "loops" not in checkpoint:
        raise ValueError(
            f"{config.resume} holds a model without the state of its training (imported, or migrated from weights alone): it "
            "can predict and be evaluated, but there is nothing to resume"
        )
    planned = checkpoint[ENTRY]["config"]["trainer"]["max_epochs"]
    done = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    if done >= config.trainer.max_epochs and not _broken_off(run_folder_of(Path(config.resume))):
        raise ValueError(
            f"{config.resume} has been trained for {done} epochs already and trainer.max_epochs is "
            f"{config.trainer.max_epochs}: nothing is left to train; give a larger trainer.max_epochs"
        )
    if done >= config.trainer.max_epochs:
        log.info("resume: all %s epochs are trained, the test is what is left", done)
    position = checkpoint[type(data).__qualname__]["position"]
    if position["epoch"] != done:  # Lightning would go on with the next epoch in silence
        raise ValueError(
            f"{config.resume} was written after batch {position['batch']} of epoch {position['epoch'] + 1}, but counts that "
            "epoch as finished: the rest of it would be skipped; use a last.ckpt that a run of statewise has written"
        )
    if config.trainer.max_epochs != planned:
        log.warning(
            "resume: the schedule is planned anew over %s epochs instead of %s: the result will not be bit-equal to that of a "
            "run planned so from its start",
            config.trainer.max_epochs,
            planned,
        )


def begin_where_it_was(parent: Path, checkpoint: Mapping[str, Any], checkpoints: BestAndLast) -> None:
    """Give the new run folder the checkpoints it goes on from, and clear away what a killed parent left half-written."""
    writes = environment_rank() == 0
    checkpoints.take_over(parent, checkpoint, writes=writes)
    if not writes:
        return
    for path in remove_partial_files(run_folder_of(parent)):
        log.info("resume: removed %s, which was never completed", path)


def run_folder_of(checkpoint: Path) -> Path:
    """The run that wrote a checkpoint: the folder above `checkpoints`, or the file's own."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint.parent


def _broken_off(folder: Path) -> bool:
    return (folder / ".hydra").is_dir() and not ended_well(folder)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").replace("/", ".")


def _leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {prefix: node}
    return {
        key: value
        for name, child in node.items()
        for key, value in _leaves(child, f"{prefix}.{name}" if prefix else str(name)).items()
    }
