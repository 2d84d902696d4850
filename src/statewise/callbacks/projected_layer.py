"""What the spectral projection knows of one layer."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from statewise.callbacks.numerics_guard import Diverged
from statewise.callbacks.thinned import Thinned
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
        steps: optimiser steps that it has made before, in a run that is resumed.
    """

    def __init__(self, name: str, layer: Transition, steps: int = 0) -> None:
        assert isinstance(layer, nn.Module)
        self.name = name
        self.layer = layer
        self.named_parameters = dict(layer.named_parameters())
        self.parameter_ids = frozenset(map(id, self.named_parameters.values()))
        self.steps = steps
        self.stale = True
        self.acted = 0
        self.largest_before = 0.0
        self.A_bar: Tensor | None = None
        self.spectrum: np.ndarray | None = None
        self.radius = math.nan
        self.seen_at = 0
        self.eigenvalues: Thinned[tuple[int, np.ndarray]] = Thinned(50)
        self.radii: Thinned[tuple[int, float]] = Thinned(1000)

    def due(self) -> bool:
        """Whether the layer is projected at this one of its steps: eigenvalues of large matrices cost too much."""
        n = 0 if self.A_bar is None else self.A_bar.shape[-1]
        return n < MEDIUM_STATE or (n < LARGE_STATE and self.steps % MEDIUM_PACE == 0)

    def transition(self, step: int) -> Tensor:
        """A_bar now, detached; raises Diverged where a parameter that it is made of is not finite."""
        try:
            return self.layer.discrete_transition().detach()
        except ValueError as error:
            # A step size of NaN allows no transition: that is divergence, a negative one is not.
            if all(bool(p.isfinite().all()) for p in self.named_parameters.values()):
                raise
            raise self.not_finite(step) from error

    def not_finite(self, step: int) -> Diverged:
        """The error that names the parameter (or A_bar, where all are finite and it overflowed)."""
        bad = (name for name, p in self.named_parameters.items() if not bool(p.isfinite().all()))
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

    def scale(self, factor: float) -> None:
        """Scale the transition, and what is known of it along."""
        assert self.A_bar is not None
        assert self.spectrum is not None
        self.layer.scale_transition_(factor)
        self.acted += 1
        self.A_bar, self.spectrum, self.radius = self.A_bar * factor, self.spectrum * factor, self.radius * factor

    def record_radius(self) -> None:
        self.radii.append((self.seen_at, self.radius))

    def record_eigenvalues(self, step: int, last: bool = False) -> None:
        """Put the eigenvalues of A_bar on record, at ever longer distances; the last ones of a fit always."""
        if self.spectrum is not None and (last or self.eigenvalues.wants_next()):
            self.eigenvalues.append((step, self.spectrum))
        else:
            self.eigenvalues.skip()


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
