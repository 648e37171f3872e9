"""Rows of the engine equal `generate` alone, whatever company they have, and a row that fails fails alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transept
from transept import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.errors import GenerationError, InputError, TranseptError
from transept.serving.engine.engine import Engine, Request
from transept.serving.engine.sampler import Chosen
from transept.serving.errors import BusyError, ContextLengthError, DrainingError, EngineDeadError, QueueFullError

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
SIZES |= {"max_position_embeddings": 512, "initializer_range": 0.5}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
WINDOWS = GROUPED | {"sliding_window": 16}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 512, "initializer_range": 0.5}
MODELS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gemma2": WINDOWS | {"query_pre_attn_scalar": 8},
    "gemma3_text": WINDOWS | {"query_pre_attn_scalar": 8, "sliding_window_pattern": 2},
    "gpt2": GPT,
    "mixtral": GROUPED | EXPERTS,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "initializer_range": 0.5},
    "bamba": GROUPED | MAMBA | {"attn_layer_indices": [1]},
}


def model_of(kind: str, change: Callable[[Any], Any] = lambda model: model) -> Any:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **MODELS[kind])).eval()
    model.generation_config.eos_token_id = None
    return change(model)


class Answer:
    """A request, and what came of it."""

    def __init__(self, ids: list[int], *, new: int = 12, stop_after: int | None = None, **more: Any) -> None:
        of_request = {name: more.pop(name) for name in ("seed", "logprobs", "processors", "salt") if name in more}
        settings = GenerationConfig(**{"max_new_tokens": new, "do_sample": False} | more)
        self.chosen: list[Chosen] = []
        self.finish: str | None = None
        self.error: TranseptError | None = None
        self.stop_after, self.done = stop_after, threading.Event()
        self.request = Request(ids, settings, self.take, self.fail, **of_request)

    @property
    def tokens(self) -> list[int]:
        return [each.token for each in self.chosen]

    def take(self, chosen: Chosen, finish: str | None) -> bool:
        self.chosen.append(chosen)
        self.finish = finish
        stops = len(self.chosen) == self.stop_after
        if stops or finish:
            self.done.set()
        return stops

    def fail(self, error: TranseptError) -> None:
        self.error = error
        self.done.set()


def run(engine: Engine, answers: list[Answer], *, apart: int = 0) -> None:
    """Submit, each so many passes after the one before, and run to the end."""
    for answer in answers:
        engine.submit(answer.request)
        for _ in range(apart):
            engine.step()
    while engine.step() or engine.running:
        pass
    assert engine.memory.row_blocks == 0


def alone(model: Any, answer: Answer) -> list[int]:
    settings = {"max_new_tokens": answer.request.settings.max_new_tokens, "do_sample": False}
    found: list[int] = model.generate(torch.tensor([answer.request.ids]), **settings)[0].tolist()
    return found[len(answer.request.ids) :]


def prompts(count: int, longest: int = 90, least: int = 1) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, 61) for _ in range(rng.randrange(least, longest))] for _ in range(count)]


@pytest.mark.parametrize("kind", MODELS)
def test_rows_in_company_equal_generate_alone(kind: str) -> None:
    model = model_of(kind)
    answers = [Answer(ids, logprobs=3) for ids in prompts(7)]
    run(Engine(model, cache_bytes=2**24, budget=40), answers, apart=2)
    for answer in answers:
        assert answer.tokens == alone(model, answer)
        assert answer.finish == "length"
        whole = torch.tensor([answer.request.ids + answer.tokens])
        with torch.inference_mode():
            scores = (
                model(whole, attention_mask=torch.ones_like(whole), use_cache=False)
                .logits[0, len(answer.request.ids) - 1 : -1]
                .log_softmax(-1)
            )
        told = torch.tensor([each.logprob for each in answer.chosen])
        wanted = scores.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        torch.testing.assert_close(told, wanted, rtol=0, atol=1e-4)  # as the design demands
        assert all(each.top[0] == (each.token, each.logprob) and len(each.top) == 3 for each in answer.chosen)


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_of_few_bits_equal_generate_alone(bits: int) -> None:
    model = model_of("llama", lambda model: quantize(model, bits))
    answers = [Answer(ids) for ids in prompts(6)]
    run(Engine(model, cache_bytes=2**24), answers, apart=1)
    assert all(answer.tokens == alone(model, answer) for answer in answers)


@pytest.mark.skipif(not can_pack(), reason="packed products are for PyTorch builds with oneDNN")
def test_packed_rows_have_the_same_bits_in_company() -> None:
    model = model_of("llama", pack)
    rows = prompts(6)
    company = [Answer(ids, logprobs=0) for ids in rows]
    run(Engine(model, cache_bytes=2**24, keeps_prefixes=False), company)
    for ids, answer in zip(rows, company, strict=True):
        own = Answer(ids, logprobs=0)
        run(Engine(model, cache_bytes=2**24, keeps_prefixes=False), [own])
        assert own.chosen == answer.chosen


def test_a_seed_gives_the_same_text_in_any_company() -> None:
    model = model_of("llama")
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.3},
        {"top_k": 5},
        {"top_p": 0.8},
        {"repetition_penalty": 1.5, "top_p": 0.9},
    ]
    made = [Answer(ids, do_sample=True, seed=3, **kinds[number % 4]) for number, ids in enumerate(prompts(8))]
    run(Engine(model, cache_bytes=2**24), made)
    for number, answer in enumerate(made):
        again = Answer(answer.request.ids, do_sample=True, seed=3, **kinds[number % 4])
        run(Engine(model, cache_bytes=2**24), [again])
        assert again.tokens == answer.tokens


def test_a_prompt_that_begins_alike_reads_its_end_alone() -> None:
    model = model_of("llama")
    engine, (begin,) = Engine(model, cache_bytes=2**24), prompts(1, 151, 150)
    first = Answer(begin)
    run(engine, [first])
    turn = Answer([*begin, *first.tokens, 5, 6, 7])
    same, other = Answer(begin), Answer(begin, salt=b"another key")
    run(engine, [turn, same, other])
    assert [answer.tokens for answer in (turn, same, other)] == [alone(model, answer) for answer in (turn, same, other)]
    assert turn.request.cached == (len(begin) + len(first.tokens) - 1) // 32 * 32
    assert 0 <= len(begin) - same.request.cached <= 33
    assert other.request.cached == 0


def test_exact_engines_give_the_same_bits_with_a_prefix() -> None:
    model, (ids,) = model_of("llama", pack if can_pack() else lambda model: model), prompts(1, 151, 150)
    engine = Engine(model, cache_bytes=2**24, exact=True, budget=64)
    first, again = Answer(ids, logprobs=0), Answer(ids, logprobs=0)
    run(engine, [first])
    run(engine, [again])
    assert again.request.cached > 64
    assert again.chosen == first.chosen


def test_where_memory_ends_rows_wait_and_read_again() -> None:
    model = model_of("llama")
    engine = Engine(model, cache_bytes=2**24)
    engine.memory.blocks = 8
    answers = [Answer(ids, new=60) for ids in prompts(5, 60)]
    run(engine, answers)
    assert engine.scheduler.preempted > 0
    assert all(answer.tokens == alone(model, answer) for answer in answers)


def test_ends_stops_and_cancels() -> None:
    model = model_of("llama")
    whole, stopped = Answer([5, 6, 7]), Answer([5, 6, 7], stop_after=2)
    engine = Engine(model, cache_bytes=2**24)
    run(engine, [whole, stopped])
    ended = Answer([5, 6, 7], eos_token_id=[1, whole.tokens[3]])
    run(engine, [ended])
    assert ended.tokens == whole.tokens[: whole.tokens.index(whole.tokens[3]) + 1]
    assert ended.finish == "stop"
    assert stopped.tokens == whole.tokens[:2]
    gone = Answer([5] * 40, new=400)
    number = engine.submit(gone.request)
    engine.step()
    engine.cancel(number)
    engine.step()
    assert not engine.running
    assert engine.memory.row_blocks == 0
    engine.cancel(number)  # once more says nothing
    engine.step()


class Poisoned(nn.Module):
    """Raises where a token is read that is poison."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.embedding_dim = inner, inner.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        if bool((ids == 2).any()):
            raise RuntimeError("poison")
        found: Tensor = self.inner(ids)
        return found


