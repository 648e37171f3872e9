"""Measurements against the peers, interleaved with them in one run."""
