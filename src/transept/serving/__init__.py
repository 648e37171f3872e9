"""Answering many people at once: an engine that reads and writes for all of them in one pass."""
