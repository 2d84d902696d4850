"""Fits whose parameters lie in two processes that talk over gloo, for test_sharding.py: `python two_shards.py FOLDER`.

Writes FOLDER/<case>.<rank>.json, what each process knows at the end. The processes are forked, so nothing may differentiate in
this one. Nothing of a case depends on the number of processes: `fit` is called by the test, too, in one.
"""

import json
import logging
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from statewise.callbacks import projected_layer
from statewise.callbacks.exact_order import ExactOrder
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.numerics_guard import Diverged, NumericsGuard
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth
from statewise.checkpoints import AtomicCheckpointIO
from statewise.data.datasets import LTI
from statewise.faults import frozen_A, written_back_A, wrong_key
from statewise.health import UnhealthyTraining
from statewise.lightning_log import quieten_lightning
from statewise.models.dense_ssm import DenseSSM, dense_ssm
from statewise.models.diagonal_ssm import diagonal_ssm
from statewise.models.gru import gru
from statewise.models.mamba2 import mamba2
from statewise.models.nlinear import nlinear
from statewise.optim import adamw
from statewise.parallel import sharding
from statewise.parallel.ranks import rank, together, world_size
from statewise.parallel.sharding import ShardedStrategy, precision_of
from statewise.parallel.shards import gathered
from statewise.schedules import warmup_cosine
from statewise.task import Forecasting

STEPS, BATCH, WINDOW = 20, 8, 6
MODELS = {"dense_ssm": dense_ssm, "diagonal_ssm": diagonal_ssm, "mamba2": mamba2, "gru": gru, "nlinear": nlinear}
SIZES: dict[str, dict[str, Any]] = {
    # Five states on two processes, and an output of one row: parts of unequal size, and empty ones.
    "dense_ssm": {"d_model": 4, "d_state": 5, "n_layers": 2, "anchor": "none"},
    "diagonal_ssm": {"d_model": 5, "d_state": 4, "n_layers": 2, "anchor": "none"},
    "mamba2": {"d_model": 6, "d_state": 4, "headdim": 4, "n_layers": 1, "anchor": "none"},
    "gru": {"d_model": 5, "n_layers": 1, "anchor": "none"},
    "nlinear": {"look_back": WINDOW},
}


class Batch(NamedTuple):
    inputs: Tensor
    targets: Tensor
    observed: Tensor


class Chunk(NamedTuple):
    inputs: Tensor
    targets: Tensor
    observed: Tensor
    fresh: Tensor


def rows(streams: bool = False) -> Any:
    """Of a series that a linear system makes, so that there is something to learn."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS * BATCH, WINDOW, 2, generator=generator, dtype=torch.float64)
    targets = inputs.sum((1, 2), keepdim=True)[..., None] + 0.1 * inputs[:, -1:, :1, None]
    batch = Batch(inputs, targets, torch.ones_like(targets, dtype=torch.bool))
    return Chunk(*batch, torch.arange(len(inputs)) < BATCH) if streams else batch


def loader(batches: int = STEPS, streams: bool = False) -> DataLoader:
    """Batches of the same rows, in the same order, whatever the number of processes: each takes its part of every one."""
    everything = rows(streams)
    own = [list(range(i * BATCH, (i + 1) * BATCH))[rank() :: world_size()] for i in range(batches)]
    return DataLoader(
        range(len(own)), batch_size=None, collate_fn=lambda i: type(everything)(*(part[own[i]] for part in everything))
    )


def task(kind: str = "dense_ssm", **model: Any) -> Forecasting:
    torch.manual_seed(0)
    shape = {"n_features": 2} | SIZES[kind] | model
    network = MODELS[kind](n_outputs=1, horizon=1, target_inputs=(0,), targets_are_levels=True, **shape).double()
    return Forecasting(
        network,
        optimizer=partial(adamw, lr=1e-2),
        scheduler=partial(warmup_cosine, warmup_steps=2),
        target_names=["y"],
        horizon=1,
        supervision="last",
    )


class Losses(L.Callback):
    """The global loss of every step: the mean over processes, whose parts are of one size."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs["loss"].detach().clone()
        if together():
            dist.all_reduce(loss)
            loss /= world_size()
        self.values.append(float(loss))


def trainer(folder: Path, callbacks: Sequence[L.Callback], engine: str = "fsdp", **options: Any) -> L.Trainer:
    quieten_lightning()
    alone = "LOCAL_RANK" not in os.environ
    strategy = "auto" if alone else ShardedStrategy() if engine == "fsdp" else DDPStrategy(process_group_backend="gloo")
    name = "auto" if alone else engine
    precision, plugins = precision_of(SimpleNamespace(strategy=name, precision="64-true"))
    settings: dict[str, Any] = {"max_epochs": 1, "gradient_clip_val": 0.5, "log_every_n_steps": 1} | options
    return L.Trainer(
        accelerator="cpu", devices=1 if alone else 2, strategy=strategy, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, num_sanity_val_steps=0,
        default_root_dir=folder, callbacks=list(callbacks), precision=precision, plugins=[*plugins, AtomicCheckpointIO()],
        **settings,
    )  # fmt: skip


