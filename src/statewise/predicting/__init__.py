"""A trained model on data that no run has seen: a whole file (whole.py), or bars as they come (stream.py)."""
