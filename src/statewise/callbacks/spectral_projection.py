"""After each optimiser step brings the spectral radius of every A_bar back under its limit."""

import logging
import math
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from statewise.callbacks.gradient_ledger import short_names
from statewise.callbacks.projected_layer import ProjectedLayer, measure, on_host
from statewise.callbacks.projected_together import by_the_first
from statewise.callbacks.real_steps import RealSteps, log_due, log_pace, log_scalars
from statewise.parallel.ranks import rank
from statewise.parallel.shards import gathered, part_like
from statewise.stability import Transition, radius_bound, transient_growth

log = logging.getLogger(__name__)


class SpectralProjection(L.Callback):
    """Scales every A_bar whose spectral radius reaches `threshold` to radius `target`, and leaves all others alone.

    It acts after every real optimiser step on the layers that the optimizer holds, and once at the start. Eigenvalues
    cost more than powers: where a bound from those (`statewise.stability.radius_bound`) rules the threshold out, they are
    taken on logged steps only, all others in one batched float64 call per state size. Large states cost more than a step
    either way: from 64 on it acts every 10 steps, from 256 on once an epoch; whatever the size, validation and checkpoints
    see projected weights. A matrix that holds NaN or infinity has no bound and raises `Diverged` before LAPACK sees it.
    The optimiser's state is not touched, so that a parameter at the limit leaves it as soon as its gradient points
    inwards. Layers are found by what they can do (`statewise.stability.Transition`), never by name. Where several processes
    train, the first decides and tells (projected_together.py): the matrices are equal bit for bit, and only it knows radii.

    Tags, on logged steps: `spectral_radius/<layer>` (of the weights in force), `spectral_projection/acted` (how often a
    matrix was scaled since the last log), `spectral_projection/largest_radius` (the largest one, before scaling, of those
    computed since then: every one that the bound did not rule out, and those of the logged step), and at a slower pace
    `transient_growth/<layer>`, the max over k of the norm of A_bar^k, which no radius bounds. Rounding can put the radius
    of a defective matrix of n states off by eps^(1/n): `target` keeps that margin.

    Args:
        threshold: the radius from which on a matrix is scaled.
        target: the radius it is scaled to, below threshold.
        growth_every_n_steps: optimiser steps between two computations of the transient growth, at least.

    Raises:
        ValueError: 0 < target < threshold does not hold, or growth_every_n_steps is below 1.
    """

    def __init__(self, threshold: float = 1.0, target: float = 0.99, growth_every_n_steps: int = 100) -> None:
        if not 0 < threshold < math.inf:
            raise ValueError(f"callbacks.spectral_projection.threshold must be a number above 0, got {threshold}")
        if not 0 < target < threshold:
            raise ValueError(
                "callbacks.spectral_projection.target must lie between 0 and "
                f"callbacks.spectral_projection.threshold ({threshold}), both excluded, got {target}"
            )
        if growth_every_n_steps < 1:
            raise ValueError(
                f"callbacks.spectral_projection.growth_every_n_steps must be at least 1, got {growth_every_n_steps}"
            )
        self.threshold = threshold
        self.target = target
        self.growth_every_n_steps = growth_every_n_steps
        self._steps = RealSteps()
        self._layers: list[ProjectedLayer] = []
        self._held: dict[int, tuple[list[int], list[ProjectedLayer]]] = {}
        self._saved: dict[str, Any] = {}
        self._resumed = False
        self._trainer: L.Trainer | None = None
        self._grown_at: int | None = None
        self._lifts = 0
        self._said: set[str] = set()
        self._unlogged = False
        self._stepped = False

    @property
    def history(self) -> list[tuple[int, str, np.ndarray]]:
        """(step, layer, eigenvalues of A_bar) over the fit, at most about 50 moments per layer, in order of steps."""
        entries = [(step, layer.name, values) for layer in self._layers for step, values in layer.eigenvalues.items]
        return sorted(entries, key=lambda entry: entry[0])

    @property
    def radii(self) -> list[tuple[int, str, float]]:
        """(step, layer, spectral radius of the weights in force) where it was computed, thinned, in order of steps."""
        entries = [(step, layer.name, radius) for layer in self._layers for step, radius in layer.radii.items]
        return sorted(entries, key=lambda entry: entry[0])

    def state_dict(self) -> dict[str, Any]:
        """Every layer's record, and the parameters in force of those that the file holds projected (on_save_checkpoint)."""
        stale = [layer for layer in self._layers if layer.stale]
        return {
            "layers": {layer.name: layer.state_dict() for layer in self._layers},
            "in_force": {layer.name: layer.whole_parameters() for layer in stale},
            "lifts": self._lifts,
            "grown_at": self._grown_at,
            "unlogged": self._unlogged,
            "said": sorted(self._said),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "layers" not in state_dict:
            return
        self._saved = dict(state_dict)
        if self._layers:  # a strategy that restores only after the fit has begun
            self._go_on()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        found = [(name, module) for name, module in pl_module.named_modules() if isinstance(module, Transition)]
        names = [name or type(module).__name__ for name, (_, module) in zip(short_names(found), found, strict=True)]
        self._layers = [ProjectedLayer(name, module) for name, (_, module) in zip(names, found, strict=True)]
        self._held.clear()
        self._grown_at, self._resumed = None, False
        if not self._layers:
            log.info("spectral_projection: nothing to project, no layer of %s has a transition", type(pl_module).__name__)
            return
        self._trainer = trainer
        self._steps.attach(trainer, self._after_step)
        self._go_on()
        if not (self._resumed or trainer.strategy.restore_checkpoint_after_setup):
            self._bring_up_to_date()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._resumed:
            return
        self._bring_up_to_date()
        self._measure_the_rest()
        for layer in self._layers:
            layer.record_eigenvalues(trainer.global_step)

    @torch.no_grad()
    def _go_on(self) -> None:
        """Where the run that is resumed was, if its layers are these."""
        saved, self._saved = self._saved, {}
        known = saved.get("layers", {})
        if not self._layers or any(layer.name not in known for layer in self._layers):
            return
        for layer in self._layers:
            layer.load_state_dict(known[layer.name])
            for name, value in saved["in_force"].get(layer.name, {}).items():
                parameter = layer.named_parameters[name]
                parameter.copy_(part_like(parameter, value))
        self._lifts, self._grown_at = int(saved["lifts"]), saved["grown_at"]
        self._unlogged, self._said = bool(saved["unlogged"]), set(saved["said"])
        self._resumed = True

    def _after_step(self, index: int, optimizer: Optimizer) -> None:
        self._stepped = True
        due = []
        for layer in self._held_by(index, optimizer):
            layer.steps += 1
            layer.stale = True
            if layer.due():
                due.append(layer)
        if due:
            assert self._trainer is not None
            self._project(due, self._trainer.global_step + 1)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._layers:
            return
        stepped, self._stepped = self._stepped, False
        if stepped and (log_due(trainer) or (self._grown_at is None and log_pace(trainer) > 0)):
            self._log(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._bring_up_to_date()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._bring_up_to_date()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        # Copies for the file: if the run itself were projected here, its steps would depend on when checkpoints are written.
        stale = [layer for layer in self._layers if layer.stale]
        names = {id(parameter): name for name, parameter in pl_module.named_parameters()}
        for layer in stale:
            with layer.left_as_it_is():
                by_the_first([layer], partial(self._project_quietly, layer, trainer.global_step), trainer.global_step)
                parameters = list(layer.named_parameters.values())
                for parameter, value in zip(parameters, gathered(parameters), strict=True):
                    checkpoint["state_dict"][names[id(parameter)]] = value.detach().clone()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Not when training ends: of a run that was killed after its last epoch only the rest is done, and this belongs to it.
        self._bring_up_to_date()
        self._measure_the_rest()
        for layer in self._layers:
            layer.record_eigenvalues(trainer.global_step, last=True)
        if self._unlogged and log_pace(trainer) > 0:
            self._log(trainer)
        self._steps.detach()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._steps.detach()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._steps.detach()
        self._trainer = None

    def _held_by(self, index: int, optimizer: Optimizer) -> list[ProjectedLayer]:
        """The layers with a parameter in this optimizer; looked up again where its groups have grown."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if index not in self._held or self._held[index][0] != sizes:
            stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
            held = [layer for layer in self._layers if not layer.parameter_ids.isdisjoint(stepped)]
            self._held[index] = (sizes, held)
        return self._held[index][1]

    # Validation runs in inference mode; a weight that was replaced in there could not be trained afterwards.
    @torch.inference_mode(False)
    def _bring_up_to_date(self) -> None:
        """Project the layers that have stepped since they were last looked at."""
        stale = [layer for layer in self._layers if layer.stale]
        if stale and self._trainer is not None:
            self._project(stale, self._trainer.global_step)

    def _project(self, layers: list[ProjectedLayer], step: int) -> None:
        by_the_first(layers, partial(self._project_here, layers, step), step)

    @torch.no_grad()
    def _project_here(self, layers: list[ProjectedLayer], step: int) -> None:
        for layer in layers:
            self._lift(layer, step)
        unsure = []
        for layer, A_bar in zip(layers, on_host([layer.transition(step) for layer in layers]), strict=True):
            layer.see(A_bar, step)
            # True as well of NaN and infinity, which have no bound.
            if not radius_bound(A_bar, self.threshold) < self.threshold:
                unsure.append(layer)
        if unsure:
            measure(unsure)
        for layer in unsure:
            if layer.radius >= self.threshold:
                self._say_once(
                    f"acted {layer.name}",
                    f"spectral_projection: {layer.name} reached radius {layer.radius:.6g} at step {step}, scaled to "
                    f"{self.target:g}; further ones are counted in spectral_projection/acted",
                )
                layer.scale(self.target / layer.radius)
            layer.record_radius()
        self._unlogged = True

    @torch.no_grad()
    def _project_quietly(self, layer: ProjectedLayer, step: int) -> None:
        """The projection by itself: nothing is recorded, counted or said."""
        layer.layer.lift_step_()
        layer.see(on_host([layer.transition(step)])[0], step)
        measure([layer])
        if layer.radius >= self.threshold:
            layer.factor = self.target / layer.radius
            layer.layer.scale_transition_(layer.factor)

    def _measure_the_rest(self) -> None:
        """Radii and eigenvalues of the A_bar as last seen, where the bound has spared them so far."""
        rest = [layer for layer in self._layers if layer.spectrum is None and layer.A_bar is not None]
        if rest:
            measure(rest)
            for layer in rest:
                layer.record_radius()

    def _lift(self, layer: ProjectedLayer, step: int) -> None:
        lifted = layer.layer.lift_step_()
        if lifted:
            self._lifts += 1
            self._say_once(
                f"lifted {layer.name}",
                f"spectral_projection: the step size of {layer.name} was lifted by {lifted:.3g} at step {step}; "
                "further ones are counted in spectral_projection/lifted",
            )

    def _log(self, trainer: L.Trainer) -> None:
        if rank():
            return  # the first process knows the radii, and writes for all
        step = trainer.global_step
        self._measure_the_rest()
        scalars = {f"spectral_radius/{layer.name}": layer.radius for layer in self._layers}
        scalars["spectral_projection/acted"] = float(sum(layer.acted for layer in self._layers))
        scalars["spectral_projection/largest_radius"] = max(layer.largest_before for layer in self._layers)
        if self._lifts:
            scalars["spectral_projection/lifted"] = float(self._lifts)
        if self._grown_at is None or step - self._grown_at >= self.growth_every_n_steps:
            self._grown_at = step
            for layer in self._layers:
                assert layer.A_bar is not None
                scalars[f"transient_growth/{layer.name}"] = transient_growth(layer.A_bar)
        for layer in self._layers:
            layer.acted, layer.largest_before = 0, 0.0
            layer.record_eigenvalues(step)
        self._lifts, self._unlogged = 0, False
        log_scalars(trainer, scalars)

    def _say_once(self, key: str, sentence: str) -> None:
        if key not in self._said:
            self._said.add(key)
            log.info(sentence)
