"""Typed configuration schemas, read off the constructors that the YAML files name.

Every file of ``conf/`` begins with ``defaults: [/schema/<group>/<name>@_here_, _self_]``. The schema behind it is made here
from the signature of the constructor, so that a misspelt key or a value of a wrong type is refused when the configuration
is composed, and an argument is written down once: in the code that uses it.

Signatures are read from the source text (`ast`), not by importing: importing Lightning costs seconds, and a typo should be
told at once.
"""

import ast
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

PACKAGE = Path(__file__).parent

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


@cache
def schema_of(target: str, leave_out: frozenset[str] = frozenset(), *, partial: bool = False) -> type:
    """A dataclass with one typed field for each argument of the class or function `target`.

    An argument without a default becomes a mandatory value; ``**keywords`` continue in the base class, as they do in Python.
    """
    module, name = _Module.holding(target)
    fields: list[tuple[str, Any, Any]] = [("_target_", str, field(default=target))]
    if partial:
        fields.append(("_partial_", bool, field(default=True)))
    for argument, (holder, annotation, default) in _arguments(module, name).items():
        if argument not in leave_out:
            fields.append((argument, *_field(holder, annotation, default)))
    return make_dataclass(name, fields)


@dataclass(frozen=True)
class _Module:
    """The source of one module of this package."""

    name: str
    tree: ast.Module

    @classmethod
    @cache
    def load(cls, name: str) -> "_Module":
        path = PACKAGE.joinpath(*name.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return cls(name, ast.parse(path.read_text(encoding="utf-8")))

    @classmethod
    def holding(cls, target: str) -> "tuple[_Module, str]":
        module, _, name = target.rpartition(".")
        return cls.load(module), name

    def definition(self, name: str) -> "tuple[_Module, ast.ClassDef | ast.FunctionDef]":
        """The class or function of that name, here or where it is imported from."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return self, node
        module, original = self._imported(name)
        return module.definition(original)

    def constant(self, expression: ast.expr) -> Any:
        """The value of a literal, or of a constant that is one, here or where it is imported from."""
        if not isinstance(expression, ast.Name):
            return ast.literal_eval(expression)
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == expression.id for target in targets):
                return self.constant(node.value)  # type: ignore[attr-defined]
        module, name = self._imported(expression.id)
        return module.constant(ast.Name(id=name))

    def knows(self, name: str) -> bool:
        """Whether a name of this module is defined in this package."""
        try:
            self.definition(name)
        except LookupError:
            return False
        return True

    def _imported(self, name: str) -> "tuple[_Module, str]":
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statewise"):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _Module.load(str(node.module)), alias.name
        raise LookupError(f"{self.name} neither defines nor imports {name}")


Argument = tuple[_Module, ast.expr | None, ast.expr | None]  # where it stands, annotation, default


def _arguments(module: _Module, name: str) -> dict[str, Argument]:
    """The arguments of a function, of a dataclass, or of a class's constructor with those of its bases that ** stands for."""
    module, node = module.definition(name)
    if isinstance(node, ast.FunctionDef):
        return _signature(module, node)
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if init is None and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return {
            item.target.id: (module, item.annotation, item.value)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
    own = _signature(module, init) if init else {}
    if init is None or init.args.kwarg is not None:
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        for base in bases:
            own = {**own, **{key: value for key, value in _arguments(module, base).items() if key not in own}}
    return own


def _signature(module: _Module, function: ast.FunctionDef) -> dict[str, Argument]:
    arguments = function.args
    positional = [argument for argument in arguments.posonlyargs + arguments.args if argument.arg not in {"self", "cls"}]
    missing = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*missing, *arguments.defaults], strict=False)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: (module, argument.annotation, default) for argument, default in pairs}


def _field(module: _Module, annotation: ast.expr | None, default: ast.expr | None) -> tuple[Any, Any]:
    if annotation is None:
        raise TypeError(f"an argument in {module.name} has no annotation: no schema can be made of it")
    kind = _type(module, annotation)
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
        return kind, field(default_factory=kind)
    if default is None:
        return kind, field(default=MISSING)
    value = module.constant(default)
    if isinstance(value, list | tuple | dict):
        plain = list(value) if isinstance(value, tuple) else value
        return kind, field(default_factory=lambda: plain.copy())
    return kind, field(default=value)


_PLAIN: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "Any": Any, "list": list, "dict": dict}


def _type(module: _Module, annotation: ast.expr) -> Any:
    """The type that OmegaConf checks for an annotation: what it cannot express, the constructor checks itself."""
    match annotation:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return _type(module, ast.parse(text, mode="eval").body)
        case ast.Name(id=name) if name in _PLAIN:
            return _PLAIN[name]
        case ast.Name(id=name) if module.knows(name):
            holder, _ = module.definition(name)
            return schema_of(f"{holder.name}.{name}")
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(module, left) | _type(module, right)
        case ast.Subscript(value=ast.Name(id="list" | "Sequence" | "tuple"), slice=item):
            first = item.elts[0] if isinstance(item, ast.Tuple) else item
            return list[_type(module, first)]  # type: ignore[misc]
        case ast.Subscript(value=ast.Name(id="Literal")):
            return str
    return Any
