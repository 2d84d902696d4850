"""Data with a known answer."""
