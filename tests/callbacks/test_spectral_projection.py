"""The projection holds every A_bar inside its radius, at every real step, and touches nothing else."""

import logging
import math
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.numerics_guard import Diverged
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.models.dense_ssm import DenseSSM

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Direct(nn.Module):
    """A layer whose parameter is its transition."""

    def __init__(self, A: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(A.clone())

    def discrete_transition(self) -> Tensor:
        return self.A.detach().clone()

    @torch.no_grad()
    def scale_transition_(self, factor: float) -> None:
        self.A.mul_(factor)

    def lift_step_(self) -> float:
        return 0.0


class Memory(DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore[override]
        if any(name.startswith("spectral_radius") for name in metrics):
            self.rows.append((step or 0, metrics))


class Task(L.LightningModule):
    """Layers named ssm_0, ssm_1, ... whose entries the loss pushes outwards, one unit of gradient each."""

    def __init__(self, *transitions: Tensor, lr: float = 0.01, kind: type = torch.optim.SGD, **options) -> None:
        super().__init__()
        self.model = nn.ModuleDict({f"ssm_{i}": Direct(A) for i, A in enumerate(transitions)})
        self.make = lambda parameters: kind(parameters, lr=lr, **options)
        self.seen: list[list[float]] = []

    def loss(self) -> Tensor:
        return -sum(layer.A.sum() for layer in self.model.values())

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen.append(self.radii())
        return self.loss()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.seen.append(self.radii())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make(self.parameters())

    def radii(self) -> list[float]:
        return [radius(layer.discrete_transition()) for layer in self.model.values()]


def radius(A: Tensor) -> float:
    """By numpy, not by the code under test."""
    return float(np.abs(np.linalg.eigvals(A.detach().double().numpy())).max())


def fit(module: L.LightningModule, callback: L.Callback | list[L.Callback], steps: int = 5, **trainer) -> Memory:
    memory = Memory()
    callbacks = callback if isinstance(callback, list) else [callback]
    val = DataLoader(TensorDataset(torch.zeros(1, 1)))
    L.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": memory,
            "callbacks": callbacks,
            "log_every_n_steps": 1,
            "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            **trainer,
        }
    ).fit(module, DataLoader(TensorDataset(torch.zeros(steps, 1))), val)
    return memory


def rotation(angle: float, size: float = 1.0) -> Tensor:
    c, s = math.cos(angle) * size, math.sin(angle) * size
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def jordan(value: float, n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64) * value + torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)


def similar(A: Tensor) -> Tensor:
    T = torch.randn(*A.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return T @ A @ torch.linalg.inv(T)


def random_matrix(n: int) -> Tensor:
    return torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) * (0.8 / n**0.5)


def radius_by_squaring(A: Tensor, doublings: int = 40) -> float:
    """Gelfand's formula, the 2^40-th root of the norm of the 2^40-th power: no eigenvalue routine is asked."""
    power, log_norm = A, 0.0
    for _ in range(doublings):
        size = float(power.norm())
        power, log_norm = (power / size) @ (power / size), 2 * (log_norm + math.log(size))
    return math.exp((log_norm + math.log(float(power.norm()))) / 2**doublings)


# Matrix, radius known by construction or by Gelfand's formula, and how close float64 can come to it.
CASES = {
    "rotation": (rotation(1.0, 0.9), 0.9, 1e-8),
    "jordan": (jordan(0.99, 8), 0.99, 1e-8),
    "jordan-similar": (similar(jordan(0.99, 8)), 0.99, 5e-2),  # eps^(1/8) is what float64 can say about it
    "triangular-huge": (torch.tensor([[0.5, 1000.0], [0.0, 0.5]], dtype=torch.float64), 0.5, 1e-8),
    "zero": (torch.zeros(3, 3, dtype=torch.float64), 0.0, 1e-8),
    "one-by-one": (torch.tensor([[-0.7]], dtype=torch.float64), 0.7, 1e-8),
    "plus-minus-pair": (torch.tensor([[0.0, 0.95], [0.95, 0.0]], dtype=torch.float64), 0.95, 1e-8),
    "random-64": (random_matrix(64), radius_by_squaring(random_matrix(64)), 1e-8),
}


