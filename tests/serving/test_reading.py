"""Models that read, served beside one that writes: vectors, scores and classes equal those of pipelines."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.pipelines.text_models import TEXTS, SavedModel, text_model
from transept import pipeline
from transept.pipelines.components import EMBEDDING_MODEL
from transept.serving.doors import Options
from transept.serving.tasks import TaskModel

from .conftest import Server, until

__all__ = ["text_model"]


@pytest.fixture(scope="module")
def reader(folder: Path, text_model: SavedModel) -> Iterator[Server]:
    models = [
        TaskModel("encoder", EMBEDDING_MODEL),
        TaskModel("judge", str(text_model("BertForSequenceClassification", num_labels=1)), max_waiting=4),
        TaskModel("labels", str(text_model("BertForSequenceClassification", num_labels=3))),
    ]
    made = Server(folder, Options(grace=2.0, max_texts=64), beside=models)
    yield made
    made.close()


@pytest.fixture
def client(reader: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{reader.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    found: np.ndarray = pipeline("text-embedding", EMBEDDING_MODEL)(TEXTS)
    return found


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body)


def test_vectors_are_those_of_the_pipeline(reader: Server, client: openai.OpenAI, vectors: np.ndarray) -> None:
    every: list[np.ndarray] = []
    ways: list[dict[str, Any]] = [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]
    for options in ways:
        answer: Any = client.embeddings.create(model="encoder", input=TEXTS, **options)
        found = [each.embedding for each in answer.data]
        if options.get("encoding_format") == "base64":
            found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
        assert np.abs(np.array(found, np.float32) - vectors).max() <= 1e-6
        assert [each.index for each in answer.data] == list(range(len(TEXTS)))
        every = [*every, np.array(found, np.float32)]
    assert np.array_equal(every[1], every[2])  # the digits tell each number from all others
    tokenizer = reader.models.get("encoder").tokenizer
    ids = [tokenizer(text).input_ids for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    by_ids = client.embeddings.create(model="encoder", input=ids)
    assert np.abs(np.array([each.embedding for each in by_ids.data], np.float32) - vectors).max() <= 1e-6
    one = client.embeddings.create(model="encoder", input=ids[0])
    assert np.abs(np.array(one.data[0].embedding, np.float32) - vectors[0]).max() <= 1e-6


def test_fewer_dimensions_have_length_one(client: openai.OpenAI, vectors: np.ndarray) -> None:
    answer = client.embeddings.create(model="encoder", input=TEXTS[0], dimensions=8)
    cut = vectors[0, :8] / np.linalg.norm(vectors[0, :8])
    assert np.abs(np.array(answer.data[0].embedding) - cut).max() <= 1e-6
    with pytest.raises(openai.BadRequestError, match="384"):
        client.embeddings.create(model="encoder", input=TEXTS[0], dimensions=385)


def test_vectors_alone(reader: Server, vectors: np.ndarray) -> None:
    found = post(reader, "/embed", inputs=TEXTS).json()
    assert np.abs(np.array(found) - vectors).max() <= 1e-6
    assert len(post(reader, "/embed", inputs=TEXTS[0], model="encoder").json()) == 1


def test_too_long_is_an_error_with_both_numbers(reader: Server, client: openai.OpenAI) -> None:
    long = "a cat " * 300
    with pytest.raises(openai.BadRequestError, match=r"602 tokens.*256") as error:
        client.embeddings.create(model="encoder", input=["fine", long])
    assert error.value.code == "context_length_exceeded"
    cut = post(reader, "/v1/embeddings", model="encoder", input=long, truncate=True).json()
    assert cut["usage"]["prompt_tokens"] == 256


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "encoder", "input": []}, "invalid_value"),
        ({"model": "encoder", "input": ["a"] * 65}, "invalid_value"),
        ({"model": "encoder", "input": [[1], ["a"]]}, "invalid_value"),
        ({"model": "encoder", "input": [10**9]}, "invalid_value"),
        ({"model": "encoder", "input": "a", "encoding_format": "hex"}, "invalid_value"),
        ({"model": "encoder", "input": "a", "prompt_name": "none"}, "invalid_value"),
        ({"model": "encoder", "input": "a", "dimension": 2}, "unsupported_field"),
        ({"model": "tiny", "input": "a"}, "invalid_value"),
        ({"model": "labels", "input": "a"}, "invalid_value"),
    ],
)
def test_bodies_that_are_no_requests(reader: Server, body: dict[str, Any], code: str) -> None:
    found = post(reader, "/v1/embeddings", **body)
    assert (found.status_code, found.json()["error"]["code"]) == (400, code)
    assert post(reader, "/v1/embeddings", model="no", input="a").status_code == 404


def test_models_tell_what_they_are_for(reader: Server) -> None:
    told = {each["id"]: each for each in httpx.get(f"{reader.url}/v1/models").json()["data"]}
    assert {name: each["task"] for name, each in told.items()} == {
        "tiny": "text-generation",
        "encoder": "text-embedding",
        "judge": "text-classification",
        "labels": "text-classification",
    }
    assert told["encoder"]["context"] == 256
    assert post(reader, "/v1/completions", model="encoder", prompt="a").status_code == 400
    metrics = httpx.get(f"{reader.url}/metrics").text
    assert 'transept_requests_waiting{model="encoder"} 0.0' in metrics
    assert 'transept_rows_running{model="encoder"} 0.0' in metrics


def test_many_clients_beside_one_that_writes(reader: Server, client: openai.OpenAI, vectors: np.ndarray) -> None:
    found: dict[int, Any] = {}
    written: list[Any] = []

    def ask(index: int) -> None:
        found[index] = client.embeddings.create(model="encoder", input=TEXTS[index % len(TEXTS)]).data[0].embedding

    def write() -> None:
        written.append(client.completions.create(model="tiny", prompt="a", max_tokens=200, temperature=0))

    threads = [threading.Thread(target=write), *(threading.Thread(target=ask, args=(index,)) for index in range(40))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written[0].usage.completion_tokens == 200
    assert len(found) == 40
    for index, vector in found.items():
        assert np.abs(np.array(vector, np.float32) - vectors[index % len(TEXTS)]).max() <= 1e-6


def test_what_a_client_that_left_has_asked_is_not_computed(reader: Server) -> None:
    model = reader.models.get("encoder")
    body = {"model": "encoder", "input": "one"}
    seen: list[int] = []
    with model.batcher.turn:  # no batch runs meanwhile
        first = threading.Thread(target=lambda: seen.append(post(reader, "/v1/embeddings", **body).status_code))
        first.start()
        until(lambda: model.asked == 1)
        time.sleep(0.1)  # its batch waits for its turn
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{reader.url}/v1/embeddings", json=body, timeout=0.3)
        until(lambda: model.asked == 1)
        assert httpx.get(f"{reader.url}/health").status_code == 200
    first.join()
    assert (seen, model.asked) == ([200], 0)


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("embeddings", {"input": ["a", "a " * 600]}, "input.1"),
        ("embeddings", {"input": "a " * 600}, "input"),
        ("embeddings", {"input": ["a"], "dimensions": 999}, "dimensions"),
        ("score", {"text_1": "a", "text_2": ["a", "a " * 600]}, "text_2.1"),
        ("score", {"text_1": ["a", "a " * 600], "text_2": "b"}, "text_1.1"),
    ],
)
def test_errors_name_the_input(reader: Server, route: str, body: dict[str, Any], param: str) -> None:
    found = httpx.post(f"{reader.url}/v1/{route}", json={"model": "encoder"} | body)
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)
