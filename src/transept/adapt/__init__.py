"""Transformations of built models: the network computes the same, the state dict keeps its names."""