@pytest.mark.parametrize("name", CASES)
def test_the_radius_of_awkward_matrices_is_right_and_those_inside_stay_byte_equal(name: str) -> None:
    A, expected, tolerance = CASES[name]
    task = Task(A, lr=0.0)
    callback = SpectralProjection(threshold=1.1, target=1.05)
    memory = fit(task, callback, steps=1)
    assert memory.rows[0][1]["spectral_radius/ssm_0"] == pytest.approx(expected, abs=tolerance)
    assert memory.rows[0][1]["spectral_projection/acted"] == 0
    assert task.model["ssm_0"].A.detach().numpy().tobytes() == A.numpy().tobytes()


@pytest.mark.parametrize("name", [name for name in CASES if name != "zero"])
def test_awkward_matrices_outside_are_scaled_to_the_target(name: str) -> None:
    A, inside, tolerance = CASES[name]
    start = A * (1.3 / inside)
    task = Task(start, lr=0.0)
    memory = fit(task, SpectralProjection(), steps=1)
    row = memory.rows[0][1]
    assert row["spectral_projection/acted"] == 1
    assert row["spectral_projection/largest_radius"] == pytest.approx(1.3, abs=2 * tolerance)
    assert row["spectral_radius/ssm_0"] == pytest.approx(0.99, abs=tolerance)
    after = task.model["ssm_0"].A.detach()
    factor = float(after[A != 0][0] / start[A != 0][0])
    assert torch.allclose(after, start * factor, rtol=1e-14, atol=0)
    assert factor == pytest.approx(0.99 / 1.3, rel=2 * tolerance)


def test_the_transient_growth_of_a_harmless_radius_is_shown() -> None:
    A, _, _ = CASES["triangular-huge"]
    memory = fit(Task(A, lr=0.0), SpectralProjection(growth_every_n_steps=3), steps=7)
    shown = {step: row["transient_growth/ssm_0"] for step, row in memory.rows if "transient_growth/ssm_0" in row}
    assert list(shown) == [0, 3, 6]
    assert shown[0] == pytest.approx(1000, rel=1e-2)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.05, 3.0), min_size=1, max_size=4), st.integers(1, 5), st.floats(0.3, 0.95))
def test_any_layers_end_below_the_threshold_and_keep_their_direction(values: list[float], n: int, target: float) -> None:
    generator = torch.Generator().manual_seed(len(values))
    starts = []
    for value in values:
        A = torch.randn(n, n, dtype=torch.float64, generator=generator)
        starts.append(A * (value / radius(A)))
    task = Task(*starts)
    callback = SpectralProjection(target=target)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=1)
    trainer.strategy.connect(task)
    task.trainer = trainer
    callback.on_fit_start(trainer, task)
    for start, value, layer in zip(starts, values, task.model.values(), strict=True):
        if radius(start) < 1:
            assert torch.equal(layer.A, start)
        else:
            assert radius(layer.A) == pytest.approx(target, rel=1e-6)
            assert torch.allclose(layer.A / layer.A.norm(), start / start.norm(), atol=1e-12)
        assert value == pytest.approx(radius(start), rel=1e-6)


def test_it_acts_once_at_the_start_and_after_every_real_step() -> None:
    task = Task(rotation(0.5, 1.4), rotation(0.5, 0.5), lr=0.3)
    before = task.model["ssm_1"].A.detach().clone()
    memory = fit(task, SpectralProjection(), steps=4, num_sanity_val_steps=1, limit_val_batches=1)
    assert task.seen[0][0] == pytest.approx(0.99)  # the sanity check of the validation, before the first step
    assert all(max(radii) < 1 for radii in task.seen)
    assert len(memory.rows) == 4
    assert memory.rows[0][1]["spectral_projection/acted"] >= 2  # at the start and at step 1
    assert not torch.equal(before, task.model["ssm_1"].A)


