"""Gradient norms are those of backward and of the optimizer, at real steps, and none is missing from the picture."""

import csv
import logging
import math
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.gradient_ledger import GradientLedger, short_names, tensor_norms, to_host
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.numerics_guard import NumericsGuard
from statewise.callbacks.thinned import Thinned

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
]


class Memory(DummyLogger):
    """A logger that keeps every row it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore[override]
        if any(name.startswith("grad_norm") for name in metrics):
            self.rows.append((step or 0, metrics))


class Task(L.LightningModule):
    """Two layers under `model`, and one parameter that the loss does not use."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
        self.unused = nn.Parameter(torch.ones(2, dtype=dtype))
        self.gradients: list[dict[str, Tensor]] = []

    def training_step(self, batch: list[Tensor]) -> Tensor | None:
        x, y = batch
        return (self.model(x) - y).square().mean()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        held = zip(short_names(self.named_parameters()), self.parameters(), strict=True)
        self.gradients.append({name: p.grad.clone() for name, p in held if p.grad is not None})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(
    module: L.LightningModule, callbacks: list[L.Callback], steps: int = 4, dtype: torch.dtype = torch.float64, **trainer
) -> Memory:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(2 * steps, 3, dtype=dtype), 5 + torch.randn(2 * steps, 1, dtype=dtype))
    memory = Memory()
    L.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": memory,
            "callbacks": callbacks,
            "log_every_n_steps": 1,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **trainer,
        }
    ).fit(module, DataLoader(data, batch_size=2))
    return memory


def norms(gradients: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(g.square().sum().sqrt()) for name, g in gradients.items()}


def test_norms_before_clipping_are_those_of_backward_and_after_it_those_of_the_optimizer() -> None:
    task = Task()
    memory = fit(task, [GradientNorms()], gradient_clip_val=0.1)
    assert [step for step, _ in memory.rows] == [0, 1, 2, 3]
    for (_, row), gradients in zip(memory.rows, task.gradients, strict=True):
        expected = norms(gradients)
        total = math.sqrt(sum(value**2 for value in expected.values()))
        assert total > 0.1
        assert row["grad_norm/total"] == pytest.approx(total, rel=1e-14)
        assert row["grad_norm/total_clipped"] == pytest.approx(0.1, rel=1e-4)
        assert row["grad_norm/total_clipped"] <= 0.1
        assert {n for n in row if n.startswith("grad_norm/") and "." in n} == {f"grad_norm/{name}" for name in expected}
        for name, value in expected.items():
            assert row[f"grad_norm/{name}"] == pytest.approx(value, rel=1e-14)
            assert row[f"grad_norm_clipped/{name}"] == pytest.approx(value * 0.1 / total, rel=1e-4)


def test_a_parameter_without_gradient_is_named_once_and_counted_always(caplog: pytest.LogCaptureFixture) -> None:
    callback = GradientNorms()
    with caplog.at_level(logging.WARNING, logger="statewise"):
        memory = fit(Task(), [callback])
    assert callback.none == ["unused"]
    assert [row["grad_norm/none_count"] for _, row in memory.rows] == [1.0] * 4
    assert [r.message for r in caplog.records if "unused" in r.message] == ["unused has no gradient (None) at step 1"]
    _, names, matrix = callback.history
    assert torch.tensor(matrix[:, names.index("unused")]).isnan().all()


class OutsideTask(Task):
    def training_step(self, batch: list[Tensor]) -> Tensor:
        return super().training_step(batch) + self.unused.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01)


def test_a_parameter_that_no_optimizer_holds_is_shown_but_in_no_total() -> None:
    task = OutsideTask()
    memory = fit(task, [GradientNorms()], steps=1)
    row = memory.rows[0][1]
    expected = norms(task.gradients[0])
    assert row["grad_norm/unused"] == pytest.approx(math.sqrt(2))
    assert "grad_norm_clipped/unused" not in row
    expected.pop("unused")
    assert row["grad_norm/total"] == pytest.approx(math.hypot(*expected.values()), rel=1e-14)


def test_batches_that_only_accumulate_are_not_logged() -> None:
    task = Task()
    callback = GradientNorms()
    memory = fit(task, [callback], steps=8, accumulate_grad_batches=4)
    assert [step for step, _ in memory.rows] == [0, 1]
    assert callback.history[0] == [1, 2]
    for (_, row), gradients in zip(memory.rows, task.gradients, strict=True):
        assert row["grad_norm/total"] == pytest.approx(math.hypot(*norms(gradients).values()), rel=1e-14)


