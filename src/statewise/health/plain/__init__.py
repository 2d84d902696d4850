"""A plain PyTorch loop: its batches, backward passes and updates, seen without a Trainer."""