def test_a_layer_inside_is_byte_equal_to_a_run_without_projection() -> None:
    tasks = [Task(rotation(0.5, 1.2), rotation(0.7, 0.4), lr=0.01) for _ in range(2)]
    fit(tasks[0], SpectralProjection())
    fit(tasks[1], [])
    assert torch.equal(tasks[0].model["ssm_1"].A, tasks[1].model["ssm_1"].A)
    assert not torch.equal(tasks[0].model["ssm_0"].A, tasks[1].model["ssm_0"].A)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """(shape, dtype) of every call for eigenvalues."""
    made: list[tuple] = []
    original = torch.linalg.eigvals

    def counted(A: Tensor) -> Tensor:
        made.append((tuple(A.shape), A.dtype))
        return original(A)

    monkeypatch.setattr(torch.linalg, "eigvals", counted)
    return made


def test_all_layers_share_one_batched_eigenvalue_call_per_step(calls: list[tuple]) -> None:
    # So close to the limit no bound rules the threshold out: eigenvalues are taken at every step.
    fit(Task(*[rotation(0.1 * i, 0.9999).float() for i in range(3)], lr=1e-7), SpectralProjection(), log_every_n_steps=5)
    assert calls == [((3, 2, 2), torch.float64)] * (1 + 5)


def test_only_logged_steps_take_eigenvalues_where_the_bound_rules_the_threshold_out(calls: list[tuple]) -> None:
    callback = SpectralProjection()
    task = Task(*[rotation(0.1 * i, 0.5).float() for i in range(3)], lr=1e-4)
    memory = fit(task, callback, steps=20, log_every_n_steps=8)
    assert [step for step, _ in memory.rows] == [0, 7, 15, 20]
    assert calls == [((3, 2, 2), torch.float64)] * (1 + 4)  # at the start, too
    assert sorted({step for step, _, _ in callback.radii}) == [0, 1, 8, 16, 20]
    assert memory.rows[2][1]["spectral_projection/largest_radius"] == pytest.approx(max(task.seen[16]), rel=1e-6)


def test_only_the_layers_that_are_not_ruled_out_take_eigenvalues(calls: list[tuple]) -> None:
    fit(Task(rotation(0.5, 0.5), rotation(0.5, 0.9999), lr=1e-7), SpectralProjection(), steps=3, log_every_n_steps=3)
    # At the start the near one, then the other for the record; the near one alone; at the last and the first step both.
    assert [shape[0] for shape, _ in calls] == [1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("start", [0.5, 0.9, 0.985])
def test_a_radius_over_the_limit_is_brought_back_at_that_very_step(start: float, caplog: pytest.LogCaptureFixture) -> None:
    # Only the first and the last step are logged: between them the bound alone stands guard.
    A = start * torch.eye(1, dtype=torch.float64)
    task, free = Task(A, lr=0.01), Task(A, lr=0.01)
    with caplog.at_level(logging.INFO, logger="statewise"):
        fit(task, SpectralProjection(), steps=60, log_every_n_steps=60)
    fit(free, [], steps=60)
    over = next(i for i, (radius_,) in enumerate(free.seen) if radius_ >= 1)
    assert any(f"reached radius {free.seen[over][0]:.6g} at step {over}, scaled" in r.message for r in caplog.records)
    assert task.seen[:over] == free.seen[:over]
    assert task.seen[over][0] == pytest.approx(0.99)


def steps_made(state: dict) -> dict[str, int]:
    return {name: layer["steps"] for name, layer in state["layers"].items()}


def test_batches_that_only_accumulate_are_left_alone() -> None:
    task = Task(rotation(0.5, 0.9), lr=0.02)
    callback = SpectralProjection()
    memory = fit(task, callback, steps=6, accumulate_grad_batches=3)
    assert [step for step, _ in memory.rows] == [0, 1]
    assert steps_made(callback.state_dict()) == {"ssm_0": 2}
    assert sorted({step for step, _, _ in callback.radii}) == [0, 1, 2]


class LineSearch(Task):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=5)

    def loss(self) -> Tensor:
        return sum((layer.A - 2).square().sum() for layer in self.model.values())


