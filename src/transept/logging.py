"""How much the library says: loggers below ``transept``, and its warnings, by the reference's functions."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from logging import CRITICAL, DEBUG, ERROR, FATAL, INFO, NOTSET, WARN, WARNING

from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from huggingface_hub.utils.tqdm import disable_progress_bars as disable_progress_bar
from huggingface_hub.utils.tqdm import enable_progress_bars as enable_progress_bar

from transept.errors import TranseptWarning

__all__ = ["CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARN", "WARNING", "get_logger", "set_verbosity"]
__all__ += ["disable_progress_bar", "enable_progress_bar"]


def get_logger(name: str | None = None) -> logging.Logger:
    """The library's logger, or one of that name."""
    return logging.getLogger(name or __package__)


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
