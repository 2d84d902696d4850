"""From a file or a generator to batches of windows."""
