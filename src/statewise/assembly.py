"""From a configuration to the objects it describes: data module, model, task, callbacks, trainer.

`statewise.train` puts them together to a run; `statewise.runs` uses the same functions to rebuild a model from its checkpoint.
"""

import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint, TQDMProgressBar
from omegaconf import DictConfig, OmegaConf
from torch import nn

from statewise.callbacks.dashboard import Dashboard
from statewise.callbacks.hparams_tab import overrides_of_this_job, shown
from statewise.callbacks.training_health import TrainingHealth
from statewise.carried import require_state
from statewise.checkpoints import AtomicCheckpointIO
from statewise.choices import at_least
from statewise.data.datamodule import WindowsDataModule
from statewise.data.form import Form
from statewise.faults import Injected, inject
from statewise.loggers import build_loggers
from statewise.optim import fused_allowed
from statewise.parallel.followers import Call
from statewise.parallel.lightning_loops import adapt
from statewise.parallel.sharding import precision_of
from statewise.parallel.strategies import refuse_processes, several, strategy_of
from statewise.task import Forecasting

log = logging.getLogger(__name__)

DTYPES = {"64-true": torch.float64}  # everything else keeps float32 weights and inputs


class Parts(NamedTuple):
    """What a run trains, before there is a trainer."""

    datamodule: WindowsDataModule
    task: Forecasting
    callbacks: dict[str, L.Callback]
    fault: Injected | None


def assemble(config: DictConfig) -> Parts:
    """Data, task and callbacks of a run, with the seed and the threads it asks for."""
    L.seed_everything(config.seed, verbose=False)
    if config.hardware.threads is not None:
        torch.set_num_threads(config.hardware.threads)
    datamodule = build_data(config)
    task = build_task(config, datamodule, build_model(config, datamodule))
    fault = None if config.fault is None else inject(instantiate(config.fault), task)
    return Parts(datamodule, task, build_callbacks(config), fault)


def build_data(config: DictConfig) -> WindowsDataModule:
    """The data module, set up: the table read, checked, split and scaled."""
    datamodule: WindowsDataModule = instantiate(config.data, _convert_="object")
    datamodule.dtype = DTYPES.get(config.hardware.precision, torch.float32)
    datamodule.setup()
    return datamodule


def build_model(config: DictConfig, data: WindowsDataModule | Form) -> nn.Module:
    """The model, in the precision of its weights; the data, or their form, say how wide it is."""
    dtype = DTYPES.get(config.hardware.precision, torch.float32)
    model: nn.Module = instantiate(config.model)(
        n_features=data.n_features,
        n_outputs=data.horizon * data.n_targets,
        horizon=data.horizon,
        target_inputs=data.target_inputs,
        targets_are_levels=data.targets_are_levels,
    )
    return model.to(dtype)


def build_task(config: DictConfig, datamodule: WindowsDataModule, model: nn.Module) -> Forecasting:
    """The LightningModule around the model."""
    if datamodule.sampling == "contiguous":
        require_state(model)
    options: dict[str, Any] = {}
    if not fused_allowed(config.hardware.precision, config.trainer.gradient_clip_val):
        options["fused"] = False
        log.info(
            "optimizer: the foreach form is used, because under %s Lightning refuses clipping with a fused one",
            config.hardware.precision,
        )
    return Forecasting(
        model,
        optimizer=instantiate(config.optimizer, **options),
        scheduler=instantiate(config.scheduler),
        target_names=datamodule.target_names,
        horizon=datamodule.horizon,
        supervision=config.task.supervision,
        burn_in=config.task.burn_in,
        loss=config.task.loss,
    )


