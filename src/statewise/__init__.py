"""Statewise trains state-space models on windows of a time series, and proves that the training trains."""

__version__ = "0.1.0"
