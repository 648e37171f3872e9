"""Chats with pictures: equal to the pipeline's answers, whole and streamed, alone and in company."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import PIL.Image
import pytest
import torch

import transept
from tests.models.families import FAMILIES
from tests.pipelines.media_models import picture, png
from transept import pipeline
from transept.serving.models import Loader

from .conftest import Server, byte_tokenizer, until

TINY = {each.model_type: each.tiny for each in FAMILIES}
KINDS = {"llava": "Llava", "qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}{% if part.type == 'image' %}IMAGE"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NEW = 24


def save_seeing(path: Path, kind: str) -> Path:
    """A tiny model that sees, with its processor."""
    llava = kind == "llava"
    mark = "<image>" if llava else "<|image_pad|>"
    words, template = byte_tokenizer(mark, "<|video_pad|>"), TEMPLATE.replace("IMAGE", mark)
    if llava:
        eye = transept.LlavaImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
        processor: Any = transept.LlavaProcessor(eye, words, patch_size=4, chat_template=template)
        processor.vision_feature_select_strategy, processor.num_additional_image_tokens = "default", 1
        tokens = {"image_token_index": words.convert_tokens_to_ids(mark)}
    else:
        size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
        parts = transept.Qwen2VLImageProcessor(size=size), words, transept.Qwen2VLVideoProcessor(size=size)
        processor = getattr(transept, f"{KINDS[kind]}Processor")(*parts, chat_template=template)
        tokens = {f"{name}_token_id": words.convert_tokens_to_ids(f"<|{name}_pad|>") for name in ("image", "video")}
    processor.save_pretrained(path)
    settings: Any = TINY[kind] | tokens
    settings |= {"text_config": settings["text_config"] | {"vocab_size": len(words), "max_position_embeddings": 512}}
    if not llava:
        settings |= {"vision_config": settings["vision_config"] | {"patch_size": 14, "window_size": 28}}
    torch.manual_seed(1)
    config = getattr(transept, f"{KINDS[kind]}Config")(**settings)
    model = getattr(transept, f"{KINDS[kind]}ForConditionalGeneration")(config)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save_seeing(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def seeing(folder: Path, paths: dict[str, Path]) -> Iterator[Server]:
    loader = Loader(engine={"cache_bytes": 2**24, "budget": 16})  # so that a picture takes several passes
    models: list[Any] = [loader.load(kind, str(path)) for kind, path in paths.items()]
    apart: Any = loader.load("apart", str(paths["qwen2_vl"]))
    apart.engine.runner.together = apart.engine.memory.keeps = False  # as where rows cannot share a pass
    made = Server(folder, beside=[*models, apart])
    yield made
    made.close()


@pytest.fixture
def client(seeing: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def url(seed: int = 0, height: int = 40, width: int = 50) -> str:
    return "data:image/png;base64," + base64.b64encode(png(picture(seed, height, width))).decode()


def chat(*parts: str) -> list[dict[str, Any]]:
    """A message of texts and pictures."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": part}} if part.startswith("data:") else {"type": "text", "text": part}
        for part in parts
    ]
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]


CHATS = [
    chat(url(), "What is this?"),
    chat("Compare ", url(1), " and ", url(2, 90, 30), "."),
    chat("No picture at all."),
    [*chat(url(), "What is this?"), {"role": "assistant", "content": "A house."}, *chat(url(3), "And this?")[1:]],
]


@pytest.fixture(scope="module")
def wanted(paths: dict[str, Path]) -> Callable[[str, Any], str]:
    """What the pipeline answers."""
    pipes = {kind: pipeline("image-text-to-text", path, max_new_tokens=NEW, do_sample=False) for kind, path in paths.items()}

    def answer(kind: str, messages: Any) -> str:
        parts = [[{"type": "text", "text": m["content"]}] if isinstance(m["content"], str) else m["content"] for m in messages]
        chat = [message | {"content": own} for message, own in zip(messages, parts, strict=True)]
        text: str = pipes[kind](chat, return_full_text=False)[0]["generated_text"]
        return text.strip()  # as answers of chats are

    return answer


