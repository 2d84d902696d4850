"""However a fit is driven, a healthy one is left in peace, and a fault in it is named."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.callbacks.weight_averaging import EMAWeightAveraging
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.training_health import TrainingHealth
from statewise.health import Finding, Severity
from statewise.health.announcer import Announcer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*tensorboardX.*"),
    pytest.mark.filterwarnings("ignore:.*GPU available.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches.*"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed.*"),
    # torch.compile looks at every tensor's .grad; a re-entrant checkpoint in validation has nothing to differentiate.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
]


class Plain(L.LightningModule):
    """Three linear layers over [batch, 3]; each engine below replaces a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(3, 8)
        self.core = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.core(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(torch.tanh(self.inp(x))))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", F.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=1e-2)


class Memory(Plain):
    def configure_optimizers(self) -> Any:
        return LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Adversaries(Plain):
    """Manual optimisation: a critic, and what it judges, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()  # type: ignore[misc]
        fake = self(batch[0])
        second.zero_grad()
        real = F.softplus(-self.critic(batch[1])).mean()
        self.manual_backward(real + F.softplus(self.critic(fake.detach())).mean())
        second.step()
        first.zero_grad()
        self.manual_backward(F.softplus(-self.critic(fake)).mean() + F.mse_loss(fake, batch[1]))
        first.step()

    def configure_optimizers(self) -> Any:
        own = [*self.inp.parameters(), *self.core.parameters(), *self.head.parameters()]
        return [Adam(own, lr=1e-2), Adam(self.critic.parameters(), lr=1e-2)]


class Sharpness(Optimizer):
    """Sharpness-aware minimisation in two calls; only the optimizer within it takes a step that torch counts."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.inner = SGD(self.param_groups, lr=lr)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.state[parameter]["below"] = parameter.clone()
                parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            if "below" in self.state[parameter]:
                parameter.copy_(self.state[parameter]["below"])
        self.inner.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        raise RuntimeError("climb, then descend")


