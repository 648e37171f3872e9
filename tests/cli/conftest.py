"""The command and its models, for all tests of it."""

from __future__ import annotations

from .commands import classifier, command, encoder

__all__ = ["classifier", "command", "encoder"]
