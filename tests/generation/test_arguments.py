"""The door of generate(): what it takes, what it refuses by a typed error, and what stays bounded whatever is asked for."""

from __future__ import annotations

import copy
import io
import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transept
from transept.environment import memory
from transept.errors import InputError, InputTypeError, TranseptError
from transept.generation.prompt import next_inputs
from transept.layers.caches.cache import DynamicCache
from transept.models.bert import BertConfig, BertLMHeadModel
from transept.models.encoder_decoder import EncoderDecoderModel
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transept.models.llama import LlamaConfig, LlamaForCausalLM
from transept.models.t5 import T5Config, T5ForConditionalGeneration

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.randint(5, 50, (2, 6), generator=torch.Generator().manual_seed(0))
SECRET = "hf_aVerySecretTokenOfTheHub"


def llama(**more: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"intermediate_size": 20, "num_key_value_heads": 2, "initializer_range": 0.3} | more)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**SIZES, n_positions=64, initializer_range=0.3)).eval()
    model.generation_config.eos_token_id = None
    return model


def bert(**more: Any) -> BertLMHeadModel:
    torch.manual_seed(0)
    config = BertConfig(**SIZES, intermediate_size=20, is_decoder=True, initializer_range=0.3, **more)
    return BertLMHeadModel(config).eval()


# --- types -----------------------------------------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "seed": ["x", 1.5, True, 2**64, -(2**63) - 1, [1, "a"], {}],
    "streamer": [5, "stdout", object()],
    "assistant_model": [5, "gpt2", torch.nn.Linear(1, 1)],
    "logits_processor": [5, max, "x", [3]],
    "stopping_criteria": [5, max, "x", [3]],
    "generation_config": [{"max_new_tokens": 3}, "greedy", 5],
    "prefix_allowed_tokens_fn": [5, [1, 2], "x"],
    "negative_prompt_ids": [[1, 2], "x", IDS.float(), IDS[0], IDS.bool()],
    "negative_prompt_attention_mask": [[1, 1], "x"],
    "synced_gpus": ["x", 1],
    "logits_to_keep": ["x", 1.5],
    "inputs_embeds": ["x", [[1.0]]],
    "position_ids": ["x", IDS[:, :3], IDS.float()],
    "token_type_ids": ["x", IDS[:, :3]],
    "past_key_values": ["x", ()],
    "attention_mask": ["x", torch.ones(2, 5)],
    "max_new_token": [5],
    "mems": [5],
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_other_types_are_named(name: str) -> None:
    model = gpt2()
    for value in WRONG[name]:
        with pytest.raises(InputError) as found:
            model.generate(IDS, max_new_tokens=2, guidance_scale=1.5, **{name: value})
        if value != [3]:
            assert f"`{name}`" in str(found.value)
        assert " at 0x" not in str(found.value)


IDS_OF_TYPES = [torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", IDS_OF_TYPES, ids=str)
def test_integers_of_every_size_are_ids(dtype: torch.dtype) -> None:
    model = gpt2()
    assert torch.equal(model.generate(IDS.to(dtype), max_new_tokens=3), model.generate(IDS, max_new_tokens=3))


ODD: dict[str, Tensor] = {
    "bool": IDS.bool(),
    "complex": IDS.to(torch.complex64),
    "half": IDS.half(),
    "sparse": IDS.to_sparse(),
    "meta": IDS.to("meta"),
    "one dimension": IDS[0],
    "no rows": IDS[:0],
}


@pytest.mark.parametrize("kind", ODD)
def test_other_tensors_are_no_ids(kind: str) -> None:
    with pytest.raises(InputError, match="input_ids"):
        gpt2().generate(ODD[kind], max_new_tokens=3)


def test_mistyped_settings_get_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"takes no `max_new_token`.*'max_new_tokens'"):
        gpt2().generate(IDS, max_new_token=3)
    with pytest.raises(InputTypeError, match="GenerationConfig"):
        gpt2().stream(IDS, {"max_new_tokens": 3}, tokenizer=object())
    with pytest.raises(InputTypeError, match="`tokenizer` must be a tokenizer"):
        gpt2().stream(IDS, tokenizer=object())


