"""What tests and programs of the reference use to look at its messages."""

from __future__ import annotations

import io
import logging
from typing import Any, Self


class CaptureLogger:
    """Within it, the messages of a logger; afterwards they are its text ``out``."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger, self.io, self.out = logger, io.StringIO(), ""
        self.sh = logging.StreamHandler(self.io)

    def __enter__(self) -> Self:
        self.logger.addHandler(self.sh)
        return self

    def __exit__(self, *error: Any) -> None:
        self.logger.removeHandler(self.sh)
        self.out = self.io.getvalue()

    def __repr__(self) -> str:
        return f"captured: {self.out}\n"
