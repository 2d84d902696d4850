"""Index arithmetic: where train, val and test lie, and which windows and batches there are."""
