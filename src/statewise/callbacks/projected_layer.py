"""What the spectral projection knows of one layer."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statewise.callbacks.numerics_guard import Diverged
from statewise.callbacks.thinned import Thinned
from statewise.parallel.shards import gathered, here, sharded
from statewise.stability import NonFiniteTransition, Transition, eigenvalues

MEDIUM_STATE = 64
LARGE_STATE = 256
MEDIUM_PACE = 10


class ProjectedLayer:
    """A layer with a transition, its A_bar as last seen (on the CPU), and the record of its eigenvalues.

    `spectrum`, the eigenvalues of that A_bar, and `radius` are known only once they were asked for by `measure`.

    Args:
        name: as in the log.
        layer: a module that implements `statewise.stability.Transition`.
    """

    def __init__(self, name: str, layer: Transition) -> None:
        assert isinstance(layer, nn.Module)
        self.name = name
        self.layer = layer
        self.module: nn.Module = layer
        self.named_parameters = dict(layer.named_parameters())
        self.parameter_ids = frozenset(map(id, self.named_parameters.values()))
        self.sharded = any(map(sharded, self.named_parameters.values()))
        self.n_states = 0
        self.factor = 1.0
        self.steps = 0
        self.stale = True
        self.acted = 0
        self.largest_before = 0.0
        self.A_bar: Tensor | None = None
        self.spectrum: np.ndarray | None = None
        self.radius = math.nan
        self.seen_at = 0
        self.eigenvalues: Thinned[tuple[int, np.ndarray]] = Thinned(50)
        self.radii: Thinned[tuple[int, float]] = Thinned(1000)

    def state_dict(self) -> dict[str, Any]:
        """All that is known and not read off the weights: plain values and tensors."""
        return {
            "steps": self.steps,
            "stale": self.stale,
            "acted": self.acted,
            "largest_before": self.largest_before,
            "A_bar": self.A_bar,
            "spectrum": None if self.spectrum is None else torch.from_numpy(self.spectrum),
            "radius": self.radius,
            "seen_at": self.seen_at,
            "eigenvalues": self.eigenvalues.state_dict(lambda items: [(step, torch.from_numpy(v)) for step, v in items]),
            "radii": self.radii.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse, for a layer of the same size."""
        self.steps, self.stale, self.acted = int(state["steps"]), bool(state["stale"]), int(state["acted"])
        self.largest_before, self.radius = float(state["largest_before"]), float(state["radius"])
        self.A_bar, self.seen_at = state["A_bar"], int(state["seen_at"])
        self.n_states = 0 if self.A_bar is None else self.A_bar.shape[-1]
        self.spectrum = None if state["spectrum"] is None else state["spectrum"].numpy()
        self.eigenvalues.load_state_dict(state["eigenvalues"], lambda items: [(step, v.numpy()) for step, v in items])
        self.radii.load_state_dict(state["radii"], lambda items: [(step, radius) for step, radius in items])

    @contextmanager
    def left_as_it_is(self) -> Iterator[None]:
        """Whatever is done to the parameters, and learnt of them, is undone at the end."""
        values = {name: parameter.detach().clone() for name, parameter in self.named_parameters.items()}
        known = (self.stale, self.largest_before, self.A_bar, self.spectrum, self.radius, self.seen_at)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.named_parameters.items():
                    parameter.copy_(values[name])
            self.stale, self.largest_before, self.A_bar, self.spectrum, self.radius, self.seen_at = known

    def whole_parameters(self) -> dict[str, Tensor]:
        """Copies of all parameters by name; of sharded ones the whole, for which all processes must ask together."""
        values = gathered(list(self.named_parameters.values()))
        return {name: value.detach().clone() for name, value in zip(self.named_parameters, values, strict=True)}

    def due(self) -> bool:
        """Whether the layer is projected at this one of its steps: eigenvalues of large matrices cost too much."""
        n = self.n_states
        return n < MEDIUM_STATE or (n < LARGE_STATE and self.steps % MEDIUM_PACE == 0)

    def transition(self, step: int) -> Tensor:
        """A_bar now, detached; raises Diverged where a parameter that it is made of is not finite."""
        try:
            return self.layer.discrete_transition().detach()
        except ValueError as error:
            # A step size of NaN allows no transition: that is divergence, a negative one is not.
            if all(bool(here(p).isfinite().all()) for p in self.module.parameters()):
                raise
            raise self.not_finite(step) from error

    def not_finite(self, step: int) -> Diverged:
        """The error that names the parameter (or A_bar, where all are finite and it overflowed)."""
        # Whole while the projection works on them; after it perhaps a part, since only one process may ask here.
        bad = (name for name, p in self.module.named_parameters() if not bool(here(p).isfinite().all()))
        name = f"{self.name}.{next(bad, 'A_bar')}"
        return Diverged(
            f"{name} is not finite after step {step}, first seen in the spectral projection: it has no eigenvalues; "
            "lower optimizer.lr or set trainer.gradient_clip_val",
            tensor=name,
            step=step,
        )

    def see(self, A_bar: Tensor, step: int) -> None:
        """A_bar of the weights in force after this step, of which nothing is known yet."""
        self.A_bar, self.seen_at, self.stale = A_bar, step, False
        self.spectrum, self.radius = None, math.nan
        self.n_states, self.factor = A_bar.shape[-1], 1.0

    def was_told(self, n_states: int, factor: float, step: int) -> None:
        """Another process has looked at the layer and scaled its transition; the values of the parameters follow."""
        self.n_states, self.factor, self.seen_at, self.stale = n_states, factor, step, False
        if factor != 1.0:
            self.layer.scale_transition_(factor)

    def scale(self, factor: float) -> None:
        """Scale the transition, and what is known of it along."""
        assert self.A_bar is not None
        assert self.spectrum is not None
        self.layer.scale_transition_(factor)
        self.acted += 1
        self.factor = factor
        self.A_bar, self.spectrum, self.radius = self.A_bar * factor, self.spectrum * factor, self.radius * factor

    def record_radius(self) -> None:
        self.radii.append((self.seen_at, self.radius))

    def record_eigenvalues(self, step: int, last: bool = False) -> None:
        """Put the eigenvalues of A_bar on record, at ever longer distances; the last ones of a fit always."""
        if last and self._is_on_record(step):
            return
        if self.spectrum is not None and (last or self.eigenvalues.wants_next()):
            self.eigenvalues.append((step, self.spectrum))
        else:
            self.eigenvalues.skip()

    def _is_on_record(self, step: int) -> bool:
        latest = self.eigenvalues.items[-1:]
        return self.spectrum is not None and any(at == step and np.array_equal(kept, self.spectrum) for at, kept in latest)


