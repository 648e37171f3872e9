"""The server as a deployment of Ray Serve, for those who have a cluster of Ray: replicas of the same application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from transept.errors import MissingExtraError
from transept.serving.app import make_app
from transept.serving.doors import Options
from transept.serving.errors import EngineDeadError
from transept.serving.models import Loader
from transept.serving.sources import named
from transept.serving.store import Models


class Replica:
    """One server, made where Ray puts it."""

    def __init__(self, models: tuple[str, ...], loader: Loader, options: Options) -> None:
        self.options, self.models = options, Models(loader, max_models=max(4, len(models)))
        for given in models:
            self.models.offer(*named(given))

    def check_health(self) -> None:
        """Raise where the engine does not answer, so that Ray replaces the replica."""
        if not self.models.are_healthy(self.options.watchdog):
            raise EngineDeadError("the engine does not answer.")

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self.models, self.options)


def deployment(*models: str, loader: Loader | None = None, options: Options | None = None, **settings: Any) -> Any:
    """An application for ``serve.run``.

    Args:
        models: folders, ``.gguf`` files or repositories that all machines have, or ``NAME=MODEL``.
        options: by default any host is answered to and no key is needed, as Ray's proxy is what others reach.
        settings: of ``ray.serve.deployment``, such as ``num_replicas`` and ``ray_actor_options``.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "serving on Ray") from error
    settings = {"name": "transept", "max_ongoing_requests": 1024} | settings  # rows wait in the engine, which knows them
    made = serve.deployment(serve.ingress()(Replica), **settings)
    return made.bind(models, loader or Loader(), options or Options(hosts=None))
