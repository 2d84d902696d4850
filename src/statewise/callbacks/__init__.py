"""What a run does beside training: one callback, one file."""

from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.numerics_guard import NumericsGuard
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth

__all__ = ["GradientNorms", "NumericsGuard", "SpectralProjection", "TrainingHealth"]