def test_a_row_that_fails_fails_alone() -> None:
    model = model_of("llama")
    model.backbone.embed_tokens = Poisoned(model.backbone.embed_tokens)
    answers = [Answer(ids) for ids in prompts(6)]
    poison = Answer([5, 6, 2])
    broken = Answer([5, 6], processors=[lambda ids, scores: 1 / 0])
    impossible = Answer([5, 7], processors=[lambda ids, scores: scores - torch.inf])
    cold = Answer([5, 8], do_sample=True, temperature=1e-40)  # which makes all scores infinite
    bad_ones = [poison, broken, impossible, cold]
    run(Engine(model, cache_bytes=2**24), [*answers[:3], *bad_ones, *answers[3:]])
    words_of = ("failed with RuntimeError", "ZeroDivisionError", "allow no token", "allow no token")
    for bad, words in zip(bad_ones, words_of, strict=True):
        assert isinstance(bad.error, GenerationError)
        assert words in str(bad.error)
    assert all(answer.tokens == alone(model, answer) for answer in answers)


def test_an_engine_that_fails_says_so_and_ends() -> None:
    model = model_of("llama")
    engine, answer = Engine(model, cache_bytes=2**24), Answer([5, 6], new=300)
    engine.start()
    engine.submit(answer.request)
    engine.scheduler.plan = None  # type: ignore[assignment, method-assign]
    assert answer.done.wait(10)
    assert isinstance(answer.error, EngineDeadError)
    assert not engine.is_healthy(30)
    with pytest.raises(EngineDeadError):
        engine.submit(Answer([5]).request)
    engine.close()