def test_lbfgs_ends_every_step_inside() -> None:
    task = LineSearch(rotation(0.5, 0.9))
    callback = SpectralProjection()
    memory = fit(task, callback, steps=3)
    assert [step for step, _ in memory.rows] == [0, 1, 2]
    assert steps_made(callback.state_dict()) == {"ssm_0": 3}
    assert memory.rows[-1][1]["spectral_projection/acted"] == 1
    assert max(task.radii()) < 1


class TwoOptimisers(Task):
    def __init__(self, *transitions: Tensor) -> None:
        super().__init__(*transitions)
        self.automatic_optimization = False
        self.between: list[list[float]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss())
            optimizer.step()
            self.between.append(self.radii())

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.2) for layer in self.model.values()]


def test_two_optimisers_each_project_the_layers_they_hold() -> None:
    task = TwoOptimisers(rotation(0.5, 0.98), rotation(0.7, 0.98))
    callback = SpectralProjection()
    fit(task, callback, steps=3)
    assert len(task.between) == 6
    assert all(max(radii) < 1 for radii in task.between)
    assert steps_made(callback.state_dict()) == {"ssm_0": 3, "ssm_1": 3}


class Checking(L.Callback):
    """Comes before the projection in the list and looks at the weights that validation and checkpoints see."""

    def __init__(self) -> None:
        self.validated: list[float] = []

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0) -> None:
        self.validated += pl_module.radii()


@pytest.mark.parametrize("n", [4, 64, 256])
def test_validation_and_checkpoints_see_projected_weights_at_every_size(n: int, tmp_path: Path) -> None:
    task = Task(0.999 * torch.eye(n, dtype=torch.float64), lr=0.002)
    checking = Checking()
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    fit(task, [checking, SpectralProjection(), checkpoint], steps=7, limit_val_batches=1, val_check_interval=3)
    assert len(checking.validated) == 2
    assert all(value < 1 for value in checking.validated)
    saved = [torch.load(path)["state_dict"]["model.ssm_0.A"] for path in tmp_path.iterdir()]
    assert len(saved) == 3
    assert all(radius(A) < 1 for A in saved)
    assert max(task.radii()) < 1