def build_callbacks(config: DictConfig) -> dict[str, L.Callback]:
    """The callbacks that the configuration names; training_health is given the node health, the dashboard everything."""
    callbacks: dict[str, Any] = {}
    for name, node in (config.callbacks or {}).items():
        options: Any = OmegaConf.to_container(config.health) if name == "training_health" else {}
        callbacks[str(name)] = instantiate(node, **options, _convert_="object")
        if isinstance(callbacks[str(name)], Dashboard):
            plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
            callbacks[str(name)].hyperparameters = shown(plain, overrides_of_this_job())
    if "training_health" not in callbacks:
        callbacks["training_health"] = TrainingHealth(policy="off")
    return callbacks


def build_trainer(
    config: DictConfig,
    folder: Path,
    callbacks: Iterable[L.Callback],
    datamodule: WindowsDataModule,
    follow: Call | None = None,
) -> L.Trainer:
    """Lightning's trainer with the run folder as the only place that is written to.

    follow: what further processes of this run are to do, where this one starts them.
    """
    hardware, limits = config.hardware, config.trainer
    refuse_missing_hardware(hardware.accelerator, hardware.precision)
    precision, precision_plugins = precision_of(hardware)
    at_least(
        1,
        trainer__max_epochs=limits.max_epochs,
        trainer__accumulate_grad_batches=limits.accumulate_grad_batches,
        trainer__log_every_n_steps=limits.log_every_n_steps,
    )
    if limits.gradient_clip_val is not None and not limits.gradient_clip_val > 0:
        raise ValueError(f"trainer.gradient_clip_val must be above 0, or null for no clipping, got {limits.gradient_clip_val}")
    callbacks = list(callbacks)
    interactive = sys.stderr.isatty()
    trainer = make_trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.num_nodes,
        strategy=strategy_of(hardware, follow),
        precision=precision,
        max_epochs=limits.max_epochs,
        gradient_clip_val=limits.gradient_clip_val,
        accumulate_grad_batches=limits.accumulate_grad_batches,
        limit_train_batches=limits.limit_train_batches,
        limit_val_batches=limits.limit_val_batches,
        val_check_interval=limits.val_check_interval,
        log_every_n_steps=min(limits.log_every_n_steps, _batches(limits.limit_train_batches, datamodule)),
        callbacks=[*callbacks, *([TQDMProgressBar()] if interactive else [])],
        logger=build_loggers(config, folder),
        plugins=[AtomicCheckpointIO(), *precision_plugins],
        default_root_dir=folder,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the data module's own sampler knows its place in the run
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=interactive,
        enable_model_summary=False,  # training health prints a table that says more
    )
    if several(hardware):
        streams = datamodule.prepared.streams
        refuse_processes(trainer, datamodule.batch_size, None if streams is None else streams.width)
        adapt(trainer)
    return trainer


def _batches(limit: int | float | None, datamodule: WindowsDataModule) -> int:
    """Batches in an epoch: what is logged every so many steps should be logged at least once in each."""
    batches = datamodule.n_training_batches
    if limit is not None:
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)  # as Lightning reads it
    if batches < 1:
        raise ValueError(f"trainer.limit_train_batches={limit} leaves no batch to train on; use null for all of them")
    return batches


def refuse_missing_hardware(accelerator: str, precision: str) -> None:
    """Refuse what this machine cannot do, or would do differently without a word.

    Raises:
        ValueError: a GPU was asked for where there is none, or float16 on a CPU, where Lightning computes in bfloat16 instead.
    """
    if accelerator in {"gpu", "cuda"} and not torch.cuda.is_available():
        raise ValueError(f"hardware.accelerator={accelerator}: PyTorch sees no CUDA device here; use hardware=cpu")
    if accelerator == "cpu" and str(precision) in {"16-mixed", "16", "16-true"}:
        raise ValueError(f"hardware.precision={precision} does not exist on a CPU; use bf16-mixed, 32-true or 64-true")


def make_trainer(**options: Any) -> L.Trainer:
    """Lightning's trainer; what it objects to is a ValueError."""
    try:
        return L.Trainer(**options)
    except (MisconfigurationException, RuntimeError) as error:  # the latter about what SLURM started
        raise ValueError(f"hardware or trainer: {error}") from error
