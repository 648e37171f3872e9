"""Models: which of them are loaded."""

from __future__ import annotations

from transept.serving.protocol.base import Body, Name, Using


class LoadRequest(Using):
    """A model to load."""

    model: Name


class UnloadRequest(Body):
    """A model to take away."""

    model: Name
