"""Reformer's own: gradients in training, reversible layers and their memory, hashing, the cache, and generation.

In float64 gradients differ by rounding alone, which reconstruction of the activations multiplies: 1e-8 of their norm.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.errors import ConfigError, InputError, InputTypeError
from transept.layers.caches.cache import DynamicCache
from transept.layers.caches.static import StaticCache
from transept.models import reformer
from transept.models.reformer import (
    AxialPositions,
    ReformerConfig,
    ReformerForMaskedLM,
    ReformerForQuestionAnswering,
    ReformerForSequenceClassification,
    ReformerModel,
    ReformerModelWithLMHead,
)
from transept.models.reformer.attention import HashedKeyValues

from .families import FAMILIES
from .harness import SINGLE, check_config_file, compare, error, gradients, labels, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "reformer")
STILL = dict.fromkeys(("hidden_dropout_prob", "local_attention_probs_dropout_prob"), 0.0)
LONG = {"axial_pos_shape": [8, 16], "max_position_embeddings": 128}
EXACT = 1e-8


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(5, 99, (rows, length), generator=torch.Generator().manual_seed(length))


def random_model(cls: Any = ReformerModel, **settings: Any) -> Any:
    torch.manual_seed(0)
    return cls(ReformerConfig(**FAMILY.tiny | LONG | settings)).eval()


@pytest.mark.reference
@pytest.mark.parametrize("variant", ["tiny", *FAMILY.variants])
@pytest.mark.parametrize(
    "cls", [ReformerModelWithLMHead, ReformerForMaskedLM, ReformerForSequenceClassification, ReformerForQuestionAnswering]
)
def test_gradients_equal_reference_in_training(cls: Any, variant: str) -> None:
    # What the reference trains on fills the grid, in whole chunks.
    more = FAMILY.variants.get(variant, {}) | STILL | {"axial_pos_shape": [4, 12]}
    ours, theirs = (model.double().train() for model in pair(FAMILY, cls, **more))
    inputs = {"input_ids": ids(2, 48), "attention_mask": (torch.arange(48) < torch.tensor([[48], [31]])).long()}
    inputs |= labels(FAMILY, cls, inputs)
    if ours.config.is_decoder:
        inputs["use_cache"] = False  # type: ignore[assignment]
    mine, other = ours(**inputs), theirs(**inputs)
    assert error(mine.loss, other.loss) <= 1e-6  # the reference computes some losses in float32
    found = gradients(ours, mine.logits.square().mean() if "logits" in mine else mine.start_logits.square().mean())
    expected = gradients(theirs, other.logits.square().mean() if "logits" in other else other.start_logits.square().mean())
    table = ours.checkpoint_names().keys
    assert len(found) == len(expected)
    for name, gradient in found.items():
        reference = expected[table.recipe(name).stored]
        assert float((gradient - reference).norm()) <= EXACT * max(float(reference.norm()), 1e-3), name


def plainly(layers: Any, x1: Tensor, x2: Tensor, ctx: Any) -> tuple[Tensor, Tensor]:
    for index, layer in enumerate(layers):
        ctx.layer = index
        x1, x2 = layer(x1, x2, ctx)
    return x1, x2


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("seed", [3, None])
def test_going_back_equals_keeping_everything(monkeypatch: pytest.MonkeyPatch, seed: int | None, training: bool) -> None:
    drop = dict.fromkeys((*STILL, "lsh_attention_probs_dropout_prob"), 0.3)
    model = random_model(hash_seed=seed, attn_layers=["lsh", "local"] * 3, **drop).double().train(training)
    model.layers[1].mlp.requires_grad_(False)
    inputs = {"input_ids": ids(2, 29)}

    def run() -> tuple[Tensor, dict[str, Tensor], Tensor]:
        torch.manual_seed(5)
        out = model(**inputs).last_hidden_state
        found = gradients(model, out.square().mean())
        return out, found, torch.rand(3)

    out, found, after = run()
    monkeypatch.setattr(reformer, "through", plainly)
    other, expected, kept = run()
    assert torch.equal(out, other)
    assert torch.equal(after, kept), "going back draws no random numbers"
    assert found.keys() == expected.keys()
    assert not any(name.startswith("layers.1.mlp.") for name in found)
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) <= EXACT * float(gradient.norm()), name


def test_gradients_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(hash_seed=1)

    def run() -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids(2, 12)).last_hidden_state.square().mean()
        return gradients(model, loss)

    found = run()
    monkeypatch.setattr(reformer, "through", plainly)
    for name, gradient in run().items():  # what is recomputed of rounded values is rounded once more
        assert float((found[name] - gradient).norm()) <= 0.1 * float(gradient.norm()), name


def test_nobody_differentiates_twice() -> None:
    model = random_model()
    embeds = torch.randn(1, 12, 32, requires_grad=True)
    out = model(inputs_embeds=embeds).last_hidden_state.square().sum()
    (gradient,) = torch.autograd.grad(out, embeds, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_weights_stay_as_they_were_until_the_way_back() -> None:
    model = random_model()
    loss = model(ids(1, 12)).last_hidden_state.sum()
    with torch.no_grad():
        model.layers[0].mlp.up_proj.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def peak(depth: int) -> int:
    """Bytes at most that a forward and a backward pass add to those of the model, whose weights get no gradients."""
    torch.manual_seed(0)
    config = ReformerConfig(**FAMILY.tiny | LONG | {"attn_layers": ["local"] * depth})
    model = ReformerModel(config).train().requires_grad_(False)
    embeds = torch.randn(2, 120, 32, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model(inputs_embeds=embeds).last_hidden_state.sum().backward()
    assert profile.profiler is not None
    changes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return int(torch.tensor(changes).cumsum(0).max())


def test_memory_does_not_grow_with_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    shallow, deep = peak(2), peak(12)
    # The state of the random numbers, 5 kB, is kept before each function.
    assert deep - shallow <= 10 * 2 * 6000
    monkeypatch.setattr(reformer, "through", plainly)
    assert peak(12) - peak(2) > 10 * (deep - shallow)


def test_hashing_is_repeatable_and_leaves_the_global_numbers_alone() -> None:
    seeded, free = random_model(hash_seed=3), random_model(hash_seed=None)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = seeded(ids(1, 40)).last_hidden_state
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, seeded(ids(1, 40)).last_hidden_state)
    assert not torch.equal(free(ids(1, 40)).last_hidden_state, free(ids(1, 40)).last_hidden_state)


@pytest.mark.reference
@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_of_one_call(rounds: int) -> None:
    ours, theirs = pair(FAMILY, ReformerForMaskedLM)
    with torch.no_grad():
        compare(ours(ids(2, 24), num_hashes=rounds), theirs(ids(2, 24), num_hashes=rounds), SINGLE)


@pytest.mark.reference
def test_buckets_fit_each_sequence() -> None:
    # The reference keeps the number that its first sequence asks for: each of these needs one of its own.
    for length in (12, 24, 50, 60):
        ours, theirs = pair(FAMILY, ReformerModel, num_buckets=None)
        ours(ids(1, 64))
        with torch.no_grad():
            assert error(ours(ids(1, length))[0], theirs(ids(1, length))[0]) <= SINGLE


@pytest.mark.reference
def test_default_sizes_equal_reference() -> None:
    settings = {"hash_seed": 0, "num_buckets": None, "is_decoder": True, "use_cache": True, "vocab_size": 99}
    settings |= {
        name: value for name, value in ReformerConfig().to_dict().items() if name in FAMILY.tiny and name not in settings
    }
    ours, theirs = pair(FAMILY, ReformerModelWithLMHead, **settings | {"attn_layers": ["local", "lsh"] * 3})
    with torch.no_grad():
        compare(ours(ids(1, 400)), theirs(ids(1, 400)), SINGLE)


# --- the cache -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 2])  # with as many as there are chunks, they go round and meet themselves
@pytest.mark.parametrize("prompt", [2, 4, 9, 16])
def test_local_attention_from_the_cache_equals_the_whole(prompt: int, before: int) -> None:
    model = random_model(attn_layers=["local"] * 2, local_num_chunks_before=before, is_decoder=True, use_cache=True)
    mask = (torch.arange(25) >= torch.tensor([[0], [1]])).long()
    mask[:, -1] = 0 if prompt == 9 else 1
    with torch.no_grad():
        whole = model(ids(2, 25), mask, use_cache=False).last_hidden_state
        parts, cache = [], None
        for start, end in ((0, prompt), (prompt, prompt + 1), (prompt + 1, 25)):
            out = model(ids(2, 25)[:, start:end], mask[:, :end], past_buckets_states=cache)
            cache, parts = out.past_buckets_states, [*parts, out.last_hidden_state]
    real = mask.bool()
    assert error(torch.cat(parts, dim=1)[real], whole[real]) <= SINGLE


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("prompt", [2, 6, 15])
def test_hashed_attention_from_the_cache(prompt: int, seed: int | None) -> None:
    """Rows do not see each other, several positions are as many steps, and what is forgotten can be read again."""
    model = random_model(is_decoder=True, use_cache=True, hash_seed=seed, num_buckets=None, num_hashes=3)
    x = ids(3, 24)
    with torch.no_grad():
        cache = model(x[:, :prompt]).past_key_values
        assert all(isinstance(layer, HashedKeyValues) for layer in cache.layers)
        copies = [copy.deepcopy(cache) for _ in range(3)]
        torch.manual_seed(0)
        several = model(x[:, prompt:], past_key_values=cache).last_hidden_state
        torch.manual_seed(0)
        single = [model(x[:, [t]], past_key_values=copies[0]).last_hidden_state for t in range(prompt, 24)]
        assert error(several, torch.cat(single, dim=1)) <= SINGLE
        if prompt > 6 or seed is not None:
            copies[1].reorder_cache(torch.tensor([2, 0]))
            assert error(model(x[[2, 0], prompt:], past_key_values=copies[1])[0], several[[2, 0]]) <= SINGLE
        twin = pytree.tree_unflatten(*reversed(pytree.tree_flatten(copies[2])))
        if prompt > 6:
            assert error(model(x[:, prompt:], past_key_values=twin)[0], several) <= SINGLE
            cache.crop(prompt)
            assert cache.get_seq_length() == prompt
            assert error(model(x[:, prompt:], past_key_values=cache)[0], several) <= SINGLE
        cache.reset()
        assert cache.get_seq_length() == 0
        model(x, past_key_values=cache)


@pytest.mark.reference
@pytest.mark.parametrize(
    "more",
    [
        {"attn_layers": ["local", "local"]},
        {"attn_layers": ["lsh", "local"], "num_hashes": 1},
        {"attn_layers": ["lsh", "lsh"], "num_hashes": 3, "num_buckets": [2, 4]},
    ],
    ids=["local", "once", "often"],
)
@pytest.mark.parametrize("use_cache", [True, False])
def test_writes_what_the_reference_writes(more: dict[str, Any], use_cache: bool) -> None:
    """A single row where it hashes from a cache: the reference lets all rows read the states of the first."""
    ours, theirs = pair(FAMILY, ReformerModelWithLMHead, **LONG | more)
    rows = 2 if "lsh" not in more["attn_layers"] or not use_cache else 1
    given = {"max_new_tokens": 20, "do_sample": False, "use_cache": use_cache, "eos_token_id": None, "pad_token_id": 0}
    given["suppress_tokens"] = [0]  # ours takes an id of padding that was written for padding
    for length in (1, 6, 12, 24):  # for others see the next test
        prompt = ids(rows, length)
        mask = torch.ones_like(prompt)
        written = theirs.generate(prompt, attention_mask=mask, **given)
        assert torch.equal(ours.generate(prompt, attention_mask=mask, **given), written)


@pytest.mark.reference
def test_padded_prompts_shift_no_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference writes when it is told what it guesses wrong: whether padding had a bucket of its own."""
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    original, padded = LSHSelfAttention._hash_vectors, {}

    def told(self: Any, vectors: Tensor, rounds: int, mask: Tensor | None, increase_num_buckets: Any = None) -> Tensor:
        if increase_num_buckets is None:
            padded[self] = mask is not None
        return original(self, vectors, rounds, mask, increase_num_buckets=padded[self])

    monkeypatch.setattr(LSHSelfAttention, "_hash_vectors", told)
    ours, theirs = pair(FAMILY, ReformerModelWithLMHead, **LONG)
    given = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, "suppress_tokens": [0]}
    for length in (5, 9, 20):
        prompt = ids(1, length)
        mask = torch.ones_like(prompt)
        written = theirs.generate(prompt, attention_mask=mask, **given)
        assert torch.equal(ours.generate(prompt, attention_mask=mask, **given), written)


