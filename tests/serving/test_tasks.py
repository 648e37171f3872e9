"""Any task over HTTP: the pipeline's answers, and nothing of this machine's files."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import PIL.Image
import pytest

from tests.pipelines.text_models import SavedModel, text_model
from transept import (
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)
from transept.batch.encode import encode
from transept.serving.doors import Options
from transept.serving.protocol.tasks import ASKED, PICTURES, SOUNDS, TEXTS
from transept.serving.tasks import TaskModel

from .conftest import Server, until

__all__ = ["text_model"]
MASKED = "Anna [MASK] in Berlin."


@pytest.fixture(scope="module")
def paths(text_model: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pictures = tmp_path_factory.mktemp("pictures")
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=16, patch_size=8, num_labels=3, **sizes)
    ViTForImageClassification(config).save_pretrained(pictures)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(pictures)
    found = {"masks": text_model("BertForMaskedLM"), "names": text_model("BertForTokenClassification", num_labels=3)}
    found |= {"nli": text_model("BertForSequenceClassification", num_labels=3), "pictures": pictures}
    return found | {"answers": text_model("BertForQuestionAnswering")}


@pytest.fixture(scope="module")
def reader(folder: Path, paths: dict[str, Path]) -> Iterator[Server]:
    models = [TaskModel(name, str(path), "zero-shot-classification" if name == "nli" else None) for name, path in paths.items()]
    made = Server(folder, Options(grace=2.0, max_texts=8), beside=models)
    yield made
    made.close()


def post(server: Server, task: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/tasks/{task}", json=body)


@pytest.fixture(scope="module")
def picture() -> str:
    buffer = io.BytesIO()
    pixels = np.random.RandomState(0).randint(0, 255, (20, 20, 3)).astype(np.uint8)
    PIL.Image.fromarray(pixels).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


QUESTION = {"question": "Who lives in Berlin?", "context": "Anna lives in Berlin."}


@pytest.mark.parametrize(
    ("name", "task", "inputs", "parameters"),
    [
        ("masks", "fill-mask", MASKED, {}),
        ("masks", "fill-mask", [MASKED, MASKED], {"top_k": 2}),
        ("names", "token-classification", "Anna lives in Berlin.", {}),
        ("names", "ner", ["Anna lives in Berlin."], {"aggregation_strategy": "simple"}),
        ("nli", "zero-shot-classification", "Anna", {"candidate_labels": ["a", "b"]}),
        ("nli", "text-classification", ["Anna", {"text": "a", "text_pair": "b"}], {"top_k": None}),
        ("answers", "question-answering", QUESTION, {"top_k": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:none of the model's classes")
def test_answers_are_those_of_the_pipeline(
    reader: Server, paths: dict[str, Path], name: str, task: str, inputs: Any, parameters: dict[str, Any]
) -> None:
    found = post(reader, task, model=name, inputs=inputs, parameters=parameters)
    wanted = json.loads(encode(pipeline(task, paths[name])(inputs, **parameters)))
    assert found.status_code == 200, found.text
    assert_near(found.json(), wanted)


def assert_near(one: Any, other: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(other, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(other, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_near(*pair)
    else:
        assert one == (pytest.approx(other, abs=1e-6) if isinstance(other, float) else other)


def test_pictures_are_urls_of_data_alone(reader: Server, paths: dict[str, Path], picture: str, tmp_path: Path) -> None:
    found = post(reader, "image-classification", model="pictures", inputs=picture)
    assert_near(found.json(), pipeline("image-classification", paths["pictures"])(picture))
    file = tmp_path / "a.png"
    file.write_bytes(base64.b64decode(picture.partition(",")[2]))
    for given in (str(file), file.as_uri(), "http://127.0.0.1:1/a.png", {"path": str(file)}, [[str(file)]], 1, None):
        for inputs in (given, [picture, given]):
            refused = post(reader, "image-classification", model="pictures", inputs=inputs)
            assert refused.status_code == 400
            assert "data:" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("task", "body", "told"),
    [
        ("fill-mask", {"model": "masks", "inputs": MASKED, "parameters": {"top_n": 1}}, "'top_n'"),
        ("fill-mask", {"model": "masks", "inputs": MASKED, "parameters": {"batch_size": 1}}, "'batch_size'"),
        ("fill-mask", {"model": "masks", "inputs": MASKED, "parameters": {"top_k": 0}}, "`top_k`"),
        ("fill-mask", {"model": "masks", "inputs": [MASKED, "no"]}, "input 1: the text has no mask"),
        ("fill-mask", {"model": "masks", "inputs": []}, "empty"),
        ("fill-mask", {"model": "masks", "inputs": 1}, "a text was expected"),
        ("fill-mask", {"model": "masks", "inputs": [MASKED] * 9}, "9 inputs"),
        ("fill-mask", {"model": "names", "inputs": MASKED}, "token-classification"),
        ("fill-mask", {"model": "tiny", "inputs": MASKED}, "text-generation"),
        ("text-generation", {"model": "tiny", "inputs": MASKED}, "/v1/completions"),
        ("image-classification", {"model": "pictures", "inputs": "x", "parameters": {"timeout": 1}}, "'timeout'"),
        ("no-task", {"model": "masks", "inputs": MASKED}, "no-task"),
    ],
)
def test_what_is_no_request_is_refused_by_name(reader: Server, task: str, body: dict[str, Any], told: str) -> None:
    found = post(reader, task, **body)
    assert found.status_code == 400
    assert told in found.json()["error"]["message"]


def test_every_kind_of_input_is_known() -> None:
    from transept.pipelines import task_names

    asked = {"table-question-answering", "text-generation", "image-text-to-text"}
    assert TEXTS | PICTURES | SOUNDS | ASKED | asked == set(task_names())


def test_a_long_answer_of_an_encoder_decoder_holds_up_nobody(folder: Path, paths: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, eos_token_id=None, pad_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    models = [TaskModel("writer", str(tmp_path), "text2text-generation"), TaskModel("masks", str(paths["masks"]))]
    server = Server(folder, Options(grace=2.0), beside=models)
    whole = {"model": "writer", "inputs": "a", "parameters": {"max_new_tokens": 500, "min_new_tokens": 500}}
    try:
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(post, server, "text2text-generation", **whole)
            until(lambda: models[0].batcher.running == 1)
            for _ in range(3):
                assert post(server, "fill-mask", model="masks", inputs=MASKED).status_code == 200
            assert not long.done()
            assert len(long.result().json()[0]["generated_text"]) > 100
        asked = partial(httpx.post, f"{server.url}/v1/tasks/text2text-generation", json=whole, timeout=0.1)
        with pytest.raises(httpx.ReadTimeout):
            asked()
        began = time.monotonic()
        until(lambda: models[0].batcher.running == 0)
        took = time.monotonic() - began
        began = time.monotonic()
        post(server, "text2text-generation", **whole)
        assert took < (time.monotonic() - began) / 2
    finally:
        server.close()
