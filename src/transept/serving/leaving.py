"""Answers whose clients may leave before they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fastapi import Request
from starlette.responses import Response


async def watched(request: Request, answer: Awaitable[Response]) -> Response:
    """An answer that is not streamed, unless its client leaves before it is there."""
    work, left = asyncio.ensure_future(answer), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return Response(status_code=499)  # nobody reads it
    finally:
        for task in (work, left):
            task.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