def weights(module: Forecasting) -> dict[str, Any]:
    names, parameters = zip(*module.model.named_parameters(), strict=True)
    return {name: values.tolist() for name, values in zip(names, gathered(parameters), strict=True)}


def fit(folder: Path, module: Forecasting, **options: Any) -> dict[str, Any]:
    """One epoch of STEPS steps with all that a run has, and what is known at its end."""
    losses, norms = Losses(), GradientNorms()
    health = TrainingHealth(policy=options.pop("policy", "warn"))
    projection = SpectralProjection(**options.pop("projection", {}))
    streams = options.pop("streams", False)
    engine = trainer(folder, [losses, norms, health, projection, NumericsGuard()], **options)
    error = ""
    try:
        engine.fit(module, loader(streams=streams), loader(3))
    except (UnhealthyTraining, Diverged, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    steps, names, history = norms.history
    return {
        "error": error,
        "losses": losses.values,
        "weights": weights(module),
        "norms": {"steps": steps, "names": names, "values": history.tolist()},
        "none": norms.none,
        "health": health.report(),
        "radii": projection.radii,
        "validation": {name: float(value) for name, value in engine.callback_metrics.items() if name.startswith("val")},
    }


# -- the cases ---------------------------------------------------------------------------------------------------------


def of_kind(kind: str, folder: Path) -> dict[str, Any]:
    return fit(folder, task(kind))


def accumulated(folder: Path) -> dict[str, Any]:
    return fit(folder, task(), accumulate_grad_batches=2)


def recomputed(folder: Path) -> dict[str, Any]:
    return fit(folder, task(checkpoint_blocks=True))


def streams(folder: Path) -> dict[str, Any]:
    return fit(folder, task(), streams=True)


def tight(discretization: str, folder: Path) -> dict[str, Any]:
    """The radii begin near 0.99, so that a threshold below it is reached all the time."""
    module = task(discretization=discretization)
    return fit(folder, module, projection={"threshold": 0.97, "target": 0.96})


def lifted(folder: Path) -> dict[str, Any]:
    """Steps of a zero-order hold that are too small."""
    module = task(discretization="zoh")
    with torch.no_grad():
        for layer in module.model.layers:
            layer.delta.fill_(1e-4)
    return fit(folder, module)


def frozen(engine: str, folder: Path) -> dict[str, Any]:
    module = task()
    frozen_A(module)
    return fit(folder, module, policy="error", engine=engine)


def spoiled_by(fault: Callable[[Forecasting], None], folder: Path) -> dict[str, Any]:
    module = task()
    fault(module)
    return fit(folder, module)


def swallowed(folder: Path) -> dict[str, Any]:
    module = task()
    module.make_optimizer = partial(adamw, lr=1e-19)
    return fit(folder, module)


class HalfStill(DenseSSM):
    """The gradient of A is exactly zero in its first rows: three of five are the whole part of the first process."""

    silent_rows = 3

    def _discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        A_bar, *others = super()._discrete()
        kept = torch.arange(5)[:, None] >= self.silent_rows
        return torch.where(kept, A_bar, A_bar.detach() + 0.0 * A_bar), *others


class AllStill(HalfStill):
    silent_rows = 5


def still(kind: type[DenseSSM], folder: Path) -> dict[str, Any]:
    module = task()
    module.model.ssm_0.__class__ = kind
    return fit(folder, module)


def ten_steps(folder: Path) -> dict[str, Any]:
    """The first half of a run, and the file that it leaves, gathered a few parameters at a time."""
    losses, sharding.PORTION = Losses(), 100
    engine = trainer(folder, [losses, SpectralProjection(), TrainingHealth()], max_steps=10)
    engine.fit(module := task(), loader(), loader(3))
    engine.save_checkpoint(folder / "ten.ckpt", weights_only=False)
    return {"losses": losses.values, "weights": weights(module)}


def gone_on(written_by: str, folder: Path) -> dict[str, Any]:
    """Another epoch, from what one or two processes have left."""
    losses = Losses()
    engine = trainer(folder, [losses, SpectralProjection(), TrainingHealth()], max_epochs=2)
    engine.fit(module := task(), loader(), loader(3), ckpt_path=folder.parent / written_by / "ten.ckpt", weights_only=True)
    engine.save_checkpoint(folder / "end.ckpt", weights_only=False)
    return {"losses": losses.values, "weights": weights(module)}


def stopped_and_gone_on(folder: Path) -> dict[str, Any]:
    """Real data, dropout of none; stopped inside the second epoch and between two steps, and gone on from the file."""

    def run(losses: Losses, resume: Path | None = None, stop: int = -1) -> dict[str, Any]:
        torch.manual_seed(0)
        data = LTI(steps=300, window=8, batch_size=32, outputs=1, states=2)
        data.dtype = torch.float64
        data.setup()
        module = task(n_features=3)
        callbacks: list[L.Callback] = [losses, SpectralProjection(), TrainingHealth(), ExactOrder(0), StopAt(stop, folder)]
        engine = trainer(folder, callbacks, max_epochs=2, accumulate_grad_batches=2)
        with suppress(StoppedHere):
            engine.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        return weights(module)

    whole_run, before, after = Losses(), Losses(), Losses()
    expected = run(whole_run)
    run(before, stop=9)
    found = run(after, resume=folder / "here.ckpt")
    return {"losses": after.values, "weights": found, "expected": expected, "whole_run": whole_run.values}


class StoppedHere(Exception):
    """The run has been left."""


class StopAt(L.Callback):
    """Writes a checkpoint after so many batches of the run and leaves it."""

    def __init__(self, batches: int, folder: Path) -> None:
        self.left, self.folder = batches, folder

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.folder / "here.ckpt", weights_only=False)
            raise StoppedHere