def test_strategies_write_from_the_cache() -> None:
    model = random_model(ReformerModelWithLMHead, is_decoder=True, use_cache=True, attn_layers=["local"] * 2)
    for more in ({"num_beams": 3}, {"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 5}):
        given = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        plain = given | ({"num_beams": 3} if "num_beams" in more else {})
        mask = (torch.arange(14) >= torch.tensor([[0], [3]])).long()[: 1 if "prompt_lookup_num_tokens" in more else 2]
        prompt = ids(2, 14)[: len(mask)] * mask
        found = model.generate(prompt, attention_mask=mask, **given | more)
        assert torch.equal(found, model.generate(prompt, attention_mask=mask, use_cache=False, **plain))


def test_a_seed_is_not_used_up_by_writing() -> None:
    model = random_model(ReformerModelWithLMHead, is_decoder=True, use_cache=True)
    for more in ({}, {"num_hashes": 1}):
        found = model.generate(ids(2, 12), max_new_tokens=9, do_sample=True, seed=4, eos_token_id=None, pad_token_id=0, **more)
        again = model.generate(ids(2, 12), max_new_tokens=9, do_sample=True, seed=4, eos_token_id=None, pad_token_id=0, **more)
        assert torch.equal(found, again)


# --- settings and files --------------------------------------------------------------------------------------------------

PUBLISHED = {
    "architectures": ["ReformerModelWithLMHead"],
    "attention_head_size": 64,
    "attention_probs_dropout_prob": 0.1,
    "attn_layers": ["local", "lsh", "local", "lsh", "local", "lsh"],
    "axial_norm_std": 1.0,
    "axial_pos_embds": True,
    "axial_pos_embds_dim": [64, 192],
    "axial_pos_shape": [512, 1024],
    "chunk_size_feed_forward": 0,
    "chunk_size_lm_head": 0,
    "eos_token_id": 2,
    "feed_forward_size": 512,
    "hash_seed": None,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.05,
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "is_decoder": True,
    "layer_norm_eps": 1e-12,
    "local_attention_probs_dropout_prob": 0.05,
    "local_attn_chunk_length": 64,
    "local_num_chunks_after": 0,
    "local_num_chunks_before": 1,
    "lsh_attention_probs_dropout_prob": 0.0,
    "lsh_attn_chunk_length": 64,
    "lsh_num_chunks_after": 0,
    "lsh_num_chunks_before": 1,
    "max_position_embeddings": 524288,
    "model_type": "reformer",
    "num_attention_heads": 2,
    "num_buckets": [64, 128],
    "num_chunks_after": 0,
    "num_chunks_before": 1,
    "num_hashes": 1,
    "num_hidden_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 100}},
    "vocab_size": 320,
}


@pytest.mark.reference
def test_reads_published_settings() -> None:
    check_config_file(ReformerConfig, PUBLISHED)
    check_config_file(ReformerConfig, FAMILY.tiny | {"attn_layers": ["lsh"], "num_buckets": None})


def test_ignores_what_older_files_hold(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = random_model(ReformerForMaskedLM)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for kind, name in ((0, "mask_value_float32"), (1, "self_mask_value_float16")):
        tensors[f"reformer.encoder.layers.{kind}.attention.self_attention.{name}"] = torch.tensor(-1e3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = ReformerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids(1, 12)).logits, model(ids(1, 12)).logits)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"attn_layers": ["lsh", "global"]}, "attn_layers"),
        ({"attn_layers": []}, "at least one layer"),
        ({"num_buckets": 5}, "even"),
        ({"num_buckets": [4, 0]}, "even"),
        ({"num_buckets": [2**13, 2**13]}, "16777216"),
        ({"num_hashes": 0}, "num_hashes"),
        ({"lsh_attn_chunk_length": 0}, "lsh_attn_chunk_length"),
        ({"axial_pos_shape": [64]}, "rows"),
        ({"axial_pos_shape": [2**40, 1]}, "cells"),
        ({"axial_pos_shape": [10**30, 1]}, "64 bits"),
        ({"axial_pos_embds_dim": [64, 64]}, "add up"),
        ({"axial_pos_embds_dim": [-64, 320]}, "add up"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ReformerConfig(**settings)


def test_wrong_uses() -> None:
    decoder = ReformerConfig(**FAMILY.tiny | {"is_decoder": True, "use_cache": True})
    with pytest.raises(ConfigError, match="is_decoder"):
        ReformerForMaskedLM(decoder)
    with pytest.raises(ConfigError, match="lsh_num_chunks_after"):
        ReformerModelWithLMHead(decoder.with_settings(lsh_num_chunks_after=1))
    model = ReformerModel(decoder).eval()
    with pytest.raises(InputError, match="num_hashes"):
        model(ids(1, 12), num_hashes=0)
    cache = DynamicCache()
    assert model(ids(1, 12), past_key_values=cache).past_key_values is cache
    with pytest.raises(InputTypeError, match="keeps keys and values with buckets, which a StaticCache cannot"):
        model(ids(1, 12), past_key_values=StaticCache(max_cache_len=20))
    with pytest.raises(InputError, match="2 times, and not 1"):
        model(ids(1, 1), past_key_values=model(ids(1, 12)).past_key_values, num_hashes=1)
    with pytest.raises(InputError, match="pairs"):
        model(ids(1, 12), torch.ones(1, 1, 12, 12))
    with pytest.raises(InputError, match="65 positions"):
        model(ids(1, 65))
    with pytest.raises(InputError, match="positions 0 to 63"):
        model(ids(1, 3), position_ids=torch.tensor([[0, 1, 64]]))


def test_positions_end_with_the_grid() -> None:
    """A sequence that fills it is padded to whole chunks behind it, and positions that are given count."""
    model = random_model(axial_pos_shape=[3, 5])
    assert model.max_positions == 15
    with torch.no_grad():
        out = model(ids(1, 15)).last_hidden_state
        assert torch.isfinite(out).all()
        assert error(model(ids(1, 15), position_ids=torch.arange(15)[None]).last_hidden_state, out) <= SINGLE
        assert error(model(ids(1, 15), position_ids=torch.arange(15)[None].flip(1)).last_hidden_state, out) > 0.01


def test_dropout_takes_columns_of_the_grid() -> None:
    torch.manual_seed(0)
    grid = AxialPositions([3, 40], [2, 4], std=1.0, dropout=0.5)
    grid.reset_parameters()
    places = torch.arange(120).expand(2, -1)
    whole, some = grid.eval()(places), grid.train()(places)
    gone = (some == 0).all(dim=-1).unflatten(1, (3, 40))
    assert torch.equal(gone[:, 0], gone[:, 2])
    assert 0.2 < float(gone.float().mean()) < 0.8
    assert not torch.equal(gone[0], gone[1])
    kept = ~gone.flatten(1)
    assert torch.allclose(some[kept], 2 * whole[kept])


def test_the_vocabulary_grows() -> None:
    model = random_model(ReformerForMaskedLM)
    model.resize_token_embeddings(103)
    assert model.lm_head.bias.shape == (103,)
    assert model(ids(1, 12)).logits.shape == (1, 12, 103)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = random_model(is_decoder=True)
    mask = (torch.arange(24) < torch.tensor([[24], [13]])).long()
    with torch.no_grad():
        out = model.to(dtype)(ids(2, 24), mask).last_hidden_state
    assert out.dtype is dtype
    assert torch.isfinite(out).all()
