"""Log-probabilities and what templates are told, asked by the official client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
import torch

from tests.serving.conftest import Server
from tests.serving.test_writer import TOKENIZERS
from transept.preprocess.text.vocabulary import TokenBytes
from transept.serving.engine.logprobs import Telling
from transept.serving.engine.sampler import Chosen
from transept.serving.engine.writer import Writer

PROMPT = "Once upon a time"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def scores(server: Server, ids: list[int]) -> torch.Tensor:
    """The log-probabilities of what follows each id (T, V), by the model alone."""
    with torch.inference_mode():
        logits = server.models.get("tiny").model(torch.tensor([ids])).logits[0]
    return torch.as_tensor(logits).float().log_softmax(-1)


def status(server: Server, path: str, **body: Any) -> int:
    prompt = {"messages": MESSAGES} if path == "chat/completions" else {"prompt": PROMPT}
    return httpx.post(f"{server.url}/v1/{path}", json={"model": "tiny", "max_tokens": 2, **prompt, **body}).status_code


def test_chats_tell_log_probabilities(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 12}
    choice = client.chat.completions.create(**options, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert len(content) == 12
    assert b"".join(bytes(token.bytes or ()) for token in content).decode(errors="replace") == choice.message.content
    assert all(token.top_logprobs[0].bytes == token.bytes for token in content)
    tokenizer = server.models.get("tiny").tokenizer
    prompt = list(tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False))
    own = scores(server, prompt)[-1].topk(3)
    assert [top.logprob for top in content[0].top_logprobs] == pytest.approx(own.values.tolist(), abs=1e-4)
    streamed = list(client.chat.completions.create(**options, logprobs=True, stream=True))
    told = [token for chunk in streamed if (found := chunk.choices[0].logprobs) for token in found.content or ()]
    assert [(token.token, token.bytes) for token in told] == [(token.token, token.bytes) for token in content]
    assert [token.logprob for token in told] == pytest.approx([token.logprob for token in content], abs=1e-4)
    assert {len(token.top_logprobs) for token in told} == {0}


def test_completions_tell_log_probabilities(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "logprobs": 2}
    choice = client.completions.create(**options).choices[0]
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.text_offset is not None
    assert told.top_logprobs is not None
    assert len(told.tokens) == len(told.text_offset) == len(told.token_logprobs or ()) == 12
    assert [max(each.values()) for each in told.top_logprobs] == told.token_logprobs
    for token, begin in zip(told.tokens, told.text_offset, strict=True):
        assert token.startswith(("bytes:", "<|")) or choice.text[begin:].startswith(token)
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**options, stream=True)]
    assert [token for chunk in chunks if chunk for token in chunk.tokens or ()] == told.tokens
    assert [place for chunk in chunks if chunk for place in chunk.text_offset or ()] == told.text_offset


def test_stopped_texts_tell_of_what_is_shown(client: openai.OpenAI) -> None:
    letters = {str(ord(letter) - ord("!")): 100 for letter in "z"}
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 9, "logit_bias": letters}
    choice = client.completions.create(**options, stop="zzzz", logprobs=0).choices[0]
    assert (choice.text, choice.logprobs and choice.logprobs.tokens) == ("", [])
    choice = client.completions.create(**options, stop="y", logprobs=0).choices[0]
    assert (choice.text, choice.logprobs and choice.logprobs.tokens) == ("z" * 9, ["z"] * 9)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("stop", [(), ("wor",), ("é",)])
def test_bytes_join_to_the_text(name: str, stop: tuple[str, ...]) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer("Hello é world, 你好 🙂 and the end", add_special_tokens=False).input_ids
    writer = Writer(tokenizer, ids[:2], max_tokens=len(ids) - 2, stop=stop)
    telling, told, text = Telling(TokenBytes(tokenizer), writer), [], ""
    for index in ids[2:]:
        text += "".join(event.text for event in writer.feed(index))  # type: ignore[union-attr]
        told += telling.feed(Chosen(index, -1.0))
        if writer.finish_reason:
            break
    assert b"".join(each.shown for each in told).decode(errors="replace") == text


def test_fields_that_do_not_fit_together(server: Server) -> None:
    chat, text = "chat/completions", "completions"
    assert status(server, chat, top_logprobs=2) == 400
    assert status(server, chat, logprobs=True, top_logprobs=21) == 400
    assert status(server, chat, stream_options={"include_usage": True}) == 400
    assert status(server, chat, continue_final_message=True, add_generation_prompt=True) == 400
    assert status(server, chat, reasoning_effort="low") == 400
    for name in ("nothing", "messages", "add_generation_prompt", "eos_token", "tokenize"):
        assert status(server, chat, chat_template_kwargs={name: 1}) == 400
    assert status(server, text, best_of=2) == 400
    assert status(server, text, best_of=2, n=2) == 200
    assert status(server, text, prompt=["a"] * 100, n=2) == 400
    assert status(server, text, logprobs=21) == 400


def test_templates_are_told_what_they_read(server: Server, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = server.models.get("tiny").tokenizer

    def read(**extra: Any) -> int:
        messages: Any = [*MESSAGES, {"role": "assistant", "content": "Mar"}]
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1, extra_body=extra)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    whole = read()
    assert read(add_generation_prompt=False) == whole - 1
    assert read(continue_final_message=True) == whole - 2
    tail = "{% if enable_thinking %}thinks{% endif %}{{ style }}"
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + tail)
    assert read(reasoning_effort="high") == whole + len("thinks")
    assert read(reasoning_effort="none") == whole
    assert read(chat_template_kwargs={"style": "<|end|>"}) == whole + len("<|end|>")  # it is no mark, but its letters
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + "{{ reasoning_effort }}")
    assert read(reasoning_effort="high") == whole + len("high")
