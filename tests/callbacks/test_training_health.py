"""Every fault of the origin, injected into a real fit, is named; healthy look-alikes are left in peace."""

import copy
import json
import logging
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth
from statewise.data.windows.batches import Batch
from statewise.health import UnhealthyTraining
from statewise.models.dense_ssm import dense_ssm
from statewise.task import Forecasting

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*training_step. returned .None.*"),
    pytest.mark.filterwarnings("ignore:.*tensorboardX.*"),
    pytest.mark.filterwarnings("ignore:.*GPU available.*"),
    pytest.mark.filterwarnings("ignore:.*configure_optimizers. returned .None.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches.*"),
]


class Foreign(L.LightningModule):
    """Three linear layers over [batch, time, 3]: not ours, and unaware of any contract."""

    lr = 1e-2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(3, 8)
        self.core = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.inp(x)))))

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=self.lr)


class Dense(Foreign):
    """Our forecaster with the origin's parameters A, B, C, delta, under a plain task."""

    def __init__(self) -> None:
        L.LightningModule.__init__(self)
        torch.manual_seed(0)
        self.model = dense_ssm(
            n_features=3,
            n_outputs=1,
            target_inputs=None,
            targets_are_levels=False,
            horizon=1,
            d_model=4,
            expand=2,
            d_state=4,
            n_layers=2,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0]


def batches(dtype: torch.dtype = torch.float32, rows: int = 32) -> DataLoader:
    x = torch.randn(rows, 6, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    return DataLoader(TensorDataset(x, x.cumsum(1).sum(-1, keepdim=True) / 4), batch_size=8)


def fit(
    module: L.LightningModule,
    *,
    steps: int = 8,
    policy: str = "warn",
    precision: str = "32-true",
    data: DataLoader | None = None,
    callbacks: tuple[L.Callback, ...] = (),
    trainer: dict[str, Any] | None = None,
    **health: Any,
) -> TrainingHealth:
    """A real, tiny fit; the callback it was watched by."""
    watch = TrainingHealth(policy=policy, **health)
    dtype = torch.float64 if precision == "64-true" else torch.float32
    data = data or batches(dtype)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "accelerator": "cpu",
        "precision": precision,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 1,
        "limit_val_batches": 1,
    }
    L.Trainer(**settings | (trainer or {}), callbacks=[watch, *callbacks]).fit(module, data, data)
    return watch


def serious(watch: TrainingHealth) -> list[dict[str, Any]]:
    return [finding for finding in watch.report()["findings"] if finding["severity"] != "info"]


def only(watch: TrainingHealth) -> dict[str, Any]:
    """The one finding of a run: symptoms are collapsed into their cause."""
    found = serious(watch)
    assert len(found) == 1, [(finding["id"], finding["parameters"]) for finding in found]
    return found[0]


# -- the faults of origin.md, in a module that is not ours and in the dense SSM -----------------------------------------


def wrap_forward(module: nn.Module, change: Callable[..., Any]) -> None:
    """Replace a module's forward by change(original, *args)."""
    original = module.forward
    module.forward = lambda *args, **kwargs: change(original, *args, **kwargs)  # type: ignore[method-assign]


def detach_core(module: Foreign) -> None:
    wrap_forward(module.core, lambda forward, x: forward(x.detach()))


def detach_ssm(module: Dense) -> None:
    wrap_forward(module.model.ssm_1, lambda forward, x, *a, **k: forward(x.detach(), *a, **k))
    module.model.residual = False


def drop_gradients(module: L.LightningModule) -> None:
    """backward without .grad: autograd.grad, whose result is dropped."""
    module.automatic_optimization = False

    def step(batch: Any, batch_idx: int) -> None:
        optimizer = module.optimizers()
        optimizer.zero_grad()
        torch.autograd.grad(module.loss(batch), list(module.parameters()))
        optimizer.step()

    module.training_step = step  # type: ignore[method-assign]


def list_core(module: Foreign) -> None:
    layers = [module.core]
    del module.core
    module.layers = layers
    module.middle = lambda h: module.layers[0](h)  # type: ignore[method-assign]


def list_gate(module: Dense) -> None:
    module.model.glu_0 = Through([module.model.glu_0])


class Through(nn.Module):
    """Calls a layer that it holds in a list."""

    def __init__(self, held: list[nn.Module]) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return self.held[0](x)


def plain(module: nn.Module, name: str) -> None:
    """A parameter becomes a plain tensor of the same value."""
    value = getattr(module, name).detach().clone()
    delattr(module, name)
    setattr(module, name, value)


def plain_foreign(module: Foreign) -> None:
    module.A = torch.randn(8, 8) / 3
    module.middle = lambda h: module.core(h) @ module.A  # type: ignore[method-assign]


def round_loss(module: L.LightningModule) -> None:
    original = module.loss
    module.loss = lambda batch: original(batch).float().double()  # type: ignore[method-assign]


def round_log(module: L.LightningModule) -> None:
    def step(batch: Any, batch_idx: int) -> Tensor:
        loss = module.loss(batch)
        module.log("train/loss", loss.float().double())
        return loss

    module.training_step = step  # type: ignore[method-assign]


def validate_last(module: L.LightningModule) -> None:
    def step(batch: Any, batch_idx: int) -> None:
        x, y = batch
        module.log("val/loss", F.mse_loss(module(x)[:, -1], y[:, -1]))

    module.validation_step = step  # type: ignore[method-assign]


