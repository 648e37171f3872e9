"""Tokenizers that work in Python: by a subclass's methods, or by tables."""