def other_arithmetic(folder: Path) -> dict[str, Any]:
    """The second process is on a machine whose LAPACK and logarithm have other last digits."""
    calls = []
    original = projected_layer.eigenvalues

    def elsewhere(transitions: Any, names: Any = None) -> Any:
        calls.append(len(transitions))
        return [values * (1 + 1e-9 * rank()) for values in original(transitions, names)]

    projected_layer.eigenvalues = elsewhere
    try:
        module = task(discretization="zoh")
        found = fit(folder, module, projection={"threshold": 0.97, "target": 0.96}, engine="ddp")
    finally:
        projected_layer.eigenvalues = original
    return found | {"calls": len(calls)}


def nan_in_A(folder: Path) -> dict[str, Any]:
    """Only the first process looks at the transitions; the others must hear that they are none."""
    module = task()
    with torch.no_grad():
        module.model.ssm_1.A[0, 0] = torch.nan
    return fit(folder, module, engine="ddp")


class Spoilt(Forecasting):
    """The fourth batch of the second process is no number; or its loss is none, and its gradient is."""

    gradient_too = True

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        bad = rank() == 1 and batch_idx == 3
        if bad and self.gradient_too:
            batch = batch._replace(inputs=batch.inputs * torch.nan)
        loss = super().training_step(batch, batch_idx)
        return loss + torch.inf if bad and not self.gradient_too else loss


class SpoiltLoss(Spoilt):
    gradient_too = False


def spoilt(kind: type[Forecasting], engine: str, folder: Path) -> dict[str, Any]:
    module = task()
    module.__class__ = kind
    return fit(folder, module, engine=engine, log_every_n_steps=5)


# What a single process is asked as well, to compare with; the others are about two.
ALIKE: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{kind: partial(of_kind, kind) for kind in MODELS},
    "accumulated": accumulated,
    "recomputed": recomputed,
    "streams": streams,
    "direct": partial(tight, "direct"),
    "zoh": partial(tight, "zoh"),
    "lifted": lifted,
    "frozen": partial(frozen, "fsdp"),
    "written_back": partial(spoiled_by, written_back_A),
    "wrong_key": partial(spoiled_by, wrong_key),
    "swallowed": swallowed,
    "half_still": partial(still, HalfStill),
    "all_still": partial(still, AllStill),
    "ten": ten_steps,
    "from_one": partial(gone_on, "one"),
    "gone_on": stopped_and_gone_on,
}
CASES = ALIKE | {
    "from_two": partial(gone_on, "ten"),
    "frozen_ddp": partial(frozen, "ddp"),
    "other_arithmetic": other_arithmetic,
    "nan_in_A": nan_in_A,
    "spoilt": partial(spoilt, Spoilt, "fsdp"),
    "spoilt_ddp": partial(spoilt, Spoilt, "ddp"),
    "spoilt_loss": partial(spoilt, SpoiltLoss, "fsdp"),
}


def run(place: int, port: int, into: Path, only: Sequence[str]) -> None:
    os.environ |= {"RANK": str(place), "LOCAL_RANK": str(place), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    for name in only or CASES:
        folder = into / name
        folder.mkdir(exist_ok=True)
        try:
            told = CASES[name](folder)
        except Exception:
            told = {"traceback": traceback.format_exc()}
        (into / f"{name}.{place}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for place in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(place, port, Path(sys.argv[1]), sys.argv[2:])
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