def test_arguments_have_the_positions_of_the_reference() -> None:
    model = gpt2()
    settings = transept.GenerationConfig(max_new_tokens=3)
    given = model.generate(IDS, settings, None, None, None, True, None, None, None, None)
    assert torch.equal(given, model.generate(IDS, max_new_tokens=3, synced_gpus=False))


# --- what tokenizers and callers pass along ------------------------------------------------------------------------------------


def test_token_types_go_on_with_the_last_one() -> None:
    model, types = bert(), torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 0]])
    found = model.generate(IDS, token_type_ids=types, max_new_tokens=5, eos_token_id=None, pad_token_id=0)
    for use_cache in (True, False):
        again = model.generate(
            IDS, token_type_ids=types, max_new_tokens=5, use_cache=use_cache, eos_token_id=None, pad_token_id=0
        )
        assert torch.equal(found, again)
    ids = IDS
    for _ in range(5):
        logits = model(ids, token_type_ids=types, use_cache=False).logits[:, -1]
        ids, types = torch.cat([ids, logits.argmax(-1)[:, None]], dim=1), torch.cat([types, types[:, -1:]], dim=1)
    assert torch.equal(found, ids)


def test_token_types_that_say_nothing_are_left_out() -> None:
    model = llama()
    plain = model.generate(IDS, max_new_tokens=5)
    assert torch.equal(model.generate(IDS, token_type_ids=torch.zeros_like(IDS), max_new_tokens=5), plain)
    with pytest.raises(InputError, match="no types of tokens"):
        model.generate(IDS, token_type_ids=torch.ones_like(IDS), max_new_tokens=5)
    seq2seq = t5()
    plain = seq2seq.generate(IDS, max_new_tokens=5)
    assert torch.equal(seq2seq.generate(IDS, token_type_ids=torch.zeros_like(IDS), max_new_tokens=5), plain)


def test_token_types_are_for_the_encoder_where_there_is_one() -> None:
    torch.manual_seed(0)
    encoder = transept.BertModel(BertConfig(**SIZES, intermediate_size=20, initializer_range=0.3))
    decoder = bert(add_cross_attention=True)
    model: Any = EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    types = torch.ones_like(IDS)
    states = model.get_encoder()(IDS, token_type_ids=types)
    expected = model.generate(encoder_outputs=states, max_new_tokens=6)
    assert torch.equal(model.generate(IDS, token_type_ids=types, max_new_tokens=6), expected)


def test_given_positions_go_on_by_one() -> None:
    model, places = gpt2(), torch.tensor([[3, 4, 5, 6, 7, 8]])
    found = model.generate(IDS, position_ids=places, max_new_tokens=4, num_return_sequences=2, num_beams=2)
    assert found.shape[0] == 4
    found = model.generate(IDS, position_ids=places, max_new_tokens=4)
    ids, counted = IDS, places
    for _ in range(4):
        logits = model(ids, position_ids=counted, use_cache=False).logits[:, -1]
        ids, counted = torch.cat([ids, logits.argmax(-1)[:, None]], dim=1), torch.cat([counted, counted[:, -1:] + 1], dim=1)
    assert torch.equal(found, ids)


def test_what_each_step_decides_itself_may_be_passed() -> None:
    model = gpt2()
    plain = model.generate(IDS, max_new_tokens=4)
    assert torch.equal(model.generate(IDS, max_new_tokens=4, logits_to_keep=3, return_dict=False), plain)


@pytest.mark.parametrize("ends", [-1, [-1], [-1, -100]], ids=str)
def test_negative_ends_never_end(ends: Any) -> None:
    model = gpt2()
    plain = model.generate(IDS, max_new_tokens=9)
    assert torch.equal(model.generate(IDS, max_new_tokens=9, eos_token_id=ends, min_new_tokens=2), plain)
    beams = model.generate(IDS, max_new_tokens=9, eos_token_id=ends, num_beams=3)
    assert torch.equal(beams, model.generate(IDS, max_new_tokens=9, num_beams=3))
    assert int(beams.min()) >= 0


def test_each_row_may_start_with_its_own_token() -> None:
    found = t5().generate(IDS, max_new_tokens=3, decoder_start_token_id=[7, 8], eos_token_id=None)
    assert found[:, 0].tolist() == [7, 8]
    with pytest.raises(InputError, match="3 tokens for 2 rows"):
        t5().generate(IDS, max_new_tokens=3, decoder_start_token_id=[7, 8, 9])


