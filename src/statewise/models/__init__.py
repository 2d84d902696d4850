"""Models: layers of the state-space family, the forecaster that stacks them, and the baselines they must beat."""