def measure(layers: Sequence[ProjectedLayer]) -> None:
    """Eigenvalues and radii of all A_bar in one batched call for each state size; Diverged where one is not finite."""
    transitions = [layer.A_bar for layer in layers if layer.A_bar is not None]
    assert len(transitions) == len(layers)
    try:
        spectra = eigenvalues(transitions)
    except NonFiniteTransition as error:
        culprit = next(i for i, A_bar in enumerate(transitions) if not bool(A_bar.isfinite().all()))
        raise layers[culprit].not_finite(layers[culprit].seen_at) from error
    for layer, spectrum in zip(layers, spectra, strict=True):
        layer.spectrum, layer.radius = spectrum, float(np.abs(spectrum).max())
        if not math.isfinite(layer.radius):
            raise layer.not_finite(layer.seen_at)
        layer.largest_before = max(layer.largest_before, layer.radius)


def on_host(transitions: Sequence[Tensor]) -> list[Tensor]:
    """The matrices on the CPU, in float64 if they were elsewhere, by one transfer for all of them."""
    if all(A_bar.is_cpu for A_bar in transitions):
        return list(transitions)
    flat = torch.cat([A_bar.reshape(-1) for A_bar in transitions]).to("cpu", torch.float64)
    parts = torch.split(flat, [A_bar.numel() for A_bar in transitions])
    return [part.view(A_bar.shape) for part, A_bar in zip(parts, transitions, strict=True)]
