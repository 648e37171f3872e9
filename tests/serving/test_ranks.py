"""Scores, classes and tokens over HTTP equal those of pipelines and tokenizers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pipelines.text_models import TEXTS, SavedModel, text_model
from transept import pipeline
from transept.pipelines.components import EMBEDDING_MODEL
from transept.serving.doors import Options
from transept.serving.tasks import TaskModel

from .conftest import Server, until

__all__ = ["text_model"]


@pytest.fixture(scope="module")
def paths(text_model: SavedModel) -> dict[str, Path]:
    found = {f"labels{count}": text_model("BertForSequenceClassification", num_labels=count) for count in (1, 3)}
    return {"judge": found["labels1"], "labels": found["labels3"]}


@pytest.fixture(scope="module")
def reader(folder: Path, paths: dict[str, Path]) -> Iterator[Server]:
    models = [TaskModel(name, str(path), max_waiting=4 if name == "judge" else 256) for name, path in paths.items()]
    made = Server(folder, Options(grace=2.0, max_texts=64), beside=[*models, TaskModel("encoder", EMBEDDING_MODEL)])
    yield made
    made.close()


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("raw", [False, True])
def test_ranks(reader: Server, paths: dict[str, Path], path: str, raw: bool) -> None:
    documents = [text for text in TEXTS if text]
    wanted = pipeline("text-ranking", paths["judge"])(
        {"query": "Who?", "passages": documents}, function_to_apply="none" if raw else "sigmoid"
    )
    body: dict[str, Any] = {"model": "judge", "query": "Who?", "raw_scores": raw, "return_documents": True}
    for way in ({"documents": documents}, {"texts": documents}, {"documents": [{"text": text} for text in documents]}):
        found = post(reader, path, **body, **way).json()["results"]
        assert [each["index"] for each in found] == [each["index"] for each in wanted]
        assert [each["document"]["text"] for each in found] == [each["text"] for each in wanted]
        scores = [each["relevance_score"] for each in found]
        assert scores == pytest.approx([each["score"] for each in wanted], abs=1e-6)
    best = post(reader, path, model="judge", query="Who?", documents=documents, top_n=2, raw_scores=raw).json()
    assert [each["index"] for each in best["results"]] == [each["index"] for each in wanted[:2]]
    assert best["usage"]["prompt_tokens"] > 0
    assert all(each.keys() == {"index", "relevance_score"} for each in best["results"])


def test_scores(reader: Server, paths: dict[str, Path]) -> None:
    body: dict[str, Any] = {"text_1": "Paris", "text_2": ["Paris", "x"]}
    found = post(reader, "/v1/score", model="judge", **body).json()["data"]
    wanted = pipeline("text-ranking", paths["judge"])({"query": "Paris", "passages": body["text_2"]}, sort=False)
    assert [each["score"] for each in found] == pytest.approx([each["score"] for each in wanted], abs=1e-6)
    cosines = post(reader, "/v1/score", model="encoder", **body).json()["data"]
    assert cosines[0]["score"] == pytest.approx(1, abs=1e-6)
    assert [each["score"] for each in cosines] == pytest.approx(
        list(pipeline("text-similarity", EMBEDDING_MODEL)("Paris", body["text_2"])), abs=1e-6
    )
    assert [each["index"] for each in cosines] == [0, 1]
    pairs = post(reader, "/v1/score", model="judge", text_1=["a", "b"], text_2=["a", "b", "c"])
    assert (pairs.status_code, "2 texts" in pairs.text) == (400, True)


def test_classes(reader: Server, paths: dict[str, Path]) -> None:
    wanted = pipeline("text-classification", paths["labels"])(TEXTS, top_k=None)
    found = post(reader, "/v1/classify", model="labels", input=TEXTS).json()
    for index, (one, scores) in enumerate(zip(found["data"], wanted, strict=True)):
        assert (one["index"], one["label"]) == (index, scores[0]["label"])
        assert [each["label"] for each in one["scores"]] == [each["label"] for each in scores]
        assert [each["score"] for each in one["scores"]] == pytest.approx([each["score"] for each in scores], abs=1e-6)
    one = post(reader, "/v1/classify", model="labels", input="Paris", top_k=1).json()
    assert [len(each["scores"]) for each in one["data"]] == [1]
    assert one["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/rerank", {"model": "labels", "query": "a", "documents": ["b"]}, "3 classes"),
        ("/rerank", {"model": "encoder", "query": "a", "documents": ["b"]}, "text-ranking"),
        ("/rerank", {"model": "judge", "query": "a"}, "documents"),
        ("/rerank", {"model": "judge", "query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"]}, "`model` must name one"),
        ("/rerank", {"model": "judge", "query": "a", "documents": ["b", "x " * 99]}, "input 1 has"),
        ("/v1/classify", {"model": "encoder", "input": "a"}, "text-classification"),
        ("/v1/classify", {"model": "labels", "input": ["a", "x " * 99]}, "input 1 has 101 tokens"),
        ("/v1/classify", {"model": "labels", "input": "a", "top_k": 0}, "top_k"),
        ("/tokenize", {"model": "encoder"}, "prompt"),
        ("/tokenize", {"model": "encoder", "messages": [{"role": "user", "content": "a"}]}, "template"),
        ("/detokenize", {"model": "encoder", "tokens": [10**8]}, "no token"),
    ],
)
def test_bodies_that_are_no_requests(reader: Server, path: str, body: dict[str, Any], told: str) -> None:
    found = post(reader, path, **body)
    assert found.status_code == 400
    assert told in found.json()["error"]["message"]


def test_over_the_queue_is_told_at_once(reader: Server) -> None:
    model = reader.models.get("judge")
    assert isinstance(model, TaskModel)
    body: dict[str, Any] = {"model": "judge", "input": ["a"] * 4}
    with model.batcher.turn:
        first = threading.Thread(target=post, args=(reader, "/v1/classify"), kwargs=body)
        first.start()
        until(lambda: model.asked == 4)
        found = post(reader, "/v1/classify", **body)
        assert (found.status_code, found.json()["error"]["code"]) == (429, "queue_full")
    first.join()


def test_tokens(reader: Server) -> None:
    for name in ("tiny", "encoder"):
        tokenizer = reader.models.get(name).tokenizer
        for special in (True, False):
            found = post(reader, "/tokenize", model=name, prompt=TEXTS[0], add_special_tokens=special).json()
            assert found["tokens"] == tokenizer(TEXTS[0], add_special_tokens=special).input_ids
            assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), reader.models.get(name).context)
            back = post(reader, "/detokenize", model=name, tokens=found["tokens"]).json()
            assert back == {"prompt": tokenizer.decode(found["tokens"])}
    found = post(reader, "/tokenize", model="encoder", prompt="a cat", return_token_strs=True).json()
    assert found["token_strs"] == ["[CLS]", "a", "cat", "[SEP]"]
    messages = [{"role": "user", "content": "Hi<|end|>"}]
    chat = post(reader, "/tokenize", model="tiny", messages=messages).json()["tokens"]
    tokenizer = reader.models.get("tiny").tokenizer
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert chat.count(end) == 1  # what a user writes is no control token
    without = post(reader, "/tokenize", model="tiny", messages=messages, add_generation_prompt=False).json()["tokens"]
    assert chat[: len(without)] == without
    assert len(chat) > len(without)
