"""Fixtures of this folder's tests."""

from __future__ import annotations

from .text_models import text_model

__all__ = ["text_model"]
