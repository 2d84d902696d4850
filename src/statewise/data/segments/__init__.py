"""Which rows may stand in one window: gaps in time, missing values, and what may be filled."""
