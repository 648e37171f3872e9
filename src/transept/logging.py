"""How much the library says: loggers below ``transept``, and its warnings, by the reference's functions."""

from __future__ import annotations

import logging
import warnings
from logging import CRITICAL, DEBUG, ERROR, FATAL, INFO, NOTSET, WARN, WARNING

from transept.errors import TranseptWarning

__all__ = ["CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARN", "WARNING", "get_logger", "set_verbosity"]

_ROOT = __name__.partition(".")[0]


def get_logger(name: str | None = None) -> logging.Logger:
    """The library's logger, or one of that name."""
    return logging.getLogger(name or _ROOT)


def get_verbosity() -> int:
    """The level from which on messages are shown."""
    return get_logger().getEffectiveLevel()


def set_verbosity(verbosity: int) -> None:
    """Show messages from a level on; above ``WARNING`` the library's warnings are silent, too."""
    get_logger().setLevel(verbosity)
    warnings.filterwarnings("ignore" if verbosity > WARNING else "default", category=TranseptWarning)


def set_verbosity_debug() -> None:
    """Show all."""
    set_verbosity(DEBUG)


def set_verbosity_info() -> None:
    """Show what is done, and warnings."""
    set_verbosity(INFO)


def set_verbosity_warning() -> None:
    """Show warnings."""
    set_verbosity(WARNING)


def set_verbosity_error() -> None:
    """Show errors only."""
    set_verbosity(ERROR)


def disable_progress_bar() -> None:
    """Show no bars while files are fetched."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()


def enable_progress_bar() -> None:
    """Show bars while files are fetched."""
    from huggingface_hub.utils.tqdm import enable_progress_bars

    enable_progress_bars()


def is_progress_bar_enabled() -> bool:
    """Whether bars are shown while files are fetched."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    return not are_progress_bars_disabled()
