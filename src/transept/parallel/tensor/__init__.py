"""Tensor parallelism: several processes hold parts of each matrix, and compute each layer together."""
