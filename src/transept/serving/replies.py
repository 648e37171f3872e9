"""Errors as clients of the API know them; the only place where texts of errors go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import JSONResponse

from transept.errors import FormatError, InputError, TranseptError, UnsupportedError
from transept.serving.errors import (
    BusyError,
    ContextLengthError,
    DrainingError,
    EngineDeadError,
    FieldError,
    LoadingError,
    ModelNotFoundError,
    QueueFullError,
)

_BUSY = {QueueFullError: 429, LoadingError: 503, DrainingError: 503, EngineDeadError: 503}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 408: "timeout"}
_CODES |= {413: "body_too_large", 415: "unsupported_media_type"}


def reply(status: int, message: str, code: str | None = None, param: str | None = None) -> JSONResponse:
    """An error of that status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code or _CODES.get(status, "invalid_value")}}
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse(body, status, headers)


def reply_to(error: BaseException) -> JSONResponse:
    """The answer to a request that ends with an error; of one that is not ours, its text stays here."""
    if isinstance(error, BusyError):
        return reply(_BUSY[type(error)], str(error), error.code)
    if isinstance(error, ModelNotFoundError):
        return reply(404, str(error), error.code, "model")
    if isinstance(error, FieldError):
        return reply(400, str(error), error.code, error.param)
    if isinstance(error, ContextLengthError):
        return reply(400, str(error), error.code)
    if isinstance(error, InputError | UnsupportedError | FormatError):
        return reply(400, str(error), "invalid_value")
    if isinstance(error, TranseptError):
        return reply(500, str(error), "server_error")
    return reply(500, "the server has failed with this request.", "server_error")


def reply_to_body(errors: Iterable[Mapping[str, Any]]) -> JSONResponse:
    """The answer to a body that is none of a request: the first thing that is wrong, with its place."""
    first = next(iter(errors))
    place = ".".join(str(part) for part in first["loc"] if part != "body" and not str(part)[:1].isupper())
    if first["type"] == "extra_forbidden":
        return reply(400, f"this server knows no field `{place}`.", "unsupported_field", place)
    if first["type"] == "missing":
        return reply(400, f"the field `{place}` is missing.", "invalid_value", place)
    return reply(400, f"`{place}`: {first['msg']}", "invalid_value", place or None)