def asked(client: openai.OpenAI, model: str, messages: Any, **options: Any) -> Any:
    options = {"max_completion_tokens": NEW, "temperature": 0} | options
    return client.chat.completions.create(model=model, messages=messages, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_pipeline(client: openai.OpenAI, wanted: Callable[[str, Any], str], kind: str) -> None:
    answers = [wanted(kind, messages) for messages in CHATS]
    assert len(set(answers)) == len(CHATS)
    for messages, answer in zip(CHATS, answers, strict=True):
        whole = asked(client, kind, messages)
        assert whole.choices[0].message.content == answer
        chunks = asked(client, kind, messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
    with ThreadPoolExecutor(len(CHATS)) as pool:  # in company, and now with what was read before
        found = [*pool.map(lambda messages: asked(client, kind, messages, n=2), CHATS)]
    assert [[choice.message.content for choice in each.choices] for each in found] == [[answer] * 2 for answer in answers]
    assert found[0].usage.prompt_tokens_details.cached_tokens >= 32 * (kind == "llava")


def test_rows_that_are_read_one_after_the_other(client: openai.OpenAI, wanted: Callable[[str, Any], str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda messages: asked(client, "apart", messages), CHATS)]
    assert [each.choices[0].message.content for each in found] == [wanted("qwen2_vl", messages) for messages in CHATS]


@pytest.mark.parametrize("kind", KINDS)
def test_other_pictures_share_no_prefix(client: openai.OpenAI, wanted: Callable[[str, Any], str], kind: str) -> None:
    first, second = (chat(url(seed, 80, 80), "What is this? " * 6) for seed in (7, 8))
    answers = [asked(client, kind, messages) for messages in (first, second, first)]
    assert [each.choices[0].message.content for each in answers] == [wanted(kind, each) for each in (first, second, first)]
    cached = [each.usage.prompt_tokens_details.cached_tokens for each in answers]
    assert cached[:2] == [0, 0]
    assert cached[2] >= answers[2].usage.prompt_tokens - 64


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_goes_on_from_what_was_read(client: openai.OpenAI, wanted: Callable[[str, Any], str], kind: str) -> None:
    messages = chat(url(11, 80, 80), "What is this? " * 6)
    first = asked(client, kind, messages)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And why?"}]
    second = asked(client, kind, messages)
    assert second.choices[0].message.content == wanted(kind, messages)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 64


def test_marks_of_pictures_in_texts_are_text(client: openai.OpenAI, seeing: Server) -> None:
    for kind, mark in (("llava", "<image>"), ("qwen2_vl", "<|image_pad|>")):
        plain, marked = (asked(client, kind, chat(url(), text)) for text in ("a" * len(mark), mark))
        assert plain.usage.prompt_tokens == marked.usage.prompt_tokens
    body = {"model": "llava", "messages": chat(url(), "What?")}
    told = httpx.post(f"{seeing.url}/tokenize", json=body).json()
    assert told["count"] == asked(client, "llava", body["messages"]).usage.prompt_tokens


def bomb() -> str:
    held = io.BytesIO()
    PIL.Image.new("1", (9000, 9000)).save(held, "PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("http://127.0.0.1:1/a.png", "no path or address"),
        ("https://example.org/a.png", "no path or address"),
        ("file:///etc/passwd", "no path or address"),
        ("/etc/passwd", "no path or address"),
        ("data:image/png;base64,####", "broken base64"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,AAAA", "not read"),
        (url()[:200], ""),
        (bomb(), "9000 x 9000 pixels"),
    ],
    ids=["http", "https", "file", "path", "no base64", "plain", "no picture", "cut short", "bomb"],
)
def test_pictures_that_are_none(client: openai.OpenAI, given: str, told: str) -> None:
    messages = chat("See", url(), "and")
    messages[1]["content"].append({"type": "image_url", "image_url": {"url": given}})
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, "llava", messages)
    assert refused.value.param == "messages.1.content.3.image_url.url"
    assert told in refused.value.message
    assert "passwd" not in refused.value.message


@pytest.mark.parametrize(
    ("model", "content", "param"),
    [
        ("tiny", [{"type": "image_url", "image_url": {"url": "data:"}}], "messages.0.content.0.image_url.url"),
        (
            "llava",
            [{"type": "image_url", "image_url": {"url": "data:", "detail": "high"}}],
            "messages.0.content.0.image_url.detail",
        ),
        ("llava", [{"type": "image_url", "image_url": "data:"}], "messages.0.content.0.image_url"),
        ("llava", [{"type": "image_url"}], "messages.0.content.0"),
        ("llava", [{"type": "text", "text": "a", "image_url": {"url": "data:"}}], "messages.0.content.0"),
        ("llava", [{"type": "input_audio", "input_audio": {}}], "messages.0.content.0.type"),
        ("llava", [{"type": "text", "text": 1}], "messages.0.content.0.text"),
        ("llava", 1, "messages.0.content"),
        ("llava", chat(*[url(0, 1, 1)] * 65)[1]["content"], "messages"),
    ],
)
def test_contents_that_are_none(client: openai.OpenAI, model: str, content: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, model, [{"role": "user", "content": content}])
    assert refused.value.param == param


def test_a_picture_that_the_model_cannot_read_fails_alone(
    seeing: Server, client: openai.OpenAI, wanted: Callable[[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = seeing.models.get("qwen2_vl")

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    answer = wanted("qwen2_vl", chat("Plain"))
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(model.model.body, "get_image_features", fail)
        other = pool.submit(asked, client, "qwen2_vl", chat("Plain"), max_completion_tokens=200)
        with pytest.raises(openai.InternalServerError, match="RuntimeError"):
            asked(client, "qwen2_vl", chat(url(99), "What?"))
        assert other.result().choices[0].message.content.startswith(answer)
    until(lambda: not model.engine.running)
    assert asked(client, "qwen2_vl", chat(url(99), "What?")).choices[0].finish_reason == "length"