def number_core(module: Foreign) -> None:
    wrap_forward(module.core, lambda _, x: F.linear(x, module.core.weight, torch.full((8,), float(module.core.bias.mean()))))


def number_delta(module: Dense) -> None:
    layer = module.model.ssm_0

    def step_as_number(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number = torch.full((4,), layer.delta.mean().item())
        return _with(layer, "delta", number, forward, *args, **kwargs)

    wrap_forward(layer, step_as_number)


def _with(layer: nn.Module, name: str, value: Tensor, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run forward while `name` is another tensor."""
    kept = layer._parameters.pop(name)
    setattr(layer, name, value)
    try:
        return forward(*args, **kwargs)
    finally:
        delattr(layer, name)
        layer._parameters[name] = kept


def keys_by_hand(wrong: str) -> Callable[[L.LightningModule], None]:
    def inject(module: L.LightningModule) -> None:
        table = dict(module.named_parameters())
        table.pop(wrong)
        module.configure_optimizers = lambda: Adam(table.values(), lr=1e-2)  # type: ignore[method-assign]

    return inject


FOREIGN = [
    ("1 input detached", detach_core, "graph-cut", {"inp.weight", "inp.bias"}, "32-true"),
    ("2 gradients dropped", drop_gradients, "gradients-not-applied", {"core.weight"}, "32-true"),
    ("3 container not stored", list_core, "hidden-module", {"layers[0].weight", "layers[0].bias"}, "32-true"),
    ("4 plain tensor", plain_foreign, "plain-tensor", {"A"}, "32-true"),
    ("5 loss rounded", round_loss, "dtype-round-trip", set(), "64-true"),
    ("5 logged loss rounded", round_log, "logged-loss-rounded", set(), "64-true"),
    ("9 validation on the last step", validate_last, "supervision-mismatch", set(), "32-true"),
    ("10 value out of the graph", number_core, "graph-cut", {"core.bias"}, "32-true"),
    ("11 wrong key", keys_by_hand("core.bias"), "not-in-optimizer", {"core.bias"}, "32-true"),
]
DENSE = [
    ("1 input detached", detach_ssm, "graph-cut", {"model.input_proj.weight", "model.ssm_0.A"}, "32-true"),
    ("2 gradients dropped", drop_gradients, "gradients-not-applied", {"model.ssm_0.delta"}, "32-true"),
    ("3 container not stored", list_gate, "hidden-module", {"model.glu_0.held[0].weight"}, "32-true"),
    *(
        (f"4 plain {name}", lambda m, name=name: plain(m.model.ssm_0, name), "plain-tensor", {f"model.ssm_0.{name}"}, "32-true")
        for name in ("A", "B", "C", "delta")
    ),
    ("5 loss rounded", round_loss, "dtype-round-trip", set(), "64-true"),
    ("5 logged loss rounded", round_log, "logged-loss-rounded", set(), "64-true"),
    ("9 validation on the last step", validate_last, "supervision-mismatch", set(), "32-true"),
    ("10 delta out of the graph", number_delta, "graph-cut", {"model.ssm_0.delta"}, "32-true"),
    ("11 wrong key", keys_by_hand("model.ssm_1.A"), "not-in-optimizer", {"model.ssm_1.A"}, "32-true"),
]


@pytest.mark.parametrize(
    ("make", "inject", "expected", "names", "precision"),
    [
        pytest.param(kind, *case[1:], id=f"{kind.__name__}: {case[0]}")
        for kind, cases in ((Foreign, FOREIGN), (Dense, DENSE))
        for case in cases
    ],
)
def test_a_fault_of_the_origin_is_named_before_the_first_update(
    make: type[Foreign], inject: Callable[..., None], expected: str, names: set[str], precision: str
) -> None:
    module = make()
    inject(module)
    finding = only(fit(module, steps=3, precision=precision))
    assert finding["id"] == expected
    assert names <= set(finding["parameters"])
    assert finding["step"] == 0
    assert "Intended" in finding["message"] or "purpose" in finding["message"] or "Meant" in finding["message"]


# -- more ways to the same faults, in a module that is not ours ----------------------------------------------------------


class Manual(Foreign):
    """Manual optimisation; subclasses order the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


class NoGradBlock(Foreign):
    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            return self.core(h)


class DataOut(Foreign):
    def middle(self, h: Tensor) -> Tensor:
        return self.core(h).data


class LostInside(Foreign):
    def __init__(self) -> None:
        super().__init__()
        wrap_forward(self.core, lambda forward, x: forward(x).round().detach())


class Rebuilt(Foreign):
    def loss(self, batch: Any) -> Tensor:
        return torch.tensor(super().loss(batch).item(), requires_grad=True)


class FrozenWeight(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.core.weight.requires_grad_(False)


class ReplacedLayer(Foreign):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.head = nn.Linear(8, 1)
        return optimizer


class MadeInFitStart(Foreign):
    def on_fit_start(self) -> None:
        self.head = nn.Linear(8, 1)


class OtherCopy(Foreign):
    def configure_optimizers(self) -> Any:
        return Adam(copy.deepcopy(self).parameters(), lr=1e-2)


class RecreatedInForward(Foreign):
    def middle(self, h: Tensor) -> Tensor:
        self.core.weight = nn.Parameter(self.core.weight.detach())
        return self.core(h)


class EmptyOptimizer(Foreign):
    def configure_optimizers(self) -> Any:
        return Adam([{"params": []}], lr=1e-2)


class OnlyFrozenHeld(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return Adam(self.head.parameters(), lr=1e-2)


class ZeroRateGroup(Foreign):
    def configure_optimizers(self) -> Any:
        rest = [*self.inp.parameters(), *self.head.parameters()]
        return Adam([{"params": rest, "lr": 1e-2}, {"params": self.core.parameters(), "lr": 0.0}])


class ZeroRate(Foreign):
    lr = 0.0


class StuckSchedule(Foreign):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = LambdaLR(optimizer, lambda step: (step // 1000) / 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ZeroFactor(Foreign):
    def middle(self, h: Tensor) -> Tensor:
        return h + 0.0 * self.core(h)


class Decays(ZeroFactor):
    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)


class TinyRate(Foreign):
    lr = 1e-12

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=self.lr)


class LowPrecision(Foreign):
    """bfloat16 weights of size 1 with a small lr."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) * self.scale.float()

    def configure_optimizers(self) -> Any:
        rest = [p for name, p in self.named_parameters() if name != "scale"]
        return Adam([{"params": rest, "lr": 1e-2}, {"params": [self.scale], "lr": 1e-4}])


class InPlaceReset(Foreign):
    """Every forward pass sets the weight to its first value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = {"weight": self.core.weight.detach().clone().numpy()}

    def middle(self, h: Tensor) -> Tensor:
        self.core.weight.data = torch.from_numpy(self.first["weight"].copy())
        return self.core(h)


class WriteBack(L.Callback):
    """After each batch, from step `since` on, the core is what it was before."""

    def __init__(self, since: int = 0) -> None:
        self.since = since
        self.kept: Tensor | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.kept = module.core.weight.detach().clone()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self.since:
            module.core.weight.data.copy_(self.kept)


class ForgetsOne(Adam):
    """Handles its parameters by name, and one name is wrong."""

    def step(self, closure: Any = None) -> Any:
        kept = self.param_groups[0]["params"][2].detach().clone()
        result = super().step(closure)
        self.param_groups[0]["params"][2].data.copy_(kept)
        return result


class HandMadeLoop(Foreign):
    def configure_optimizers(self) -> Any:
        return ForgetsOne(self.parameters(), lr=1e-2)


class ClearsBeforeStep(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        optimizer.zero_grad()
        optimizer.step()


class StepsBeforeBackward(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        optimizer.step()
        self.manual_backward(self.loss(batch))


class ZeroesBeforeStep(Foreign):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.parameters():
            parameter.grad.zero_()


class NeverSteps(Foreign):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()


class ReturnsNothing(Foreign):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.loss(batch)


class BareTensor(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.ones(8, requires_grad=True)

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) * self.gain


class ComputedParameter(Foreign):
    """A product of a parameter is a tensor; the parameter itself is nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8)) * 2

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) * self.gain


class Bag:
    """A plain object that holds things."""

    def __init__(self, **things: Any) -> None:
        vars(self).update(things)


class InAnObject(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.bag = Bag(weights={"gain": nn.Parameter(torch.ones(8))})

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) * self.bag.weights["gain"]


class InAClosure(Foreign):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.extra = lambda h: layer(h)

    def middle(self, h: Tensor) -> Tensor:
        return self.core(self.extra(h))


class LearntBuffer(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.core.register_buffer("log_dt", torch.zeros(8))

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) * self.core.log_dt.exp()


class DroppedOutput(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(8, 8)

    def middle(self, h: Tensor) -> Tensor:
        self.aux(h)
        return self.core(h)


class NeverCalled(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(8, 8)


class Late(Foreign):
    """From step 6 on the core gets its input detached."""

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h.detach() if self.global_step >= 6 else h)


class LateFreeze(Foreign):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 6:
            self.core.weight.requires_grad_(False)


CORE = {"core.weight", "core.bias"}
ALL = {f"{layer}.{kind}" for layer in ("inp", "core", "head") for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    ("make", "expected", "names", "latest", "arguments"),
    [
        (NoGradBlock, "graph-cut", {"inp.weight", *CORE}, 0, {}),
        (DataOut, "graph-cut", {"inp.weight", *CORE}, 0, {}),
        (LostInside, "graph-cut", {*CORE}, 0, {}),
        (Rebuilt, "loss-detached", ALL, 0, {}),
        (FrozenWeight, "frozen-by-mistake", {"core.weight"}, 0, {}),
        (ReplacedLayer, "stale-optimizer", {"head.weight", "head.bias"}, 0, {}),
        (MadeInFitStart, "stale-optimizer", {"head.weight", "head.bias"}, 0, {}),
        (OtherCopy, "stale-optimizer", ALL, 0, {}),
        (RecreatedInForward, "parameter-recreated", {"core.weight"}, 1, {}),
        (EmptyOptimizer, "not-in-optimizer", ALL, 0, {}),
        (OnlyFrozenHeld, "not-in-optimizer", {"inp.weight", *CORE}, 0, {}),
        (ZeroRateGroup, "zero-learning-rate", CORE, 0, {}),
        (ZeroRate, "zero-learning-rate", ALL, 3, {}),
        (StuckSchedule, "zero-learning-rate", ALL, 20, {"steps": 22}),
        (ZeroFactor, "zero-gradient", CORE, 5, {}),
        (Decays, "weight-decay-only", CORE, 5, {}),
        (TinyRate, "update-lost-to-rounding", {"core.weight"}, 3, {}),
        (LowPrecision, "update-lost-to-rounding", {"scale"}, 4, {}),
        (InPlaceReset, "written-back", {"core.weight"}, 4, {}),
        (HandMadeLoop, "step-without-effect", {"core.weight"}, 3, {}),
        (ClearsBeforeStep, "gradients-cleared", ALL, 0, {}),
        (StepsBeforeBackward, "gradients-not-applied", ALL, 0, {}),
        (ZeroesBeforeStep, "gradients-cleared", ALL, 3, {}),
        (NeverSteps, "no-optimizer-step", ALL, 3, {"trainer": {"max_epochs": 2, "max_steps": -1}}),
        (ReturnsNothing, "gradients-not-applied", ALL, 3, {}),
        (BareTensor, "plain-tensor", {"gain"}, 0, {}),
        (ComputedParameter, "hidden-module", {"gain"}, 0, {"steps": 1}),
        (InAnObject, "hidden-module", {"bag.weights['gain']"}, 0, {}),
        (InAClosure, "hidden-module", {"extra.<layer>.weight", "extra.<layer>.bias"}, 0, {}),
        (LearntBuffer, "plain-tensor", {"core.log_dt"}, 0, {}),
        (DroppedOutput, "graph-cut", {"aux.weight", "aux.bias"}, 3, {}),
        (NeverCalled, "unused", {"aux.weight", "aux.bias"}, 20, {"steps": 21}),
        (Late, "graph-cut", {"inp.weight", "inp.bias"}, 11, {"steps": 14}),
        (LateFreeze, "frozen-by-mistake", {"core.weight"}, 7, {"steps": 10}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_fault_is_named_with_its_parameters(
    make: type[Foreign], expected: str, names: set[str], latest: int, arguments: dict[str, Any]
) -> None:
    finding = only(fit(make(), **arguments))
    assert finding["id"] == expected
    assert names <= set(finding["parameters"])
    assert finding["step"] <= latest


@pytest.mark.parametrize("since", [0, 8])
def test_an_update_that_is_undone_is_named_whenever_it_starts(since: int) -> None:
    finding = only(fit(Foreign(), steps=since + 7, callbacks=(WriteBack(since),)))
    assert finding["id"] == "written-back"
    assert finding["parameters"] == ["core.weight"]
    assert finding["step"] <= since + 6


def test_a_cut_that_comes_late_is_placed_by_the_batch_that_shows_it() -> None:
    finding = only(fit(Late(), steps=14))
    assert "since step 6: 5 steps running without a gradient" in finding["message"]
    assert "between `inp` (output has a gradient) and `core` (input has none)" in finding["message"]


def test_a_cut_is_placed_between_two_modules() -> None:
    module = Foreign()
    detach_core(module)
    wrap_forward(module.head, lambda forward, x: forward(x))
    module.core.register_forward_pre_hook(lambda _, args: (args[0].detach(),))
    message = only(fit(module, steps=1))["message"]
    assert "between `inp` (output has a gradient) and `core` (input has none)" in message


# -- healthy set-ups that look like faults -------------------------------------------------------------------------------


class ZeroInitHead(Foreign):  # T1
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)


class LowRankAdapter(Foreign):  # T2
    def __init__(self) -> None:
        super().__init__()
        self.core.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, 8) / 4)
        self.up = nn.Parameter(torch.zeros(8, 2))

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) + h @ self.down.T @ self.up.T


class AdapterLayer(nn.Linear):
    """The frozen weight and its adapter in one module."""

    def __init__(self) -> None:
        super().__init__(8, 8, bias=False)
        self.weight.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(2, 8) / 4)
        self.lora_B = nn.Parameter(torch.zeros(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.lora_B @ self.lora_A)


class AdapterInside(Foreign):  # T2
    def __init__(self) -> None:
        super().__init__()
        self.core = AdapterLayer()


class ReZero(Foreign):  # T2
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(()))

    def middle(self, h: Tensor) -> Tensor:
        return h + self.gamma * self.core(h)


class BiasesOnly(Foreign):
    def __init__(self) -> None:
        super().__init__()
        for layer in (self.inp, self.core, self.head):
            layer.weight.requires_grad_(False)


def scheduled(schedule: Callable[[Any], Any]) -> Callable[[Foreign], Any]:
    def configure(self: Foreign) -> Any:
        optimizer = Adam(self.parameters(), lr=self.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), "interval": "step"}}

    return configure


class WarmUpFromZero(ZeroInitHead):  # T3
    configure_optimizers = scheduled(lambda o: LambdaLR(o, lambda step: min(step / 10, 1.0)))


class LongWarmUpAtZero(ZeroInitHead):  # T1 with T3: nothing moves for eight steps
    configure_optimizers = scheduled(lambda o: LambdaLR(o, lambda step: float(step >= 8)))


class CosineToZero(Foreign):  # T3
    configure_optimizers = scheduled(lambda o: CosineAnnealingLR(o, T_max=12))


class TinyWarmUp(Foreign):  # T3: the first steps are below float32's resolution
    configure_optimizers = scheduled(lambda o: LambdaLR(o, lambda step: max(1e-9, min((step - 5) / 5, 1.0))))


class FrozenBlock(Foreign):  # T4, T5: frozen, and in the optimizer all the same
    def __init__(self) -> None:
        super().__init__()
        self.core.requires_grad_(False)


class Teacher(Foreign):  # T6
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(8, 8).requires_grad_(False)

    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.aim = self.teacher(h)
        return self.core(h)

    def on_train_batch_end(self, *args: Any) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.core.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)


class RareExpert(Foreign):  # T7: used in every third batch
    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(8, 8)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.turn = self.global_step % 3 == 2
        return super().training_step(batch, batch_idx)

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) + (self.expert(h) if getattr(self, "turn", False) else 0)


class GivenUpExpert(RareExpert):  # T7: used in ten batches and never again, a fact about the router and no cut
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.turn = self.global_step < 10
        return Foreign.training_step(self, batch, batch_idx)


class RandomGate(Foreign):  # T7: a factor that is zero in half of the batches
    def middle(self, h: Tensor) -> Tensor:
        return h + (torch.rand(()) < 0.5).to(h) * self.core(h)


class SparseRows(Foreign):  # T8
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(50, 8)

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) + self.rows(torch.tensor([1, 2]))[0]

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class SparseGradients(SparseRows):  # T8, torch's sparse gradients
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(50, 8, sparse=True)


class BiasBeforeNorm(Foreign):  # T9, T23
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def middle(self, h: Tensor) -> Tensor:
        return self.norm(self.core(h).transpose(1, 2)).transpose(1, 2)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class SecondOrder(Foreign):  # T10
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class TwoBackwards(Manual):  # T10
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        x, y = batch
        for part in (slice(0, 4), slice(4, 8)):
            self.manual_backward(self.loss((x[part], y[part])))
        optimizer.step()


class OwnAccumulation(Manual):  # T10
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        if (batch_idx + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


class BareOptimizer(Manual):  # no hook of the framework announces the step
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.loss(batch).backward()
        optimizer.step()


class Reentrant(Foreign):  # T11
    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.core, h, use_reentrant=True) if torch.is_grad_enabled() else self.core(h)


class NonReentrant(Foreign):  # T11
    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.core, h, use_reentrant=False)


class Sign(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class StraightThrough(Foreign):  # T12
    def middle(self, h: Tensor) -> Tensor:
        return Sign.apply(self.core(h)) + (h.round() - h).detach() + h


class StoppedBranch(Foreign):  # T12
    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) + self.core(h).detach()


class Tied(Foreign):  # T13
    def __init__(self) -> None:
        super().__init__()
        self.again = self.core

    def middle(self, h: Tensor) -> Tensor:
        return self.again(torch.tanh(self.core(h)))


class HalfWeights(Foreign):  # T14
    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(self(x.bfloat16()).float(), y)


class Clamped(Foreign):  # T15
    def on_train_batch_end(self, *args: Any) -> None:
        self.core.weight.data.clamp_(-0.3, 0.3)


class ClampedScalar(Foreign):  # T15: a temperature held at its bound
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) * self.scale

    def on_train_batch_end(self, *args: Any) -> None:
        self.scale.data.clamp_(0.5, 0.5)


class SwapInValidation(Foreign):  # T16
    def on_validation_start(self) -> None:
        self.kept = [p.detach().clone() for p in self.parameters()]
        for parameter in self.parameters():
            parameter.data.mul_(0.9)

    def on_validation_end(self) -> None:
        for parameter, kept in zip(self.parameters(), self.kept, strict=True):
            parameter.data.copy_(kept)


class Fitted(Foreign):  # T17: nothing is left to learn
    def loss(self, batch: Any) -> Tensor:
        prediction = self(batch[0])
        return F.mse_loss(prediction, prediction.detach() + 1e-9)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=1e-1)


class MaskedOnce(Foreign):  # T18
    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * float(self.global_step != 2)


class SkipsABatch(Foreign):  # T18
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


class ReferenceInAList(Foreign):  # T19
    def __init__(self) -> None:
        super().__init__()
        self._ref = [nn.Linear(8, 8).requires_grad_(False)]

    def middle(self, h: Tensor) -> Tensor:
        return self.core(h) + self._ref[0](h)


class Tables(Foreign):  # T20, T22
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.sin(torch.arange(6.0))[:, None] * torch.ones(8))
        self.register_buffer("cache", torch.zeros(8))
        self.history: list[Tensor] = [torch.randn(5)]
        self.settings = {"gain": torch.ones(3), "names": ["a", "b"]}

    def middle(self, h: Tensor) -> Tensor:
        self.cache.mul_(0.9).add_(h.detach().mean((0, 1)))
        return self.core(h + self.positions)


class ClassWeights(Foreign):  # T20: a constant that no gradient may be asked for
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("balance", torch.tensor([1.0, 2.0]))
        self.logits = nn.Linear(8, 2)
        del self.head

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        logits = self.logits(torch.tanh(self.core(torch.tanh(self.inp(x))))).flatten(0, 1)
        return F.cross_entropy(logits, (y.flatten() > 0).long(), self.balance)


class Adversarial(Manual):  # T21
    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [Adam([*self.inp.parameters(), *self.core.parameters()], lr=1e-2), Adam(self.head.parameters(), lr=1e-2)]


class TakesTurns(Adversarial):  # T21: one optimizer a batch
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()[batch_idx % 2]
        optimizer.zero_grad()
        if batch_idx % 2:
            x, y = batch
            self.manual_backward(F.mse_loss(self.head(torch.tanh(self.core(torch.tanh(self.inp(x)))).detach()), y))
        else:
            self.manual_backward(self.loss(batch))
        optimizer.step()


class Parametrised(Foreign):  # T24
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.core)


class GradientPenalty(Foreign):
    def loss(self, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_(torch.is_grad_enabled())
        y = self(x)
        if not y.requires_grad:
            return F.mse_loss(y, batch[1])
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return F.mse_loss(y, batch[1]) + 0.1 * slope.square().mean()


class LongerValidation(Foreign):
    """Validation windows are twice as long, and supervised at every step of theirs."""

    def val_dataloader(self) -> DataLoader:
        x = torch.randn(8, 12, 3)
        return DataLoader(TensorDataset(x, x.sum(-1, keepdim=True)), batch_size=8)


LOOK_ALIKES = [
    (Foreign, {}), (Dense, {}), (Manual, {}), (ZeroInitHead, {}), (LowRankAdapter, {}), (AdapterInside, {}), (ReZero, {}),
    (BiasesOnly, {}), (WarmUpFromZero, {"steps": 14}), (LongWarmUpAtZero, {"steps": 16}), (CosineToZero, {"steps": 13}),
    (TinyWarmUp, {"steps": 14}), (FrozenBlock, {}), (Teacher, {}), (RareExpert, {"steps": 24}), (RandomGate, {"steps": 40}),
    (GivenUpExpert, {"steps": 24}), (ClassWeights, {}),
    (SparseRows, {}), (SparseGradients, {}), (BiasBeforeNorm, {"steps": 12}), (SecondOrder, {}), (TwoBackwards, {}),
    (OwnAccumulation, {"steps": 4, "trainer": {"max_epochs": 5}}), (BareOptimizer, {"steps": -1, "trainer": {"max_epochs": 2}}),
    (Foreign, {"trainer": {"accumulate_grad_batches": 4}}), (Reentrant, {}), (NonReentrant, {}), (StraightThrough, {}),
    (StoppedBranch, {}), (Tied, {}), (HalfWeights, {"steps": 12}), (Clamped, {"steps": 12}), (ClampedScalar, {"steps": 12}),
    (SwapInValidation, {"steps": 12, "trainer": {"val_check_interval": 1}}), (Fitted, {"steps": 12}), (MaskedOnce, {}),
    (SkipsABatch, {"steps": 12}), (ReferenceInAList, {}), (Tables, {}), (Adversarial, {}), (TakesTurns, {"steps": 12}),
    (Parametrised, {}), (GradientPenalty, {}), (Foreign, {"precision": "64-true"}), (Dense, {"precision": "64-true"}),
    (Foreign, {"precision": "bf16-mixed"}), (Foreign, {"trainer": {"gradient_clip_val": 1e-3}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "arguments"), LOOK_ALIKES, ids=[f"{make.__name__} {arguments or ''}" for make, arguments in LOOK_ALIKES]
)
def test_a_healthy_run_is_left_in_peace(make: type[Foreign], arguments: dict[str, Any]) -> None:
    watch = fit(make(), **arguments)
    assert serious(watch) == []
    assert watch.report()["verdict"] == "healthy"


# -- contracts and declarations (cases D11, D15) --------------------------------------------------------------------------


class FineTuned(Foreign):
    """A backbone that is frozen on purpose, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(self.inp, self.core)
        del self.inp, self.core
        self.backbone.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.backbone(x)))


def test_a_declared_frozen_backbone_raises_no_alarm() -> None:
    assert fit(FineTuned(), frozen=["backbone.*"]).report() == fit(FineTuned(), frozen=["backbone"]).report()
    report = fit(FineTuned(), frozen=["backbone.*"]).report()
    assert report["verdict"] == "healthy"
    assert report["findings"] == []


def test_a_parameter_that_trains_though_declared_frozen_is_named() -> None:
    module = FineTuned()
    module.backbone[0].bias.requires_grad_(True)
    finding = only(fit(module, frozen=["backbone.*"]))
    assert finding["id"] == "frozen-but-trains"
    assert finding["parameters"] == ["backbone.0.bias"]
    assert "trainable though declared frozen" in finding["message"]


def test_a_head_weight_frozen_by_mistake_is_named_beside_a_declared_backbone() -> None:
    module = FineTuned()
    module.head.weight.requires_grad_(False)
    finding = only(fit(module, frozen=["backbone.*"]))
    assert (finding["id"], finding["parameters"]) == ("frozen-by-mistake", ["head.weight"])


def test_a_pattern_may_leave_out_the_tasks_own_prefix() -> None:
    module = Dense()
    module.model.ssm_0.A.requires_grad_(False)
    assert serious(fit(module, frozen=["ssm_0.A"])) == []


def test_what_a_layer_declares_trainable_must_train() -> None:
    module = Dense()
    module.model.ssm_1.delta.requires_grad_(False)
    finding = only(fit(module))
    assert (finding["id"], finding["severity"]) == ("frozen-by-mistake", "error")
    assert finding["parameters"] == ["model.ssm_1.delta"]


class Promises(Foreign):
    """Declares that A trains, and holds it as a plain tensor that the loss does not even use."""

    def __init__(self) -> None:
        super().__init__()
        self.A = torch.zeros(2)

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        return {"trainable": ("A",), "constants": ()}


def test_a_declared_parameter_that_is_no_parameter_is_an_error_before_anything_runs() -> None:
    with pytest.raises(UnhealthyTraining, match=r"plain-tensor: `A` is a plain tensor"):
        fit(Promises(), policy="error")


@pytest.mark.parametrize(
    ("key", "pattern", "hint"),
    [("frozen", "cor.*", "core"), ("constants", "table", None), ("conditional", "haed", "head")],
)
def test_a_pattern_that_matches_nothing_is_an_error(key: str, pattern: str, hint: str | None) -> None:
    with pytest.raises(UnhealthyTraining, match=f"health.{key}: `{pattern.replace('*', '.')}` matches nothing") as caught:
        fit(Foreign(), policy="error", **{key: [pattern]})
    assert (f"did you mean `{hint}`" in str(caught.value)) == (hint is not None)


def test_a_declared_constant_is_left_alone() -> None:
    module = Foreign()
    plain_foreign(module)
    watch = fit(module, constants=["A"])
    assert watch.report() == watch.report() | {"verdict": "healthy", "findings": []}


def test_a_conditional_module_may_never_be_called() -> None:
    assert fit(NeverCalled(), steps=21, conditional=["aux"]).report()["verdict"] == "healthy"


class ComparesOnPurpose(Foreign):
    def health_contract(self) -> dict[str, tuple[str, ...]]:
        return {"intended": ("supervision-mismatch",)}


def test_a_module_can_declare_a_finding_intended() -> None:
    module = ComparesOnPurpose()
    validate_last(module)
    assert fit(module, steps=2).report()["verdict"] == "healthy"


# -- policies, reports, restarts -------------------------------------------------------------------------------------------


def test_under_error_the_run_stops_before_the_first_update_with_one_line() -> None:
    module = Foreign()
    detach_core(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(UnhealthyTraining) as caught:
        fit(module, policy="error")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("step 0, graph-cut: `inp.weight`")
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_under_error_a_warning_does_not_stop_the_run() -> None:
    watch = fit(FrozenWeight(), policy="error", steps=3)
    assert watch.report()["verdict"] == "warning"


def test_under_warn_the_run_goes_on_and_the_log_says_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    module = Foreign()
    keys_by_hand("core.bias")(module)
    with caplog.at_level(logging.INFO, logger="statewise"):
        watch = fit(module, steps=4)
    assert watch.report()["verdict"] == "error"
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("statewise")]
    assert sum(line.startswith("not-in-optimizer: ") for line in lines) == 1
    assert lines[-1].startswith("training health: error: not-in-optimizer (6 parameters, 4 steps")


def test_off_looks_at_nothing_and_says_so() -> None:
    module = Foreign()
    keys_by_hand("core.bias")(module)
    optimizers: list[Any] = []
    module.on_train_end = lambda: optimizers.extend(module.trainer.optimizers)  # type: ignore[method-assign]
    watch = fit(module, policy="off")
    assert watch.report() == {"verdict": "not_checked", "findings": [], "checks": []}
    assert not optimizers[0]._optimizer_step_post_hooks


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"health.policy must be one of error, warn, off, got 'strict'"):
        TrainingHealth(policy="strict")


def test_the_table_shows_every_parameter_once_with_its_group_and_place_in_the_graph(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = Foreign()
    detach_core(module)
    with caplog.at_level(logging.INFO, logger="statewise"):
        fit(module, steps=3)
    tables = [record.getMessage() for record in caplog.records if "weight decay" in record.getMessage()]
    assert len(tables) == 1
    rows = {line.split()[0]: line.split() for line in tables[0].splitlines()[3:]}
    assert rows["inp.weight"] == ["inp.weight", "8x3", "float32", "yes", "0.0", "0.01", "0", "no"]
    assert rows["head.bias"][-1] == "yes"
    assert len(rows) == 6


class Interrupts(L.Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 3:
            raise ZeroDivisionError


@pytest.mark.parametrize("broken", [False, True])
def test_nothing_is_left_behind_on_the_module_or_the_optimizer(broken: bool) -> None:
    module = Foreign()
    kept: list[Any] = []
    module.on_train_start = lambda: kept.extend(module.trainer.optimizers)  # type: ignore[method-assign]
    if broken:
        with pytest.raises(ZeroDivisionError):
            fit(module, callbacks=(Interrupts(),))
    else:
        fit(module)
    assert "log" not in vars(module)
    assert not kept[0]._optimizer_step_post_hooks
    assert not kept[0]._optimizer_step_pre_hooks
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


class Counts(Foreign):
    """Keeps state of its own, draws random numbers and normalises: all that a trial on a copy could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.norm = nn.BatchNorm1d(8)

    def middle(self, h: Tensor) -> Tensor:
        self.calls += 1
        h = F.dropout(h, 0.3, training=self.training)
        return self.norm(self.core(h).transpose(1, 2)).transpose(1, 2)


def test_a_watched_run_is_bit_equal_to_an_unwatched_one() -> None:
    states = []
    for policy in ("off", "error"):
        module = Counts()
        torch.manual_seed(5)
        fit(module, policy=policy, steps=6, precision="64-true")
        states.append((module.calls, module.state_dict()))
    assert states[0][0] == states[1][0]
    assert states[0][1].keys() == states[1][1].keys()
    assert all(torch.equal(states[0][1][name], value) for name, value in states[1][1].items())


def test_the_report_is_written_where_asked_and_says_what_ran(tmp_path: Any) -> None:
    watch = fit(Foreign(), steps=6)
    path = watch.write_report(tmp_path)
    assert path == tmp_path / "health.json"
    assert json.loads(path.read_text()) == watch.report()
    checks = {check["name"]: check for check in watch.report()["checks"]}
    assert checks["graph-cut"] == {"name": "graph-cut", "ran": True, "why": ""}
    assert checks["logged-loss-rounded"]["ran"] is False
    assert "float64" in checks["logged-loss-rounded"]["why"]


def test_a_constant_that_cannot_have_a_gradient_does_not_stop_the_trial() -> None:
    checks = {check["name"]: check for check in fit(ClassWeights(), steps=2).report()["checks"]}
    assert checks["supervision-mismatch"] == {"name": "supervision-mismatch", "ran": True, "why": ""}


def test_a_check_that_could_not_run_says_why() -> None:
    class Uncopyable(Foreign):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies of me")

    checks = {check["name"]: check for check in fit(Uncopyable(), steps=2).report()["checks"]}
    assert checks["supervision-mismatch"]["ran"] is False
    assert "no copies of me" in checks["supervision-mismatch"]["why"]


def test_what_is_known_survives_a_restart_as_plain_values(tmp_path: Any) -> None:
    first = fit(RareExpert(), steps=12)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = TrainingHealth(policy="warn")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.report()["findings"] == first.report()["findings"]
    module = RareExpert()
    L.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[second],
    ).fit(module, batches(), batches())  # fmt: skip
    ledger = second.state_dict()["ledgers"]["0"]
    assert ledger["steps"] == 15
    # An expert that has sat out two batches of three keeps the right to do so.
    assert ledger["parameters"]["expert.weight"][4] == 10


class MemoryLogger(L.pytorch.loggers.logger.DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.seen.update(metrics)


def test_a_finding_is_logged_as_a_metric() -> None:
    logger = MemoryLogger()
    fit(FrozenWeight(), steps=2, trainer={"logger": logger})
    assert logger.seen["health/frozen-by-mistake"] == 1.0


# -- our own task -----------------------------------------------------------------------------------------------------------


class Windows(L.LightningDataModule):
    """Eight windows of six steps; every step is a target, or the last one."""

    def __init__(self, train: str = "all", validation: str = "all", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.sides = {"train": train, "val": validation}
        self.kind = dtype

    def loader(self, side: str) -> DataLoader:
        inputs = torch.randn(24, 6, 3, generator=torch.Generator().manual_seed(2)).to(self.kind)
        targets = inputs.cumsum(1)[..., :1, None] / 3
        targets = targets if self.sides[side] == "all" else targets[:, -1:]
        parts = zip(inputs.split(8), targets.split(8), strict=True)
        return DataLoader([Batch(x, y, torch.ones_like(y, dtype=torch.bool)) for x, y in parts], batch_size=None)

    def train_dataloader(self) -> DataLoader:
        return self.loader("train")

    def val_dataloader(self) -> DataLoader:
        return self.loader("val")


class SplitSupervision(Forecasting):
    """The origin's fault: training looks at the whole sequence, validation at the last step."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.supervision = "last"
        super().validation_step(batch._replace(targets=batch.targets[:, -1:], observed=batch.observed[:, -1:]), batch_idx)
        self.supervision = "all"


def forecasting(kind: type[Forecasting] = Forecasting, supervision: str = "all", **settings: Any) -> Forecasting:
    return kind(
        Dense().model,
        optimizer=lambda groups: Adam(groups, lr=1e-3),
        scheduler=None,
        target_names=("y",),
        horizon=1,
        supervision=supervision,
        **settings,
    )


def fit_task(task: Forecasting, data: Windows, callbacks: tuple[L.Callback, ...] = (), **trainer: Any) -> TrainingHealth:
    watch = TrainingHealth(policy="warn")
    L.Trainer(
        **{"max_epochs": 4, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "log_every_n_steps": 1,
           "enable_progress_bar": False, "enable_model_summary": False} | trainer,
        callbacks=[watch, *callbacks],
    ).fit(task, datamodule=data)  # fmt: skip
    return watch


@pytest.mark.parametrize(
    ("supervision", "settings"), [("all", {}), ("all", {"burn_in": 2}), ("last", {}), ("last", {"loss": "huber"})]
)
def test_our_own_task_is_healthy(supervision: str, settings: dict[str, Any]) -> None:
    watch = fit_task(forecasting(supervision=supervision, **settings), Windows(supervision, supervision))
    assert watch.report()["findings"] == []
    checks = {check["name"]: check for check in watch.report()["checks"]}
    assert checks["supervision-mismatch"] == {"name": "supervision-mismatch", "ran": True, "why": ""}


def test_our_own_task_is_healthy_in_float64_under_the_projection() -> None:
    task = forecasting()
    with torch.no_grad():
        for layer in task.model.layers:
            layer.scale_transition_(1.5)
    watch = fit_task(task, Windows(dtype=torch.float64), (SpectralProjection(),), precision="64-true")
    assert watch.report()["findings"] == []


def test_different_time_steps_in_training_and_validation_are_seen_in_our_own_task() -> None:
    finding = only(fit_task(forecasting(SplitSupervision), Windows()))
    assert finding["id"] == "supervision-mismatch"
    assert "6 of 6 time steps" in finding["message"]
    assert finding["evidence"]["validation_positions"] == 1