def test_inputs_can_be_prepared_by_who_wraps_the_model() -> None:
    """As prompt tuning does: embeddings before the prompt at the first step, and a cache that is longer than the ids."""
    model, virtual = gpt2(), torch.randn(1, 3, 16)
    seen: list[int] = []

    def prepare(ids: Tensor, *, next_sequence_length: int, past_key_values: Any = None, **rest: Any) -> dict[str, Any]:
        seen.append(next_sequence_length)
        if past_key_values is not None:
            return {"input_ids": ids[:, -next_sequence_length:], "past_key_values": past_key_values, **rest}
        embeds = model.get_input_embeddings()(ids)
        return {"inputs_embeds": torch.cat([virtual.expand(len(ids), -1, -1), embeds], dim=1), **rest}

    model.prepare_inputs_for_generation = prepare
    found = model.generate(IDS, max_new_tokens=5)
    del model.prepare_inputs_for_generation
    embeds = torch.cat([virtual.expand(2, -1, -1), model.get_input_embeddings()(IDS)], dim=1)
    assert torch.equal(found[:, 6:], model.generate(inputs_embeds=embeds, max_new_tokens=5))
    assert seen == [6, 1, 1, 1, 1]


def t5() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=20, num_layers=2, num_heads=4, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("make", [gpt2, llama, bert, t5])
def test_preparing_inputs_as_usual_changes_nothing(make: Callable[[], Any]) -> None:
    model, mask = make(), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    settings = {"max_new_tokens": 4, "eos_token_id": None, "pad_token_id": 0}
    plain = model.generate(IDS, attention_mask=mask, **settings)
    model.prepare_inputs_for_generation = partial(next_inputs, model)
    for more in ({}, {"prefill_chunk_size": 2}, {"use_cache": False}):
        assert torch.equal(model.generate(IDS, attention_mask=mask, **settings, **more), plain)


@pytest.mark.parametrize("make", [gpt2, llama, bert])
def test_steps_by_prepared_inputs_equal_generated_ones(make: Callable[[], Any]) -> None:
    model, mask = make(), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    plain = model.generate(IDS, attention_mask=mask, max_new_tokens=4, eos_token_id=None, pad_token_id=0)
    ids, cache, types = IDS, None, {} if make is not bert else {"token_type_ids": torch.zeros_like(IDS)}
    for _ in range(4):
        found = model(**next_inputs(model, ids, past_key_values=cache, attention_mask=mask, **types), use_cache=True)
        cache, types = found.past_key_values, {}
        ids = torch.cat([ids, found.logits[:, -1:].argmax(-1)], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    assert torch.equal(ids, plain)
    embeds = model.get_input_embeddings()(IDS)
    first = next_inputs(model, IDS, inputs_embeds=embeds, is_first_iteration=True)
    assert "input_ids" not in first
    assert torch.equal(first["inputs_embeds"], embeds)
    after = next_inputs(model, ids, next_sequence_length=1, past_key_values=cache, inputs_embeds=embeds)
    assert torch.equal(after["input_ids"], ids[:, -1:])


# --- bounds ------------------------------------------------------------------------------------------------------------------

STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "without a cache": {"use_cache": False},
    "sampled": {"do_sample": True},
    "beams": {"num_beams": 3},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "contrastive": {"penalty_alpha": 0.5, "top_k": 3},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "draft": {"assistant_model": llama()},
}


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("out_of_a_file", [False, True], ids=["asked", "of a file"])
def test_memory_grows_with_what_is_written(kind: str, out_of_a_file: bool) -> None:
    model, asked = llama(), {"max_new_tokens": 10**9, "max_time": 0.3}
    if out_of_a_file:
        model.generation_config.update(**asked)
        asked = {}
    start = time.perf_counter()
    written = model.generate(IDS[:1], **asked, **STRATEGIES[kind])
    assert written.untyped_storage().nbytes() < 2**20
    assert 6 < written.shape[1] < 10**5
    assert time.perf_counter() - start < 30  # 0.3 and one step, on a machine that does other things too