class SharpnessAware(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        self.manual_backward(F.mse_loss(self(batch[0]), batch[1]))
        optimizer.climb()  # type: ignore[union-attr]
        self.manual_backward(F.mse_loss(self(batch[0]), batch[1]))
        optimizer.descend()  # type: ignore[union-attr]

    def configure_optimizers(self) -> Any:
        return Sharpness(self.parameters(), lr=0.02)


class Compiled(Plain):
    """A part that is compiled in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.core = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), backend="eager", fullgraph=True)  # type: ignore[assignment]


class Checkpointed(Plain):
    reentrant = False

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(super().middle, h, use_reentrant=self.reentrant)


class Reentrant(Checkpointed):
    reentrant = True


class Tied(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(8, 8)
        self.again.weight = self.core.weight

    def middle(self, h: Tensor) -> Tensor:
        return torch.tanh(self.again(super().middle(h)))


class Parametrised(Plain):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.inp)
        parametrizations.orthogonal(self.core)
        parametrizations.spectral_norm(self.head)


class LowRank(nn.Module):
    """A frozen layer with a trainable correction that starts at zero."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / 3)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


class Adapted(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.core = LowRank(self.inp), LowRank(self.core)  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        return Adam([p for p in self.parameters() if p.requires_grad], lr=1e-2)


class Scaler:
    """As much of a GradScaler as a precision plugin shows."""

    def is_enabled(self) -> bool:
        return True


class Skips(Precision):
    """Mixed precision that finds infinities in the steps for which `skip` says so."""

    def __init__(self, skip: Callable[[int], bool]) -> None:
        self.scaler = Scaler()
        self.skip = skip
        self.count = 0

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
        result = closure()
        self._after_closure(model, optimizer)
        self.count += 1
        if not self.skip(self.count):
            optimizer.step(**kwargs)
        return result


def batches(rows: int = 64) -> DataLoader:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    y = x.sum(-1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(x, y), batch_size=8)


def fit(
    module: L.LightningModule,
    *callbacks: L.Callback,
    steps: int = 25,
    policy: str = "warn",
    checkpoint: Any = None,
    **trainer: Any,
) -> TrainingHealth:
    """A real, tiny fit with validation at each epoch of eight batches; the callback it was watched by."""
    health = TrainingHealth(policy=policy)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 1,
    }
    L.Trainer(**(settings | trainer), callbacks=[*callbacks, health]).fit(
        module, batches(), batches(8), ckpt_path=checkpoint, weights_only=True if checkpoint else None
    )
    return health


def warnings_of(health: TrainingHealth) -> list[str]:
    return [f"{f['id']}: {f['message']}" for f in health.report()["findings"] if f["severity"] != "info"]


ENGINES: dict[str, tuple[type[Plain], Callable[[], dict[str, Any]]]] = {
    "automatic": (Plain, dict),
    "accumulation": (Plain, lambda: {"accumulate_grad_batches": 3}),
    "L-BFGS": (Memory, dict),
    "two optimizers": (Adversaries, lambda: {"steps": 50}),
    "sharpness-aware past Lightning": (SharpnessAware, lambda: {"max_steps": -1, "max_epochs": 3}),
    "a scaler that skips now and then": (Plain, lambda: {"plugins": Skips(lambda count: count < 3 or count % 9 == 0)}),
    "compiled": (Compiled, dict),
    "checkpointing": (Checkpointed, dict),
    "re-entrant checkpointing": (Reentrant, dict),
    "tied weights": (Tied, dict),
    "parametrisations": (Parametrised, dict),
    "low-rank adapters": (Adapted, dict),
    "clipping in bfloat16": (Plain, lambda: {"precision": "bf16-mixed", "gradient_clip_val": 0.1}),
    "averaged weights in validation": (Plain, lambda: {"average": True}),
}


def drive(engine: str, change: Callable[[Plain], list[L.Callback]] = lambda module: []) -> TrainingHealth:
    make, arguments = ENGINES[engine]
    settings = arguments()
    average = [EMAWeightAveraging(decay=0.9)] if settings.pop("average", False) else []
    module = make()
    return fit(module, *average, *change(module), **settings)


def detach_core(module: Plain) -> list[L.Callback]:
    """Cut the graph in front of an inner layer."""
    module.core.register_forward_pre_hook(lambda part, args: (args[0].detach(),))
    return []


class WritesBack(L.Callback):
    """After every batch the head is what it was at the start."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.kept = {p: p.detach().clone() for p in module.head.parameters()}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter, value in self.kept.items():
            parameter.copy_(value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_healthy_fit_is_left_in_peace_however_it_is_driven(engine: str) -> None:
    health = drive(engine)
    assert warnings_of(health) == []
    assert all(update.ledger.steps >= 20 for update in health.monitor.updates if engine != "accumulation")


# Of two optimizers the one that is cut off has not stepped, the other may have; a re-entrant checkpoint hides its inside, so
# that only gradients that stay away are proof.
LATER = {"two optimizers": 1, "re-entrant checkpointing": 3}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_in_the_graph_is_named_before_the_first_update_however_the_fit_is_driven(engine: str) -> None:
    findings = drive(engine, detach_core).report()["findings"]
    errors = [finding for finding in findings if finding["severity"] == "error"]
    assert [(finding["id"], finding["step"]) for finding in errors] == [("graph-cut", LATER.get(engine, 0))]
    assert all(name.startswith("inp.") for name in errors[0]["parameters"])


@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_that_is_undone_is_named_however_the_fit_is_driven(engine: str) -> None:
    findings = drive(engine, lambda module: [WritesBack()]).report()["findings"]
    undone = [finding for finding in findings if finding["id"] in {"written-back", "step-without-effect"}]
    assert undone
    assert undone[0]["step"] <= (12 if engine == "two optimizers" else 6)
    assert all(name.startswith("head.") for finding in undone for name in finding["parameters"])


# -- loops with faults of their own -----------------------------------------------------------------------------------------


def test_a_scaler_that_skips_every_step_is_named() -> None:
    health = fit(Plain(), steps=30, plugins=Skips(lambda count: True))
    assert {finding.split(":")[0] for finding in warnings_of(health)} == {"steps-skipped"}


def test_a_second_optimizer_that_never_steps_is_named() -> None:
    class Forgets(Adversaries):
        def configure_optimizers(self) -> Any:
            first, second = super().configure_optimizers()
            second.step = lambda closure=None: closure() if closure else None
            return [first, second]

    findings = fit(Forgets(), steps=25).report()["findings"]
    named = {name for finding in findings if finding["severity"] != "info" for name in finding["parameters"]}
    assert named
    assert all(name.startswith("critic.") for name in named)


# -- resume -----------------------------------------------------------------------------------------------------------------


class SitsOut(Plain):
    """An expert that takes part in one batch of three, and after `last` in none."""

    last = 10**6

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(8, 8)
        self.calls = 0

    def middle(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        if self.calls % 3 == 1 and self.calls < self.last:
            h = h + self.expert(h)
        return super().middle(h)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["calls"] = self.calls

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.calls = checkpoint["calls"]


def test_a_resumed_fit_knows_what_the_interrupted_one_had_seen(tmp_path: Any) -> None:
    def keep(run: str) -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / run, save_on_train_epoch_end=True, save_top_k=-1, filename="{step}")

    whole = fit(SitsOut(), keep("whole"), steps=24, enable_checkpointing=True)
    middle = tmp_path / "whole" / "step=16.ckpt"
    rest = fit(SitsOut(), keep("rest"), steps=24, enable_checkpointing=True, checkpoint=middle)
    assert rest.monitor.setting.loaded
    assert warnings_of(rest) == []
    whole_state, rest_state = whole.state_dict(), rest.state_dict()
    assert rest_state["ledgers"] == whole_state["ledgers"]
    assert rest_state["observers"].keys() == whole_state["observers"].keys()


# -- what the loop is like --------------------------------------------------------------------------------------------------


class Scheduled(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 2}}


def test_what_is_planned_is_known_at_the_first_batch() -> None:
    setting = fit(Scheduled(), steps=-1, max_epochs=2, accumulate_grad_batches=3, precision="bf16-mixed").monitor.setting
    assert (setting.batches_per_epoch, setting.planned_epochs, setting.planned_steps) == (8, 2, 6)
    assert (setting.precision, setting.autocast, setting.accumulate) == ("bf16-mixed", torch.bfloat16, 3)
    assert [(s.optimizer, s.interval, s.frequency) for s in setting.schedules] == [(0, "step", 2)]
    assert (setting.overfit, setting.loaded, setting.world, setting.plain) == (False, False, 1, False)


def test_an_endless_run_plans_nothing_and_a_fixed_number_of_steps_is_a_plan() -> None:
    assert fit(Plain(), steps=5, max_epochs=-1).monitor.setting.planned_steps == 5
    assert fit(Plain(), steps=3, overfit_batches=1).monitor.setting.overfit


def test_three_findings_are_shown_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    findings = [
        Finding(f"kind-{number}", severity, 0, (f"p{number}",), "text", {})
        for number, severity in enumerate([Severity.WARNING] * 5 + [Severity.ERROR] * 4)
    ]
    announcer = Announcer("warn", "error", logging.getLogger("statewise.shown"))
    with caplog.at_level(logging.INFO, logger="statewise"):
        for finding in findings:
            announcer.say([finding])
        announcer.conclude({"verdict": "error", "findings": [f.as_dict() for f in findings], "checks": []}, 9, 5)
    shown = [record.levelname for record in caplog.records[:-1]]
    assert shown == ["WARNING"] * 3 + ["ERROR"] * 3
    assert "kind-0, kind-1, kind-2 and 6 more; 3 findings are in the report only" in caplog.messages[-1]


# -- two processes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which two processes left what they know, and what they printed."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, str(Path(__file__).with_name("two_processes.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def reports(folder: Path, case: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{case}.{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_find_nothing_in_a_healthy_fit(two_processes: tuple[Path, str]) -> None:
    assert [report["verdict"] for report in reports(two_processes[0], "healthy")] == ["healthy", "healthy"]


def test_unused_layers_are_named_with_their_reasons_by_both_of_two_processes(two_processes: tuple[Path, str]) -> None:
    folder, printed = two_processes
    first, second = reports(folder, "unused")
    assert first["findings"] == second["findings"]
    named = {finding["id"]: set(finding["parameters"]) for finding in first["findings"]}
    assert named == {"graph-cut": {"dropped.weight", "dropped.bias"}, "unused": {"never.weight", "never.bias"}}
    assert printed.count("graph-cut: ") == printed.count("unused: ") == 1


def test_a_fault_of_one_process_stops_both_at_the_same_step(two_processes: tuple[Path, str]) -> None:
    folder, printed = two_processes
    first, second = ((folder / f"one.{rank}.txt").read_text() for rank in (0, 1))
    assert first == second
    assert first.startswith("step 3, zero-learning-rate: ")
    assert printed.count("zero-learning-rate: ") == 1
