"""Errors as clients of the API know them; the only place where texts of errors go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import JSONResponse

from transept.errors import (
    ConfigError,
    FormatError,
    GenerationError,
    InputError,
    MissingExtraError,
    TranseptError,
    UnsupportedError,
)
from transept.serving.errors import BusyError, ContextLengthError, FailedError, FieldError, ModelNotFoundError

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 408: "timeout"}
_CODES |= {413: "body_too_large", 415: "unsupported_media_type", 500: "server_error"}


def reply(status: int, message: str, code: str | None = None, param: str | None = None) -> JSONResponse:
    """An error of that status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code or _CODES.get(status, "invalid_value")}}
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse(body, status, headers)


def reply_to(error: BaseException) -> JSONResponse:
    """The answer to a request that ends with an error; of one that is not ours, its text stays here."""
    text = f"{error.message} {error.hint or ''}".strip() if isinstance(error, TranseptError) else ""  # without its path
    if isinstance(error, BusyError):
        found = reply(error.status, text, error.code)
        found.headers["retry-after"] = str(error.seconds)
        return found
    if isinstance(error, ModelNotFoundError):
        return reply(404, text, error.code, "model")
    if isinstance(error, ContextLengthError | FieldError):
        return reply(400, text, error.code, error.param)
    if isinstance(error, InputError | UnsupportedError | MissingExtraError | FormatError | ConfigError):
        return reply(400, text)
    return reply(500, text if isinstance(error, FailedError | GenerationError) else "the server has failed with this request.")


def reply_to_body(errors: Iterable[Mapping[str, Any]], body: Any) -> JSONResponse:
    """The answer to a body that is none of a request: the first thing that is wrong, with its place.

    Of a value that may be several things, each kind has an error; the one that tells the most is the deepest.
    """
    found = [(place_of(error, body), error) for error in errors]
    place, error = max(found, key=lambda each: (f"{each[0]}.".startswith(f"{found[0][0]}."), each[0].count(".")))
    if error["type"] == "extra_forbidden":
        return reply(400, f"this server knows no field `{place}`.", "unsupported_field", place)
    if error["type"] == "missing":
        return reply(400, f"the field `{place}` is missing.", "invalid_value", place)
    if isinstance(own := error.get("ctx", {}).get("error"), TranseptError):
        return reply(400, f"{own.message} {own.hint or ''}".strip(), None, getattr(own, "param", place or None))
    return reply(400, f"`{place}`: {error['msg']}" if place else f"the body is no request: {error['msg']}", None, place or None)


def place_of(error: Mapping[str, Any], body: Any) -> str:
    """The path of a value in a body, without the names that pydantic gives the kinds that it may be."""
    parts, value = list[str](), body
    path = error["loc"][1:] if error["loc"][:1] == ("body",) else error["loc"]
    for number, part in enumerate(path, 1):
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            parts, value = [*parts, str(part)], value[part]
        elif isinstance(value, dict) and part in value:
            parts, value = [*parts, part], value[part]
        elif error["type"] == "missing" and number == len(path):
            parts = [*parts, part]
    return ".".join(parts)
