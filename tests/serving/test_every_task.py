"""Every task over HTTP: the pipeline's answers as JSON, unknown parameters refused by name, and nothing opened."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import transept
from tests.pipelines import document_models, media_models, test_describe, test_dual, text_models, vision_models, writers
from tests.pipelines.speech_models import save_writer
from tests.preprocess.text.test_tables import MOVIES, QUESTIONS, vocabulary
from tests.thorough import in_turn
from transept import pipeline
from transept.batch.encode import encode
from transept.pipelines import task_names
from transept.serving.app import Options
from transept.serving.protocol.tasks import TEXTS
from transept.serving.tasks import SEES, WRITES, TaskModel

from .conftest import Server
from .test_tasks import assert_near

SIZE = {"height": 48, "width": 48}


def url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


PICTURE = url(media_models.png(media_models.picture()), "image/png")
SOUND = url(media_models.wav(media_models.sound()), "audio/wav")
WORDS = document_models.page(document_models.INVOICE)
TEXT, PAIR = "Anna lives in Berlin.", {"text": "Anna lives in Berlin.", "text_pair": "She works."}


def text(name: str, **settings: Any) -> Callable[[Path], Any]:
    return lambda path: text_models.save(path, name, **settings)


def sound(kind: str) -> Callable[[Path], Any]:
    return lambda path: media_models.save_audio_model(path, kind)


def seen(model: Callable[[], Any], processor: Any) -> Callable[[Path], Any]:
    def save(path: Path) -> None:
        model().save_pretrained(path)
        processor.save_pretrained(path)

    return save


def writer(path: Path) -> None:
    writers.model("T5ForConditionalGeneration").save_pretrained(path)
    writers.tokenizer(single="$A </s>").save_pretrained(path)


def blip(name: str) -> Callable[[Path], Any]:
    def save(path: Path) -> None:
        torch.manual_seed(0)
        config = transept.BlipConfig(text_config=test_describe.TEXT, vision_config=test_describe.VISION)
        getattr(transept, name)(config).save_pretrained(path)
        eye = transept.BlipImageProcessor(size=test_describe.SIZE)
        transept.BlipProcessor(eye, writers.tokenizer(single="<s> $A </s>")).save_pretrained(path)

    return save


def tables(path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    transept.TapasForQuestionAnswering(transept.TapasConfig(vocab_size=99, initializer_range=0.5, **sizes)).save_pretrained(
        path
    )
    transept.TapasTokenizer(vocabulary(path)).save_pretrained(path)


SAVED: dict[str, Callable[[Path], Any]] = {
    "masks": text("BertForMaskedLM"),
    "names": text("BertForTokenClassification", num_labels=3),
    "nli": text("BertForSequenceClassification", num_labels=3),
    "ranks": text("BertForSequenceClassification", num_labels=1),
    "reader": text("BertForQuestionAnswering"),
    "encoder": text("BertModel"),
    "writer": writer,
    "pictures": media_models.save_image_model,
    "eye": lambda path: media_models.save_image_model(path, "ViTModel"),
    "boxes": seen(vision_models.tiny_detr, transept.DetrImageProcessor(size=SIZE)),
    "segments": seen(vision_models.tiny_segformer, transept.SegformerImageProcessor(size=SIZE)),
    "depth": seen(vision_models.tiny_dpt, transept.DPTImageProcessor(size=SIZE)),
    "both": lambda path: test_dual.saved(path, "clip"),
    "describes": blip("BlipForConditionalGeneration"),
    "asked": blip("BlipForQuestionAnswering"),
    "pages": document_models.save,
    "tables": tables,
    "sounds": sound("Wav2Vec2ForSequenceClassification"),
    "ear": sound("Wav2Vec2Model"),
    "letters": sound("Wav2Vec2ForCTC"),
}
LABELS = {"candidate_labels": ["a cat", "a dog"]}
QUESTION = {"question": "Who lives in Berlin?", "context": TEXT}
ASKED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "audio-classification": ("sounds", SOUND, {"top_k": 2}),
    "audio-embedding": ("ear", SOUND, {}),
    "automatic-speech-recognition": ("letters", SOUND, {"return_timestamps": "char"}),
    "depth-estimation": ("depth", PICTURE, {}),
    "document-question-answering": ("pages", {"image": PICTURE, "question": "Total?", "word_boxes": WORDS[1]}, {"top_k": 2}),
    "feature-extraction": ("encoder", TEXT, {}),
    "fill-mask": ("masks", "Anna [MASK] in Berlin.", {"top_k": 2}),
    "image-classification": ("pictures", PICTURE, {"top_k": 2}),
    "image-embedding": ("eye", PICTURE, {"normalize": True}),
    "image-feature-extraction": ("eye", PICTURE, {"pool": True}),
    "image-segmentation": ("segments", PICTURE, {}),
    "image-to-text": ("describes", PICTURE, {"max_new_tokens": 4, "prompt": "a"}),
    "object-detection": ("boxes", PICTURE, {"threshold": 0.1}),
    "question-answering": ("reader", QUESTION, {"top_k": 2}),
    "summarization": ("writer", TEXT, {"max_new_tokens": 4}),
    "table-question-answering": ("tables", {"table": MOVIES, "query": QUESTIONS[0]}, {}),
    "text-classification": ("nli", PAIR, {"top_k": None}),
    "text-embedding": ("encoder", TEXT, {"normalize": True}),
    "text-ranking": ("ranks", {"query": "Anna", "passages": [TEXT, "She works."]}, {"top_k": 1}),
    "text-similarity": ("encoder", PAIR, {}),
    "text2text-generation": ("writer", TEXT, {"max_new_tokens": 4, "num_beams": 2}),
    "token-classification": ("names", TEXT, {"aggregation_strategy": "simple"}),
    "translation": ("writer", TEXT, {"max_new_tokens": 4}),
    "visual-question-answering": ("asked", {"image": PICTURE, "question": "what is it?"}, {"top_k": 1}),
    "zero-shot-classification": ("nli", TEXT, LABELS),
    "zero-shot-image-classification": ("both", PICTURE, LABELS),
}


TOLD = {"ear": "audio-embedding", "ranks": "text-ranking"}  # where files do not say
CASES = in_turn(sorted(ASKED), 9)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder, Options(grace=2.0))
    yield made
    made.close()


@pytest.fixture(scope="module")
def ready(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Serves a model by its name, and gives its path; made when it is needed first."""
    paths: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in paths:
            paths[name] = tmp_path_factory.mktemp(name)
            SAVED[name](paths[name])
            model = TaskModel(name, str(paths[name]), TOLD.get(name))
            server.models.add(model)
            model.start(None)  # type: ignore[arg-type]  # which a batch does not need
        return paths[name]

    return path


