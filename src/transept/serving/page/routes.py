"""The page that the server shows: files of this package, which anyone may read."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

from transept.serving.replies import reply
from transept.storage.files import read_bytes

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
_TYPES |= {".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Give the application the page at ``/``, and its files below ``/assets/``."""
    found = [path for path in Path(__file__).parent.iterdir() if path.suffix in _TYPES]
    files = {path.name: (read_bytes(path), _TYPES[path.suffix]) for path in found}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return await asset("index.html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in files:
            return reply(404, "the page has no such file.")
        content, kind = files[name]
        return Response(content, media_type=kind, headers=_HEADERS)
