"""The command and its models: long work is mostly tested as people do it."""

from __future__ import annotations

from tests.cli.commands import classifier, command, encoder

__all__ = ["classifier", "command", "encoder"]