def test_a_checkpoint_saved_by_hand_is_projected(tmp_path: Path) -> None:
    class Saving(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            trainer.save_checkpoint(tmp_path / f"{batch_idx}.ckpt")

    task = Task(0.999 * torch.eye(64, dtype=torch.float64), lr=0.002)
    fit(task, [Saving(), SpectralProjection()], steps=3)
    saved = [torch.load(tmp_path / f"{i}.ckpt")["state_dict"]["model.ssm_0.A"] for i in range(3)]
    assert all(radius(A) < 1 for A in saved)


def test_large_states_are_projected_less_often() -> None:
    paces = {}
    for n in (63, 64, 256):
        callback = SpectralProjection()
        # So close to the limit that no bound spares them the eigenvalues, which the record shows.
        fit(Task(0.9999 * torch.eye(n, dtype=torch.float64), lr=1e-9), callback, steps=21, log_every_n_steps=21)
        paces[n] = sorted({step for step, _, _ in callback.radii})
    assert paces[63] == list(range(22))
    assert paces[64] == [0, 10, 20, 21]  # the last one closes the epoch
    assert paces[256] == [0, 21]


def test_the_pace_of_large_states_survives_a_resume(tmp_path: Path) -> None:
    def task() -> Task:
        return Task(0.9999 * torch.eye(64, dtype=torch.float64), lr=1e-9)

    path = tmp_path / "last.ckpt"
    callback = SpectralProjection()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    loader = DataLoader(TensorDataset(torch.zeros(7, 1)))
    trainer.fit(task(), loader)
    trainer.save_checkpoint(path)
    assert steps_made(torch.load(path)["callbacks"]["SpectralProjection"]) == {"ssm_0": 7}
    resumed = SpectralProjection()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        callbacks=[resumed],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(task(), loader, ckpt_path=path)
    assert 10 in {step for step, _, _ in resumed.radii}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_transition_that_is_not_finite_never_reaches_lapack(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.linalg.eigvals

    def checked(A: Tensor) -> Tensor:
        assert A.isfinite().all()
        return original(A)

    class Breaking(Task):
        def loss(self) -> Tensor:
            return super().loss() * (value if len(self.seen) == 3 else 1.0)

    monkeypatch.setattr(torch.linalg, "eigvals", checked)
    with pytest.raises(Diverged, match=r"^ssm_0.A is not finite after step 3, first seen in the spectral pro") as caught:
        fit(Breaking(rotation(0.5, 0.9)), SpectralProjection())
    assert (caught.value.tensor, caught.value.step) == ("ssm_0.A", 3)
    assert "\n" not in str(caught.value)


def test_a_bad_entry_at_the_start_is_named_and_a_huge_one_is_scaled() -> None:
    bad = rotation(0.5, 0.9)
    bad[0, 1] = math.nan
    with pytest.raises(Diverged, match=r"^ssm_1.A is not finite after step 0"):
        fit(Task(rotation(0.1, 0.5), bad), SpectralProjection())
    huge = rotation(0.5, 0.9)
    huge[0, 0] = 1e200
    task = Task(huge, lr=0.0)
    fit(task, SpectralProjection(), steps=1)
    assert radius(task.model["ssm_0"].A) == pytest.approx(0.99)


def test_a_parameter_held_at_the_bound_leaves_it_within_twenty_adam_steps() -> None:
    class Turning(Task):
        def loss(self) -> Tensor:
            return super().loss() * (1.0 if self.global_step < 1000 else -1.0)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) if self.global_step >= 800 else self.loss()

    A = similar(torch.diag(torch.linspace(0.1, 0.97, 6, dtype=torch.float64)))
    task = Turning(A, lr=1e-3, kind=torch.optim.Adam)
    callback = SpectralProjection()
    memory = fit(task, callback, steps=1020, log_every_n_steps=100)
    radii = [radii[0] for radii in task.seen]
    held, turned = radii[:200], radii[200]  # after 800 to 999, and after exactly 1,000 steps outwards
    assert min(held) > 0.98
    assert memory.rows[8][1]["spectral_projection/acted"] > 5  # held there by the projection, again and again
    assert task.radii()[0] < min(min(held), turned) - 1e-3


def test_logged_radii_are_those_of_the_weights_in_force() -> None:
    task = Task(rotation(0.5, 0.98), rotation(0.2, 0.3), lr=0.05)
    callback = SpectralProjection()
    memory = fit(task, callback, steps=4)
    for (step, row), radii in zip(memory.rows, [*task.seen[1:], task.radii()], strict=True):
        for i, value in enumerate(radii):
            assert row[f"spectral_radius/ssm_{i}"] == pytest.approx(value, rel=1e-12)
            assert (step + 1, f"ssm_{i}", row[f"spectral_radius/ssm_{i}"]) in callback.radii
    assert memory.rows[-1][1]["spectral_projection/largest_radius"] > 0.99


def test_what_happened_between_two_logged_steps_is_counted() -> None:
    task = Task(1.5 * torch.eye(1, dtype=torch.float64), lr=0.02)  # 0.99 + 0.02 passes the threshold at every step
    memory = fit(task, SpectralProjection(), steps=10, log_every_n_steps=5)
    assert [(step, row["spectral_projection/acted"]) for step, row in memory.rows] == [(0, 2), (4, 4), (9, 5)]


def test_eigenvalues_over_training_are_kept_evenly_and_few() -> None:
    callback = SpectralProjection()
    task = Task(rotation(0.5, 0.6), torch.tensor([[0.5]], dtype=torch.float64), lr=1e-4)
    fit(task, callback, steps=210)
    for name, n in (("ssm_0", 2), ("ssm_1", 1)):
        moments = [(step, values) for step, layer, values in callback.history if layer == name]
        steps = [step for step, _ in moments]
        assert steps[0] == 0
        assert steps[-1] == 210
        assert 20 <= len(steps) <= 50
        assert all(values.shape == (n,) and np.iscomplexobj(values) for _, values in moments)
        final = task.model[name].discrete_transition().numpy()
        assert np.sort_complex(moments[-1][1]) == pytest.approx(np.sort_complex(np.linalg.eigvals(final)))
    assert [entry[0] for entry in callback.history] == sorted(entry[0] for entry in callback.history)


def test_nothing_to_project_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Plain(Task):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def loss(self) -> Tensor:
            return self.weight.sum()

    with caplog.at_level(logging.INFO, logger="statewise"):
        memory = fit(Plain(), SpectralProjection(), max_epochs=2, limit_val_batches=1)
    assert memory.rows == []
    assert len([r for r in caplog.records if "nothing to project" in r.message]) == 1


def test_hooks_are_gone_after_the_fit_and_after_an_exception() -> None:
    class Failing(Task):
        def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
            raise KeyError("stop here")

    for kind in (Task, Failing):
        task = kind(rotation(0.1, 0.5))
        kept: list[torch.optim.Optimizer] = []
        task.configure_optimizers = lambda task=task, kept=kept: kept.append(Task.configure_optimizers(task)) or kept[0]
        try:
            fit(task, SpectralProjection(), steps=1)
        except KeyError:
            assert kind is Failing
        assert len(kept) == 1
        assert not kept[0]._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 1.0}, "callbacks.spectral_projection.target must lie between 0 and .* got 1.0"),
        ({"target": 0.0}, "callbacks.spectral_projection.target must lie between 0 and .* got 0.0"),
        ({"target": math.nan}, "callbacks.spectral_projection.target must lie between 0 and .* got nan"),
        ({"threshold": 0.9}, r"callbacks.spectral_projection.threshold \(0.9\), both excluded, got 0.99"),
        ({"threshold": math.inf}, "callbacks.spectral_projection.threshold must be a number above 0, got inf"),
        ({"growth_every_n_steps": 0}, "callbacks.spectral_projection.growth_every_n_steps must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SpectralProjection(**arguments)
    assert "\n" not in str(caught.value)


class RealLayers(L.LightningModule):
    """Two dense SSM layers in a row, pushed outwards by a loss on the size of their output."""

    def __init__(self, discretization: str, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {f"ssm_{i}": DenseSSM(d_model=3, expand=2, d_state=5, discretization=discretization) for i in range(2)}
        ).to(dtype)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        y = batch[0]
        for layer in self.model.values():
            y, _ = layer(y)
        return -y.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("discretization", ["direct", "zoh"])
def test_dense_layers_stay_inside_in_every_discretisation(discretization: str, dtype: torch.dtype) -> None:
    module = RealLayers(discretization, dtype)
    callback = SpectralProjection()
    memory = Memory()
    torch.manual_seed(1)
    L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=memory,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    ).fit(module, DataLoader(TensorDataset(torch.randn(60, 12, 6, dtype=dtype)), batch_size=2))
    assert sum(row["spectral_projection/acted"] for _, row in memory.rows) > 0
    for layer in module.model.values():
        assert radius(layer.discrete_transition()) < 1


def test_a_step_size_that_is_too_small_is_lifted_first_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    module = RealLayers("zoh", torch.float64)
    with torch.no_grad():
        module.model["ssm_0"].delta.fill_(1e-5)
    with caplog.at_level(logging.INFO, logger="statewise"):
        callback = SpectralProjection()
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer.strategy.connect(module)
        callback.on_fit_start(trainer, module)
    assert float(module.model["ssm_0"].delta.detach().mean()) == pytest.approx(1e-3)
    assert any("the step size of ssm_0 was lifted by 0.00099 at step 0" in r.message for r in caplog.records)


def test_a_step_size_of_nan_is_named_as_the_parameter_that_it_is() -> None:
    module = RealLayers("zoh", torch.float64)
    with torch.no_grad():
        module.model["ssm_1"].delta[0] = math.nan
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(module)
    with pytest.raises(Diverged, match=r"^ssm_1.delta is not finite after step 0"):
        SpectralProjection().on_fit_start(trainer, module)
