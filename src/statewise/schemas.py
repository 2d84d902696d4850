"""Typed configuration schemas: of the settings that are none of our constructors' arguments, and of the rest from those.

Every file of ``conf/`` begins with ``defaults: [/schema/<group>/<name>@_here_, _self_]``. The schema behind it stands here or
is made from the signature of the constructor (signatures.py), so that a misspelt key or a value of a wrong type is refused
when the configuration is composed.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from statewise.signatures import schema_of

# The constructors behind conf/<group>/<name>.yaml, and the arguments that the wiring passes instead of the configuration.
CONSTRUCTORS: dict[str, str] = {
    "data/air_quality": "statewise.data.datasets.AirQuality",
    "data/file": "statewise.data.datasets.File",
    "data/lti": "statewise.data.datasets.LTI",
    "data/market": "statewise.data.datasets.Market",
    "data/sample_and_hold": "statewise.data.datasets.SampleAndHold",
    "model/dense_ssm": "statewise.models.dense_ssm.dense_ssm",
    "model/diagonal_ssm": "statewise.models.diagonal_ssm.diagonal_ssm",
    "model/gru": "statewise.models.gru.gru",
    "model/mamba2": "statewise.models.mamba2.mamba2",
    "model/nlinear": "statewise.models.nlinear.nlinear",
    "optimizer/adam": "statewise.optim.adam",
    "optimizer/adamw": "statewise.optim.adamw",
    "scheduler/constant": "statewise.schedules.constant",
    "scheduler/cosine": "statewise.schedules.cosine",
    "scheduler/onecycle": "statewise.schedules.onecycle",
    "scheduler/warmup_cosine": "statewise.schedules.warmup_cosine",
    "fault/delta_as_number": "statewise.faults.delta_as_number",
    "fault/detach_input": "statewise.faults.detach_input",
    "fault/detached_loss": "statewise.faults.detached_loss",
    "fault/frozen_A": "statewise.faults.frozen_A",
    "fault/gradients_dropped": "statewise.faults.gradients_dropped",
    "fault/layers_in_a_list": "statewise.faults.layers_in_a_list",
    "fault/plain_A": "statewise.faults.plain_A",
    "fault/rounded_loss": "statewise.faults.rounded_loss",
    "fault/stuck_schedule": "statewise.faults.stuck_schedule",
    "fault/swallowed_updates": "statewise.faults.swallowed_updates",
    "fault/wrong_key": "statewise.faults.wrong_key",
    "fault/written_back_A": "statewise.faults.written_back_A",
    "callbacks/gradient_norms": "statewise.callbacks.gradient_norms.GradientNorms",
    "callbacks/spectral_projection": "statewise.callbacks.spectral_projection.SpectralProjection",
    "callbacks/training_health": "statewise.callbacks.training_health.TrainingHealth",
    "callbacks/dashboard": "statewise.callbacks.dashboard.Dashboard",
    "callbacks/epoch_borders": "statewise.callbacks.epoch_borders.EpochBorders",
}
PASSED_BY_THE_WIRING: dict[str, frozenset[str]] = {
    "model": frozenset({"n_features", "n_outputs", "horizon", "target_inputs", "targets_are_levels"}),
    "optimizer": frozenset({"groups"}),
    "scheduler": frozenset({"optimizer", "total_steps"}),
    "fault": frozenset({"task"}),
    # The node health.
    "callbacks/training_health": frozenset({"policy", "frozen", "constants", "conditional", "causal", "stop_at"}),
}
# Made in two steps: first the configured arguments, then ours.
CALLED_LATER = frozenset({"model", "optimizer", "scheduler", "fault"})


@dataclass
class Task:
    """Arguments of `statewise.task.Forecasting` that a user chooses."""

    loss: str = "mse"
    supervision: str = "last"
    burn_in: int = 0


@dataclass
class Evaluate:
    """What forecasts of returns would have earned: `statewise.trading.Trading`."""

    cost: float | None = None
    position: str = "sign"
    periods_per_year: float | None = None


@dataclass
class Hardware:
    """Where and how precisely a run computes: `lightning.Trainer`'s arguments of the same names.

    timeout: seconds that processes of one run wait for one another before they give up.
    """

    accelerator: str = "cpu"
    devices: Any = 1
    num_nodes: int = 1
    strategy: str = "auto"
    timeout: int = 1800
    precision: str = "64-true"
    threads: int | None = None


@dataclass
class TrainerLimits:
    """How long and in what steps a run trains: `lightning.Trainer`'s arguments, and two ways to stop early."""

    max_epochs: int = 12
    gradient_clip_val: float | None = 1.0
    accumulate_grad_batches: int = 1
    limit_train_batches: Any = None
    limit_val_batches: Any = None
    val_check_interval: Any = None
    log_every_n_steps: int = 50
    checkpoint_every_n_steps: int | None = None
    stop_after_steps: int | None = None
    stop_after_epochs: int | None = None