def test_a_thread_of_its_own() -> None:
    model = model_of("llama")
    engine, answers = Engine(model, cache_bytes=2**24), [Answer(ids) for ids in prompts(9)]
    engine.start()
    for answer in answers:
        engine.submit(answer.request)
    assert all(answer.done.wait(30) for answer in answers)
    assert all(answer.tokens == alone(model, answer) for answer in answers)
    last = Answer([5, 6, 7], new=400)
    engine.submit(last.request)
    engine.close()
    assert isinstance(last.error, DrainingError)
    assert not engine.running
    with pytest.raises(BusyError):
        engine.submit(Answer([5]).request)


def test_rows_end_where_all_positions_would_turn_otherwise() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
    sizes = GROUPED | {"original_max_position_embeddings": 64, "pad_token_id": 0}
    config = AutoConfig.for_model("phi3", **sizes, rope_parameters=scaling)
    engine = Engine(AutoModelForCausalLM.from_config(config).eval(), cache_bytes=2**24)
    assert engine.context == 64
    with pytest.raises(ContextLengthError, match="the context has 64"):
        engine.submit(Answer([1] * 60).request)


def test_the_door() -> None:
    model = model_of("llama")
    engine = Engine(model, cache_bytes=2**24, max_waiting=2)
    for ids in ([], [61], [-1]):
        with pytest.raises(InputError, match="from 0 to 60"):
            engine.submit(Answer(ids).request)
    with pytest.raises(ContextLengthError, match="600 tokens and 12 are to be written, but the context has 512"):
        engine.submit(Answer([1] * 600).request)
    engine.memory.blocks = 4
    with pytest.raises(ContextLengthError, match="212 positions are more than the memory"):
        engine.submit(Answer([1] * 200).request)
    engine.submit(Answer([1]).request)
    engine.submit(Answer([1]).request)
    with pytest.raises(QueueFullError):
        engine.submit(Answer([1]).request)
    with pytest.raises(InputError, match="evaluation mode"):
        Engine(transept.GPT2LMHeadModel(transept.GPT2Config(**GPT)))
