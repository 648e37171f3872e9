"""Requests of all routes, made from the OpenAPI document: none ends with an error of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.thorough import in_turn
from transept.serving.doors import Options
from transept.serving.tasks import TaskModel

from .conftest import Server

CASES = 50  # of each route in a round; all rounds are 50,000
LENGTHS = {
    "/v1/completions": "max_tokens",
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/responses": "max_output_tokens",
}


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[Server]:
    """A model that writes and one that makes vectors."""
    vectors = TaskModel("vectors", "sentence-transformers/all-MiniLM-L6-v2")
    made = Server(folder, Options(docs=True, grace=0.0), beside=[vectors])
    yield made
    made.close()


def aimed(case: Any) -> None:
    """Let many cases reach a model, and write little."""
    if not isinstance(case.body, dict):
        return
    writes = any(word in case.path for word in ("completions", "responses", "tokenize"))
    if isinstance(case.body.get("model"), str):
        case.body["model"] = "tiny" if writes else "vectors"
    if (length := LENGTHS.get(case.path)) is not None:
        case.body.setdefault(length, 8)
    for name in LENGTHS.values():
        if isinstance(number := case.body.get(name), int) and number > 8:
            case.body[name] = 8


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("number", in_turn(range(37), 0.25))
def test_no_request_is_an_error_of_the_server(both: Server, number: int) -> None:
    import schemathesis

    document = schemathesis.openapi.from_url(f"{both.url}/openapi.json")
    for found in document.get_all_operations():
        operation = found.ok()

        @seed(number)
        @settings(max_examples=CASES, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=HealthCheck)
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            aimed(case)
            answer = case.call(timeout=60)
            assert answer.status_code < 500, json.dumps(case.body, default=str)
            assert answer.status_code < 400 or answer.json()["error"].keys() == {"message", "type", "param", "code"}

        ask()
    assert both.models.are_healthy(30)
