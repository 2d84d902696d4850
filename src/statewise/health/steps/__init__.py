"""The real steps of an optimizer: gradients, updates and learning rates over the whole run, within a budget of time."""