def post(server: Server, task: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/tasks/{task}", json=body, timeout=30)


def test_every_task_is_here() -> None:
    assert ASKED.keys() | {WRITES, SEES} == set(task_names())


@pytest.mark.parametrize("task", CASES)
@pytest.mark.filterwarnings("ignore")
def test_answers_are_those_of_the_pipeline(server: Server, ready: Callable[[str], Path], task: str) -> None:
    name, inputs, parameters = ASKED[task]
    pipe = pipeline(task, ready(name))
    for given in (inputs, [inputs, inputs]):
        found = post(server, task, model=name, inputs=given, parameters=parameters)
        assert found.status_code == 200, found.text
        assert_near(found.json(), json.loads(encode(pipe(given, **parameters))))


@pytest.mark.parametrize("task", CASES)
@pytest.mark.filterwarnings("ignore")
def test_parameters_are_refused_by_name(server: Server, ready: Callable[[str], Path], task: str) -> None:
    name, inputs, parameters = ASKED[task]
    ready(name)
    own = {each.name for each in fields(server.models.get(name).doing(task).options_class)}
    unknown = {"no_such", "batch_size", "num_workers", "assistant_model", "generation_config", "tokenizer_kwargs"}
    for each in unknown | (own & {"streamer", "sampling_rate", "image_processor_kwargs", "processor_kwargs", "timeout"}):
        refused = post(server, task, model=name, inputs=inputs, parameters=parameters | {each: 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"parameters.{each}")
    for each in own - unknown:
        for value in ({"a": 1}, [None], 1e308):
            found = post(server, task, model=name, inputs=inputs, parameters=parameters | {each: value})
            assert found.status_code == 400, (each, value, found.text)


OPENED: list[str] = []  # what Python opens or connects to that is named so


def _watch(event: str, values: Any) -> None:
    if event in ("open", "socket.connect", "socket.getaddrinfo") and "canary" in str(values):
        OPENED.append(str(values))


sys.addaudithook(_watch)


@pytest.mark.parametrize("task", CASES)
@pytest.mark.filterwarnings("ignore")
def test_no_path_or_address_is_opened(server: Server, ready: Callable[[str], Path], task: str, tmp_path: Path) -> None:
    name, inputs, parameters = ASKED[task]
    ready(name)
    path = tmp_path / "canary.png"
    path.write_bytes(b"canary")
    names = (str(path), path.as_uri(), "http://canary.invalid/a.png")
    for given in names:
        for wrong in (
            given,
            {"path": given},
            {"url": given},
            {"image": given, "question": "a"},
            {"table": given, "query": "a"},
        ):
            for several in (wrong, [inputs, wrong]):
                OPENED.clear()
                found = post(server, task, model=name, inputs=several, parameters=parameters)
                assert not OPENED
                if task in TEXTS:
                    assert found.status_code in (200, 400), found.text
                else:
                    assert found.status_code == 400, found.text
                    assert "canary" not in found.text


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "wide": ("zero-shot-classification", LABELS | {"hypothesis_template": "{:>999999999}"}),
    "attribute": ("zero-shot-classification", LABELS | {"hypothesis_template": "{0.__class__}"}),
    "converted": ("zero-shot-classification", LABELS | {"hypothesis_template": "{!r}"}),
    "cold": ("text2text-generation", {"temperature": 0, "do_sample": True}),
    "beams": ("text2text-generation", {"num_beams": 4096}),
    "labels": ("zero-shot-classification", {"candidate_labels": 1}),
    "far": ("automatic-speech-recognition", {"chunk_length_s": 1e308}),
    "prompt": ("text-embedding", {"prompt_name": [1]}),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_values_that_cannot_be(server: Server, ready: Callable[[str], Path], case: str) -> None:
    task, parameters = WRONG[case]
    name, inputs, _ = ASKED[task]
    ready(name)
    assert post(server, task, model=name, inputs=inputs, parameters=parameters).status_code == 400


def test_a_package_that_this_server_lacks(
    server: Server, ready: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready("pages")
    monkeypatch.setitem(sys.modules, "pytesseract", None)
    found = post(server, "document-question-answering", model="pages", inputs={"image": PICTURE, "question": "Total?"})
    assert found.status_code == 400
    assert "needs the package 'pytesseract'" in found.json()["error"]["message"]


def test_arguments_of_what_writes_speech(server: Server, ready: Callable[[str], Path]) -> None:
    name = "speaks"
    SAVED[name] = save_writer
    ready(name)
    for given in ({"assistant_model": "x"}, {"num_beams": 10**6}, {"num_return_sequences": 9}, {"language": "xx"}, [1]):
        parameters = {"generate_kwargs": given}
        found = post(server, "automatic-speech-recognition", model=name, inputs=SOUND, parameters=parameters)
        assert found.status_code == 400, found.text


def test_a_model_of_pictures_without_a_chat(server: Server, ready: Callable[[str], Path]) -> None:
    ready("describes")
    body = {"model": "describes", "messages": [{"role": "user", "content": "Hi"}]}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body).status_code == 400
    assert post(server, SEES, model="describes", inputs="Hi").status_code == 400
