"""How much the library says: loggers below ``transept``, and its warnings, by the reference's functions."""

from __future__ import annotations

import logging
import sys
import warnings
from functools import cache, partial
from logging import CRITICAL, DEBUG, ERROR, FATAL, INFO, NOTSET, WARN, WARNING, captureWarnings
from typing import Any

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, tqdm
from huggingface_hub.utils.tqdm import disable_progress_bars as disable_progress_bar
from huggingface_hub.utils.tqdm import enable_progress_bars as enable_progress_bar

from transept.errors import TranseptWarning

log_levels = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "critical": CRITICAL, "detail": INFO}
__all__ = ["CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARN", "WARNING", "get_logger", "set_verbosity"]
__all__ += ["captureWarnings", "disable_progress_bar", "enable_progress_bar", "tqdm"]


def get_logger(name: str | None = None) -> logging.Logger:
    """The library's logger, or one of that name. It has ``warning_once`` and ``info_once``, which say a thing once."""
    logger: Any = logging.getLogger(name or __package__)
    if not hasattr(logger, "warning_once"):
        logger.warning_once, logger.info_once = cache(logger.warning), cache(logger.info)
        logger.warning_advice = logger.warning
    return logger  # type: ignore[no-any-return]


def get_log_levels_dict() -> dict[str, int]:
    """The levels by name."""
    return log_levels


def get_verbosity() -> int:
    """The level from which on messages are shown."""
    return get_logger().getEffectiveLevel()


def set_verbosity(verbosity: int) -> None:
    """Show messages from a level on; above ``WARNING`` the library's warnings are silent, too."""
    get_logger().setLevel(verbosity)
    warnings.filterwarnings("ignore" if verbosity > WARNING else "default", category=TranseptWarning)


set_verbosity_debug = partial(set_verbosity, DEBUG)
set_verbosity_info = partial(set_verbosity, INFO)
set_verbosity_warning = partial(set_verbosity, WARNING)
set_verbosity_error = partial(set_verbosity, ERROR)


def is_progress_bar_enabled() -> bool:
    """Whether bars are shown while files are fetched."""
    return not are_progress_bars_disabled()


# Where messages go


class _Standard(logging.StreamHandler[Any]):
    """Writes to what is standard error when a message comes."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_STANDARD = _Standard()
_EXPLICIT = logging.Formatter("[%(levelname)s|%(filename)s:%(lineno)s] %(asctime)s >> %(message)s")


def enable_default_handler() -> None:
    """Write messages on standard error."""
    get_logger().addHandler(_STANDARD)


def disable_default_handler() -> None:
    """Leave messages to the program's own handlers, as at the beginning."""
    get_logger().removeHandler(_STANDARD)


def add_handler(handler: logging.Handler) -> None:
    """Give messages to a handler, too."""
    get_logger().addHandler(handler)


def remove_handler(handler: logging.Handler) -> None:
    """Give messages to a handler no longer."""
    get_logger().removeHandler(handler)


def enable_propagation() -> None:
    """Give messages to the handlers of the program's root logger, as at the beginning."""
    get_logger().propagate = True


def disable_propagation() -> None:
    """Give messages to this library's handlers alone."""
    get_logger().propagate = False


def enable_explicit_format() -> None:
    """Let messages begin with their level, file, line and time."""
    for handler in get_logger().handlers:
        handler.setFormatter(_EXPLICIT)


def reset_format() -> None:
    """Let messages be their text alone."""
    for handler in get_logger().handlers:
        handler.setFormatter(None)
