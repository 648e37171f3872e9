"""Errors of requests that cannot be answered, or not now."""

from __future__ import annotations

from typing import ClassVar

from transept.errors import GenerationError, InputError, TranseptError


class FieldError(InputError):
    """A field of a request has a value that cannot be.

    Args:
        param: the field's path, such as ``messages.0.role``.
        message, hint: as of all errors.
    """

    code = "invalid_value"

    def __init__(self, param: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ContextLengthError(InputError):
    """A prompt, with what is to be written, is longer than the model or the memory allows."""

    code = "context_length_exceeded"
    param: str | None = None  # the field's path, where it is known


class ModelNotFoundError(InputError):
    """No model of that name is served."""

    code = "model_not_found"


class NoTokenError(GenerationError, InputError):
    """The settings of a request leave no token that could be written."""

    code = "invalid_value"


class BusyError(TranseptError, RuntimeError):
    """A request cannot be taken now; another server may, or this one later."""

    code: ClassVar[str] = "busy"
    status: ClassVar[int] = 503
    seconds = 1  # after which it may be asked again


class QueueFullError(BusyError):
    """So many rows wait that no more are taken."""

    code, status = "queue_full", 429

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message, hint=f"Try again in {seconds} s.")
        self.seconds = seconds


class LoadingError(BusyError):
    """There is no room for a model that is asked for, until others are not used any more."""

    code = "loading"


class DrainingError(BusyError):
    """The engine ends, and takes no more requests."""

    code = "draining"


class EngineDeadError(BusyError):
    """The engine has failed and answers nothing more."""

    code = "engine_dead"


class FailedError(TranseptError, RuntimeError):
    """The model has failed with an input."""

    code: ClassVar[str] = "server_error"
