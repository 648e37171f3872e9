"""Caches: what the layers of a model keep of earlier positions."""
