"""The autograd graph of a loss: what it reaches, where it is cut, and what its nodes give away."""
