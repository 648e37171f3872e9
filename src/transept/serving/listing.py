"""Routes of models: which there are, and which of them are loaded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fastapi import FastAPI

from transept.serving.protocol.models import LoadRequest, UnloadRequest
from transept.serving.store import Models


def add_model_routes(app: FastAPI, models: Models) -> None:
    """Give the application the routes of models."""

    @app.get("/v1/models")
    async def listed() -> Any:
        """The models that can be asked for."""
        found = await models.look()
        for served in found:
            await models.examine(served)
        return {"object": "list", "data": [served.told() for served in found]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str) -> Any:
        """One of them."""
        return (await models.find(name)).told()

    @app.post("/v1/models/load")
    async def load(body: LoadRequest) -> Any:
        """Load one before it is asked."""
        served = await models.find(body.model)
        with ExitStack() as held:
            await models.hold(served, held, body.keep_alive)
        return served.told()

    @app.post("/v1/models/unload")
    async def unload(body: UnloadRequest) -> Any:
        """Take one away, once its answers are out."""
        served = await models.find(body.model)
        await models.unload(served)
        return served.told()
