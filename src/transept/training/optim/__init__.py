"""Optimizers and learning rates beyond those of PyTorch."""