def test_a_static_cache_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="each layer of a cache with 1000000005 positions needs at least 131 TB of memory"):
        llama(num_key_value_heads=4, head_dim=2048).generate(IDS, max_new_tokens=10**9, cache_implementation="static")


# --- secrets -----------------------------------------------------------------------------------------------------------------


def holds_secret(value: Any) -> bool:
    return SECRET in repr(value) or SECRET.encode() in pickle.dumps(value)


def test_no_token_of_the_hub_stays_with_a_model(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    model = transept.AutoModelForCausalLM.from_pretrained(tmp_path, token=SECRET)
    assert not holds_secret(model)
    assert not holds_secret(copy.deepcopy(model))
    with io.BytesIO() as file:
        torch.save(model, file)
        assert SECRET.encode() not in file.getvalue()
    with pytest.raises(TranseptError) as found:
        model.stream(IDS)
    assert SECRET not in str(found.value)
    again: Any = transept.AutoModelForCausalLM.from_pretrained(tmp_path, token=False)
    assert again._source.token is False


# --- interrupted passes ------------------------------------------------------------------------------------------------------


def interrupted(model: Any, layer: int, call: Callable[[], Any], error: type[BaseException] = KeyboardInterrupt) -> None:
    """Break a call off behind the attention of one layer."""

    def stop(*_: Any) -> None:
        raise error

    handle = model.backbone.layers[layer].self_attn.register_forward_hook(stop)
    with pytest.raises(error):
        call()
    handle.remove()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_generation_goes_on_after_an_interruption(error: type[BaseException]) -> None:
    model, cache = llama(), DynamicCache()
    expected = model.generate(IDS, max_new_tokens=8)
    interrupted(model, 0, lambda: model.generate(IDS, past_key_values=cache, max_new_tokens=8), error)
    with pytest.raises(InputError, match=r"interrupted.*rollback"):
        model.generate(IDS, past_key_values=cache, max_new_tokens=8)
    assert cache.rollback() == 0
    first = model.generate(IDS, past_key_values=cache, max_new_tokens=4)
    interrupted(model, 0, lambda: model.generate(first, past_key_values=cache, max_new_tokens=4))
    assert cache.rollback() == 9
    assert torch.equal(model.generate(first, past_key_values=cache, max_new_tokens=4), expected)


TOO_MANY: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 10**7}, r"20000000 rows at once \(2 prompts, 10000000 rows each\) needs at least"),
    "more beams": ({"num_beams": 10**15}, "2000000000000000 rows at once"),
    "beams that are drawn": ({"num_beams": 10**7, "do_sample": True}, "20000000 rows"),
    "groups": ({"num_beams": 10**6, "num_beam_groups": 10**6, "diversity_penalty": 0.5}, "2000000 rows"),
    "copies": ({"num_return_sequences": 10**7, "do_sample": True}, "20000000 rows"),
    "candidates": ({"penalty_alpha": 0.5, "top_k": 10**7}, r"writing \d+ rows at once \(2 prompts"),
    "positions": ({"max_new_tokens": 10**7, "cache_implementation": "static"}, "each layer of a cache with 10000005 positions"),
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_counts_that_no_memory_is_enough_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A gigabyte is left; for candidates, which are the vocabulary at most, less than the caches of a long prompt take."""
    settings, said = TOO_MANY[name]
    ids, left = (IDS.repeat(1, 100), 5 * 10**7) if name == "candidates" else (IDS, 10**9)
    monkeypatch.setattr(memory, "memory_left", lambda device: left)
    model = llama(vocab_size=500)
    with pytest.raises(InputError, match=f"{said}.* of memory, but cpu has .*B left"):
        model.generate(ids, **{"max_new_tokens": 3} | settings)
    few = {key: 2 if value not in (True, 0.5, "static") else value for key, value in settings.items()}
    assert len(model.generate(IDS, **{"max_new_tokens": 3} | few)) >= 2


def test_copies_of_long_prompts_need_memory_for_their_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_left", lambda device: 10**8)
    with pytest.raises(InputError, match=r"writing 2000 rows at once \(2 prompts, 1000 rows each\)"):
        llama().generate(IDS.repeat(1, 100), num_beams=1000, max_new_tokens=2)
    assert len(llama().generate(IDS, num_beams=1000, num_return_sequences=9, max_new_tokens=2)) == 18
