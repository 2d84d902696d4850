"""Where the metrics of a run go: always into metrics.csv with all digits, and to TensorBoard, MLflow or Weights & Biases.

TensorBoard keeps float32. The other two keep float64, and are extras: nothing of them is imported before it is asked for.
None of the three speaks to a network.
"""

import importlib.util
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from statewise.callbacks.hparams_tab import overrides_of_this_job, shown
from statewise.metrics_file import MetricsFile
from statewise.parallel.ranks import environment_rank

FLUSH_SECONDS = 10  # what a run that is killed may lose of its curves
LOCKED_SECONDS = 120  # how long a job waits for the others of its sweep before their common store


class Events(TensorBoardLogger):
    """TensorBoard's events, without the number of the epoch that Lightning logs beside every metric: a chart of a staircase."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)


def build_loggers(config: DictConfig, folder: Path) -> list[Logger]:
    """The loggers that the configuration asks for. They write into the run folder; MLflow's store is common to all runs.

    Raises:
        ValueError: the package behind one of them is not installed.
    """
    for name in ("mlflow", "wandb"):
        if config.logger[name] is not None and importlib.util.find_spec(name) is None:
            raise ValueError(f"logger={name} needs a package that is not installed: pip install 'statewise[{name}]'")
    csv = MetricsFile(folder, name="", version="")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")  # it is our own, new folder
        _ = csv.experiment
    loggers: list[Logger] = [csv]
    if config.logger.tensorboard:
        loggers.append(Events(folder, name="", version="", default_hp_metric=False, flush_secs=FLUSH_SECONDS))
    if environment_rank() == 0:
        settings = shown(OmegaConf.to_container(config, resolve=True), overrides_of_this_job())  # type: ignore[arg-type]
        if config.logger.mlflow is not None:
            loggers.append(_mlflow(config.logger.mlflow, folder, settings))
        if config.logger.wandb is not None:
            loggers.append(_wandb(config.logger.wandb, folder, settings))
    return loggers


def finish(loggers: Iterable[Logger], *, succeeded: bool) -> None:
    """Close what Lightning leaves open: the next run of this process would go on in the same run of W&B."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=0 if succeeded else 1)


def _mlflow(options: DictConfig, folder: Path, settings: Mapping[str, Any]) -> MLFlowLogger:
    """A run in the store. Its tables and its experiment are made under a lock: the jobs of a sweep begin in the same second."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from filelock import FileLock
    from mlflow.tracking import MlflowClient

    store = Path(options.store).absolute()
    store.parent.mkdir(parents=True, exist_ok=True)
    address = f"sqlite:///{store}?timeout={LOCKED_SECONDS}"
    with FileLock(f"{store}.lock", timeout=LOCKED_SECONDS):
        client = MlflowClient(address)
        if client.get_experiment_by_name(options.experiment) is None:
            artifacts = store.with_name(f"{store.stem}_artifacts")
            client.create_experiment(options.experiment, artifact_location=artifacts.as_uri())
    logger = MLFlowLogger(options.experiment, _name(folder), tracking_uri=address, tags={"folder": str(folder)})
    logger.log_hyperparams(dict(settings))
    return logger


def _wandb(options: DictConfig, folder: Path, settings: Mapping[str, Any]) -> WandbLogger:
    """An offline run in wandb/ of the run folder; ``wandb sync`` sends it, when and if somebody wants that."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    run = wandb.init(
        project=options.project,
        name=_name(folder),
        dir=str(folder),
        mode="offline",
        config=dict(settings),
        settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True),
    )
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run)


def _name(folder: Path) -> str:
    return "/".join(folder.parts[-2:])
