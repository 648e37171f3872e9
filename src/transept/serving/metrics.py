"""What a server counts, in the format of Prometheus; labels come from nobody but the server."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from transept.serving.engine.memory import BLOCK
from transept.serving.store import Models
from transept.serving.tasks import TaskModel


class Metrics:
    """The counters and gauges of a server."""

    def __init__(self, models: Models) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, told: str, labels: tuple[str, ...] = ("model",)) -> Counter:
            return Counter(f"transept_{name}", told, labels, registry=self.registry)

        self.requests = counter("requests", "Requests, by route and status.", ("route", "status"))
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts, cached ones too.")
        self.cached_tokens = counter("prompt_tokens_cached", "Tokens of prompts that were not read again.")
        self.new_tokens = counter("new_tokens", "Tokens that were written.")
        self.cancelled = counter("cancelled", "Requests whose clients left.")
        self.registry.register(_Gauges(models))

    def count(self, route: str, status: int) -> None:
        """Count an answer."""
        self.requests.labels(route, str(status)).inc()

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    """What the engines hold at this moment."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("transept_rows_running", "Rows that read or write.", labels=["model"])
        waiting = GaugeMetricFamily("transept_requests_waiting", "Rows that wait.", labels=["model"])
        held = GaugeMetricFamily("transept_cache_bytes", "Keys and values.", labels=["model", "kind"])
        limit = GaugeMetricFamily("transept_cache_bytes_limit", "Keys and values at most.", labels=["model"])
        loaded = GaugeMetricFamily("transept_models_loaded", "Models that are loaded.", value=len([*self.models]))
        for model in self.models:
            if isinstance(model, TaskModel):
                running.add_metric([model.name], model.batcher.running)
                waiting.add_metric([model.name], max(model.asked - model.batcher.running, 0))
                continue
            engine = model.engine
            of_block = BLOCK * engine.bytes_per_position
            running.add_metric([model.name], len(engine.scheduler.running))
            waiting.add_metric([model.name], engine.waiting)
            held.add_metric([model.name, "rows"], engine.memory.row_blocks * of_block)
            held.add_metric([model.name, "beginnings"], engine.memory.kept_blocks * of_block)
            limit.add_metric([model.name], engine.memory.blocks * of_block)
        yield from (running, waiting, held, limit, loaded)