@dataclass
class Health:
    """What training health does with a finding, and what the user declares as intended (patterns of parameter names)."""

    policy: str = "error"
    frozen: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    conditional: list[str] = field(default_factory=list)
    causal: list[str] = field(default_factory=list)
    stop_at: str = "error"


@dataclass
class Mlflow:
    """Where MLflow keeps the runs, a SQLite file, and under which experiment."""

    store: str = "outputs/mlflow.db"
    experiment: str = "statewise"


@dataclass
class Wandb:
    """The project of Weights & Biases that an offline run belongs to."""

    project: str = "statewise"


@dataclass
class Logger:
    """Where metrics go beside metrics.csv; None: not there."""

    tensorboard: bool = True
    mlflow: Mlflow | None = None
    wandb: Wandb | None = None


@dataclass
class SubprocessLauncher:
    """How many jobs of a sweep run at once, and how many seconds each may take (None: any)."""

    n_jobs: int = 1
    timeout: float | None = None


@dataclass
class BasicLauncher:
    """Jobs one after another in one process: nothing to choose."""


@dataclass
class QueueLauncher:
    """Jobs in submitit's hands; `cluster` is submitit's word for the kind of queue, the others are SLURM's own."""

    cluster: str = "local"
    n_jobs: int | None = None
    timeout: float | None = None
    restarts: int = 0
    tasks_per_node: int = 1
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None


@dataclass
class SlurmLauncher(QueueLauncher):
    """What a SLURM cluster asks of a job; None is left to the cluster."""

    cluster: str = "slurm"
    nodes: int = 1
    mem_gb: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    setup: list[str] = field(default_factory=list)
    additional_parameters: Any = None


@dataclass
class Grid:
    """Every combination of the listed values, and further jobs, each a string of overrides; `resume` is a sweep's folder."""

    resume: str | None = None
    also: list[str] = field(default_factory=list)


@dataclass
class Search:
    """So many trials of a sampler in a space of intervals and choices; `resume` is a search's folder."""

    resume: str | None = None
    n_trials: int = 10
    sampler: Any = MISSING
    params: dict[str, str] = field(default_factory=dict)


@dataclass
class Train:
    """The whole configuration; the nodes of type Any are filled by their groups, each with its own schema."""

    task: Task = field(default_factory=Task)
    evaluate: Evaluate = field(default_factory=Evaluate)
    data: Any = MISSING
    model: Any = MISSING
    optimizer: Any = MISSING
    scheduler: Any = MISSING
    hardware: Any = MISSING
    trainer: Any = MISSING
    callbacks: Any = MISSING
    health: Any = MISSING
    logger: Any = MISSING
    fault: Any = None
    launcher: Any = MISSING
    sweep: Any = MISSING
    seed: int = 0
    objective: str = "val/mse"
    report: bool = True
    resume: str | None = None


OF_SWEEPS: dict[str, type] = {
    "launcher/subprocess": SubprocessLauncher,
    "launcher/basic": BasicLauncher,
    "launcher/submitit_local": QueueLauncher,
    "launcher/slurm": SlurmLauncher,
    "sweep/grid": Grid,
    "sweep/optuna": Search,
}
# Ours among Hydra's launchers and sweepers, by the names that Hydra finds them by: sweeps/plugins.py puts them there.
PLUGIN_MODULE = "hydra_plugins.statewise"
HYDRA_PLUGINS = {
    "launcher": {"subprocess": "SubprocessLauncher", "queue": "QueueLauncher"},
    "sweeper": {"grid": "GridSweeper", "optuna": "OptunaSearch"},
}


def register() -> None:
    """Put every schema into Hydra's config store; calling it twice is harmless."""
    store = ConfigStore.instance()
    store.store(group="schema", name="train", node=Train, package="_global_")
    for name, node in {"hardware": Hardware, "trainer": TrainerLimits, "health": Health, "logger": Logger}.items():
        store.store(group="schema", name=name, node=node)
    for path, node in OF_SWEEPS.items():
        group, _, name = path.rpartition("/")
        store.store(group=f"schema/{group}", name=name, node=node)
    for group, plugins in HYDRA_PLUGINS.items():
        for name, plugin in plugins.items():
            store.store(group=f"hydra/{group}", name=f"statewise_{name}", node={"_target_": f"{PLUGIN_MODULE}.{plugin}"})
    for path, target in CONSTRUCTORS.items():
        group, _, name = path.partition("/")
        passed = PASSED_BY_THE_WIRING.get(path, PASSED_BY_THE_WIRING.get(group, frozenset()))
        schema = schema_of(target, passed, partial=group in CALLED_LATER)
        store.store(group=f"schema/{group}", name=name, node=schema)
