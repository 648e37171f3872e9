"""Prompts that are shown again, with the log-probabilities of their tokens, as evaluation harnesses ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from tokenizers import AddedToken

from tests.serving.conftest import Server, save_model
from tests.serving.test_engine import Answer, model_of
from tests.serving.test_writer import TOKENIZERS
from transept import AutoTokenizer
from transept.preprocess.text.vocabulary import TokenBytes
from transept.serving.engine.engine import Engine
from transept.serving.engine.logprobs import of_prompt
from transept.serving.engine.sampler import Chosen

PROMPT = "Once upon a time there was a café by the sea."


def own(model: Any, ids: list[int]) -> torch.Tensor:
    """The log-probabilities of each id but the first, by the model alone."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).logits[0].float()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("by_ids", [False, True])
def test_prompts_are_scored_alone(server: Server, client: openai.OpenAI, by_ids: bool) -> None:
    model = server.models.get("tiny")
    rows = [model.tokenizer(prompt).input_ids for prompt in (PROMPT, "The end")]
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 0, "echo": True, "logprobs": 1}
    for _ in range(2):  # what was kept of the first does not hide the scores
        answer = client.completions.create(prompt=rows if by_ids else [PROMPT, "The end"], **options)
        assert [choice.text for choice in answer.choices] == [PROMPT, "The end"]
        for choice, ids in zip(answer.choices, rows, strict=True):
            told = choice.logprobs
            assert told is not None
            assert told.token_logprobs is not None
            assert told.token_logprobs[0] is None
            assert told.token_logprobs[1:] == pytest.approx(own(model.model, ids).tolist(), abs=1e-4)
            assert told.top_logprobs is not None
            assert told.top_logprobs[0] is None
            assert told.text_offset == [len(choice.text.encode()[:place].decode(errors="ignore")) for place in range(len(ids))]
            assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (0, sum(map(len, rows)))
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_harnesses_find_the_scores_of_a_continuation(server: Server, client: openai.OpenAI) -> None:
    model = server.models.get("tiny")
    context = list(model.tokenizer("It is").input_ids)
    row = model.model.generate(torch.tensor([context]), max_new_tokens=6, do_sample=False)[0].tolist()
    for ids, greedy in ((row, True), ([*row[:-1], (row[-1] + 1) % 200], False)):
        answer = client.completions.create(model="tiny", prompt=[ids], max_tokens=1, echo=True, logprobs=1, temperature=0)
        told: Any = answer.choices[0].logprobs
        # As lm-eval's `local-completions` reads them: all but the token that was written.
        assert told.token_logprobs[len(context) : -1] == pytest.approx(own(model.model, ids)[-6:].tolist(), abs=1e-4)
        pairs = zip(told.tokens[len(context) : -1], told.top_logprobs[len(context) : -1], strict=True)
        assert all(token == max(top, key=top.get) for token, top in pairs) is greedy


def test_the_end_of_an_echoed_answer_has_its_score(tmp_path: Path) -> None:
    made = Server(save_model(tmp_path / "ends"))
    try:
        model = made.models.get("tiny")
        ids = list(model.tokenizer("It is").input_ids)
        model.model.generation_config.eos_token_id = int(model.model(torch.tensor([ids])).logits[0, -1].argmax())
        with openai.OpenAI(base_url=f"{made.url}/v1", api_key="any") as client:
            options: Any = {"model": "tiny", "prompt": "It is", "max_tokens": 1, "temperature": 0}
            choice = client.completions.create(**options, echo=True, logprobs=1)
        told: Any = choice.choices[0].logprobs
        assert len(told.tokens) == len(ids) + 1
        assert choice.choices[0].text == "It is"
        assert choice.choices[0].finish_reason == "stop"
    finally:
        made.close()


def test_echoes_come_before_answers_in_streams_too(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 2, "n": 2}
    plain = client.completions.create(**options).choices[0]
    whole = client.completions.create(**options, echo=True)
    chunks = list(client.completions.create(**options, echo=True, stream=True))
    for choice in whole.choices:
        assert choice.text == PROMPT + plain.text
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(chunk.text for chunk in own) == choice.text
        told: Any = choice.logprobs
        assert told.tokens == [token for chunk in own if chunk.logprobs for token in chunk.logprobs.tokens or ()]
        assert told.text_offset == [place for chunk in own if chunk.logprobs for place in chunk.logprobs.text_offset or ()]
        assert told.text_offset[-8] == len(PROMPT)
    assert client.completions.create(model="tiny", prompt="ab", max_tokens=0, extra_body={"echo": True}).choices[0].text == "ab"
    with pytest.raises(openai.BadRequestError, match="only with `echo`"):
        client.completions.create(model="tiny", prompt="ab", max_tokens=0)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt=[99999], max_tokens=0, echo=True)


@pytest.mark.parametrize("kind", ["llama", "bamba"])
def test_long_prompts_are_scored_in_company_and_after_they_lost_their_memory(kind: str) -> None:
    model, generator = model_of(kind), torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 61, (size,), generator=generator).tolist() for size in (100, 70, 1, 40)]
    engine = Engine(model, budget=48, cache_bytes=2**24)
    told: list[list[Chosen]] = [[] for _ in rows]
    answers = [Answer(ids, new=9, logprobs=1) for ids in rows]
    for answer, found in zip(answers[:3], told, strict=False):
        answer.request.echo = found.extend
    for answer in answers:
        engine.submit(answer.request)
    for count in range(60):
        if count == 6:
            engine.scheduler.preempt(next(iter(engine.scheduler.running.values())))
        engine.step()
    assert told[3] == []
    for ids, found in zip(rows[:3], told, strict=False):
        assert [chosen.token for chosen in found] == ids[1:]
        assert [chosen.logprob for chosen in found] == pytest.approx(own(model, ids).tolist(), abs=1e-4)
    assert [len(answer.chosen) for answer in answers] == [9] * 4


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_of_a_prompt_spell_it(name: str) -> None:
    tokenizer, text = TOKENIZERS[name], "Hello é world, x"
    for ids in (tokenizer(text, add_special_tokens=False).input_ids, [tokenizer.bos_token_id, *tokenizer(text).input_ids]):
        tokens = of_prompt(text, [Chosen(index) for index in ids], TokenBytes(tokenizer))
        assert b"".join(each.shown for each in tokens).decode() == text
        assert sum(not each.shown for each in tokens) <= 2  # the mark that begins a text, and the space before its first word


def test_marks_in_a_prompt_are_a_part_of_its_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken("<mark>", special=True)])
    ids = tokenizer("a<mark>b").input_ids
    assert [each.shown for each in of_prompt("a<mark>b", [Chosen(i) for i in ids], TokenBytes(tokenizer))] == [
        b"a",
        b"<mark>",
        b"b",
    ]
    assert [each.shown for each in of_prompt("ab", [Chosen(i) for i in ids], TokenBytes(tokenizer))] == [b"a", b"", b"b"]
