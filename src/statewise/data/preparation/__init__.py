"""A table scaled into one tensor, kept for the next run, and the account of it."""
