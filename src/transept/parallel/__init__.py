"""Several processes that share a model's data, weights or layers, by PyTorch's own parts."""