def test_only_the_asked_steps_and_the_first_are_logged() -> None:
    memory = fit(Task(), [GradientNorms(per_parameter=False, every_n_steps=3)], steps=7)
    assert [step for step, _ in memory.rows] == [0, 2, 5]
    assert set(memory.rows[0][1]) == {"grad_norm/total", "grad_norm/total_clipped", "grad_norm/none_count"}


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None.")
def test_a_batch_that_is_skipped_is_no_step() -> None:
    class Skipping(Task):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
            return None if batch_idx in (0, 2) else super().training_step(batch)

    memory = fit(Skipping(), [NumericsGuard(), GradientNorms()])
    assert [step for step, _ in memory.rows] == [1, 3]


class LossScaling(MixedPrecision):
    """A GradScaler of factor 65536 around full precision."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=65536.0))

    def forward_context(self) -> AbstractContextManager:
        return nullcontext()


def test_loss_scaling_does_not_change_the_norms() -> None:
    kwargs = {"gradient_clip_val": 0.1, "dtype": torch.float32}
    plain = fit(Task(torch.float32), [GradientNorms()], **kwargs)
    scaled = fit(Task(torch.float32), [GradientNorms()], plugins=[LossScaling()], **kwargs)
    assert len(plain.rows) == len(scaled.rows) == 4
    for (_, a), (_, b) in zip(plain.rows, scaled.rows, strict=True):
        assert b["grad_norm/total_clipped"] <= 0.1 * (1 + 1e-6)
        assert a.keys() == b.keys()
        for name in a:
            assert b[name] == pytest.approx(a[name], rel=1e-4)


class FusedTask(Task):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01, fused=True)


def test_an_optimizer_that_unscales_inside_its_step_gets_no_false_number(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="statewise"):
        memory = fit(FusedTask(torch.float32), [GradientNorms()], dtype=torch.float32, plugins=[LossScaling()])
    assert memory.rows == []
    assert len([r for r in caplog.records if "scaled, not shown" in r.message]) == 1


class TwoOptimisers(Task):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor]) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(Task.training_step(self, batch))
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (self.model[0], self.model[2])]


def test_two_optimisers_give_one_row_per_batch_with_all_their_parameters() -> None:
    task = TwoOptimisers()
    memory = fit(task, [GradientNorms()])
    assert [step for step, _ in memory.rows] == [0, 1, 2, 3]
    row, first, second = memory.rows[0][1], norms(task.gradients[0]), norms(task.gradients[1])
    expected = {n: first[n] for n in ("0.weight", "0.bias")} | {n: second[n] for n in ("2.weight", "2.bias")}
    assert {n: row[f"grad_norm/{n}"] for n in expected} == pytest.approx(expected, rel=1e-14)
    assert row["grad_norm/total"] == pytest.approx(math.hypot(*expected.values()), rel=1e-14)


class LineSearch(Task):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.model.parameters(), max_iter=4)


def test_lbfgs_is_logged_once_per_step() -> None:
    task = LineSearch()
    memory = fit(task, [NumericsGuard(), GradientNorms()], steps=2)
    assert [step for step, _ in memory.rows] == [0, 1]
    assert len(task.gradients) > 2
    last = {name: value for name, value in norms(task.gradients[-1]).items() if name != "unused"}
    assert memory.rows[-1][1]["grad_norm/total"] == pytest.approx(math.hypot(*last.values()), rel=1e-14)


def test_guard_and_log_compute_the_norms_of_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    original = torch._foreach_norm

    def counted(tensors, *args):
        nonlocal calls
        calls += any(t is p.grad for p in task.parameters() for t in tensors)
        return original(tensors, *args)

    task = Task()
    monkeypatch.setattr(torch, "_foreach_norm", counted)
    fit(task, [NumericsGuard(), GradientNorms(every_n_steps=100)], steps=3)
    assert calls == 4  # one per step, and one after the first, logged step


def test_one_logged_step_takes_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: calls.append(self.numel()) or original(self))
    fit(Task(), [GradientNorms()], steps=3)
    assert calls == [8, 8, 8]  # four parameters with a gradient, before and after


def test_hooks_are_gone_after_the_fit_and_after_an_exception() -> None:
    class Failing(Task):
        def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
            raise KeyError("stop here")

    for task in (Task(), Failing()):
        kept: list[torch.optim.Optimizer] = []
        task.configure_optimizers = lambda task=task, kept=kept: kept.append(Task.configure_optimizers(task)) or kept[0]
        with pytest.raises(KeyError, match="stop here") if isinstance(task, Failing) else nullcontext():
            fit(task, [GradientNorms(), NumericsGuard()], steps=1)
        assert not kept[0]._optimizer_step_post_hooks


def test_history_holds_the_logged_norms_and_stays_short() -> None:
    callback = GradientNorms()
    callback._rows = Thinned(4)
    memory = fit(Task(), [callback], steps=11)
    steps, names, matrix = callback.history
    assert steps == [1, 5, 9, 11]
    assert set(names) == {"0.weight", "0.bias", "2.weight", "2.bias", "unused"}
    assert matrix.shape == (4, 5)
    for step, row in zip(steps, matrix, strict=True):
        logged = memory.rows[step - 1][1]
        assert row[names.index("0.weight")] == logged["grad_norm/0.weight"]


def test_full_float64_reaches_the_csv(tmp_path: Path) -> None:
    callback = GradientNorms()
    fit(Task(), [callback], steps=2, logger=CSVLogger(tmp_path, name="", version="", flush_logs_every_n_steps=1))
    with (tmp_path / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["grad_norm/total"]]
    totals = [math.sqrt(float(sum(v**2 for v in row if v == v))) for row in callback.history[2]]
    assert [float(row["grad_norm/total"]) for row in rows] == pytest.approx(totals, rel=1e-15)


def test_a_run_without_logger_keeps_its_history() -> None:
    callback = GradientNorms()
    fit(Task(), [callback], logger=False)
    assert callback.history[0] == [1, 2, 3, 4]


@pytest.mark.parametrize("value", [0, -1])
def test_a_pace_below_one_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=rf"callbacks.gradient_norms.every_n_steps must be .* got {value}"):
        GradientNorms(every_n_steps=value)


def test_tensor_norms_are_right_for_every_kind_of_gradient() -> None:
    big = torch.full((4,), 300.0, dtype=torch.float16)  # its squares leave float16's range
    assert tensor_norms([big, big]).tolist() == [600.0, 600.0]
    mixed = [torch.ones(4), torch.ones(9, dtype=torch.float64), torch.tensor([3 + 4j])]
    assert tensor_norms(mixed).tolist() == pytest.approx([2.0, 3.0, 5.0])
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (5,), check_invariants=True)
    assert tensor_norms([sparse]).tolist() == [3.0]
    assert tensor_norms([]).tolist() == []


def test_values_come_back_in_the_groups_they_were_sent_in() -> None:
    assert to_host([torch.zeros(0), torch.tensor(2.0), torch.tensor([3.0, 4.0], dtype=torch.float64)]) == [
        [],
        [2.0],
        [3.0, 4.0],
    ]
    assert to_host([]) == []


def test_short_names_stay_unique() -> None:
    assert short_names([("model.ssm_0.A", 0), ("head.weight", 0)]) == ["ssm_0.A", "head.weight"]
    assert short_names([("model.a", 0), ("a", 0)]) == ["model.a", "a"]


def test_every_reader_sees_each_step_once() -> None:
    task = Task()
    ledger = GradientLedger(task)
    optimizer = task.configure_optimizers()
    one, two = object(), object()
    first = ledger.read(one, optimizer)
    assert ledger.read(two, optimizer) is first
    second = ledger.read(two, optimizer)
    assert second is not first
    assert ledger.read(one, optimizer) is second


def test_thinned_keeps_evenly_spread_items_and_the_latest() -> None:
    for limit in (2, 3, 4, 7, 50):
        record: Thinned[int] = Thinned(limit)
        for number in range(1000):
            record.append(number)
            items = record.items
            assert items[0] == 0
            assert items[-1] == number
            assert len(items) <= limit
            gaps = {b - a for a, b in pairwise(items[:-1])}
            assert len(gaps) <= 1
    with pytest.raises(ValueError, match="limit must be at least 2, got 1"):
        Thinned(1)
