"""What prompts have in common is read once, and answers are those of each prompt alone, token for token."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from transept.layers.caches.cache import DynamicCache
from transept.pipelines.tasks.generation import MIN_PREFIX, common_prefix, group_by_prefix

from .writers import Watch, model, pipe

SYSTEM = "You are a helpful assistant who answers in few words. "
QUESTIONS = ["Who?", "Where is the river that flows through Berlin?", "", "Why not?", "Who wrote it, and when was that?"]
PROMPTS = [SYSTEM + question for question in QUESTIONS]
GREEDY = {"max_new_tokens": 8, "do_sample": False, "return_tensors": True, "eos_token_id": None}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 3, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "chunks": {"prefill_chunk_size": 5},
}


@pytest.mark.parametrize(
    "name",
    [
        *(f"{family}ForCausalLM" for family in ("Llama", "Mistral", "Gemma2", "GPTNeoX", "OPT", "Bloom", "Mamba")),
        "GPT2LMHeadModel",
    ],
)
def test_prompts_that_begin_alike_are_answered_like_each_alone(name: str) -> None:
    """Scores are far apart, so that the rounding of other shapes, some 1e-6, changes no token."""
    ask = pipe("text-generation", name)
    shared = [rows[0].group for rows in ask.prepare(PROMPTS, ask.options)]
    assert all(one is not None for one in shared) == (name != "MambaForCausalLM")
    alone = [ask(prompt, **GREEDY) for prompt in PROMPTS]
    assert len({str(one) for one in alone}) == len(PROMPTS)
    assert ask(PROMPTS, **GREEDY) == alone


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_shares(way: str) -> None:
    ask = pipe("text-generation", "LlamaForCausalLM")
    settings = GREEDY | WAYS[way]
    watch = Watch(ask.model.backbone)
    together = ask(PROMPTS, **settings)
    assert watch.shapes[0] == (1, len(SYSTEM) - 1)  # one prompt is no more than that, and needs a token to go on from
    assert together == [ask(prompt, **settings) for prompt in PROMPTS]


def test_what_is_shared_is_read_once_for_all_batches() -> None:
    """32 prompts in 8 batches: one pass over the beginning, and then only what differs."""
    prompts = [f"{SYSTEM}{number:04}" for number in range(32)]
    ask = pipe("text-generation", "LlamaForCausalLM")
    watch = Watch(ask.model.backbone)
    together = ask(prompts, **GREEDY | {"max_new_tokens": 1}, batch_size=4)
    same = len(SYSTEM) + 2
    assert watch.shapes == [(1, same), *[(4, 2)] * 8]
    read, watch.shapes = watch.positions, []
    assert together == [ask(prompt, **GREEDY | {"max_new_tokens": 1}) for prompt in prompts]
    assert (read, watch.positions) == (same + 32 * 2, 32 * (same + 2))


def test_what_was_read_is_kept_until_the_last_prompt_and_no_longer() -> None:
    ask = pipe("text-generation", "LlamaForCausalLM")
    beginning = next(rows[0].group for rows in ask.prepare(PROMPTS, ask.options))
    assert (beginning.left, beginning.cache) == (5, None)
    cache = beginning.read(ask.model, 4)
    assert beginning.cache is cache is beginning.read(ask.model, 1)
    assert beginning.cache is None


def test_a_batch_is_as_large_as_what_is_left_to_read() -> None:
    ask = pipe("text-generation", "LlamaForCausalLM", budget=100)
    watch = Watch(ask.model.backbone)
    ask([f"{SYSTEM}{number:04}" for number in range(32)], **GREEDY | {"max_new_tokens": 1})
    assert watch.shapes == [(1, len(SYSTEM) + 2), (32, 2)]


@torch.no_grad()
def test_a_cache_of_one_row_serves_a_batch_and_stays_as_it_is() -> None:
    writer = model("LlamaForCausalLM")
    ids = torch.randint(4, 200, (3, 20))
    ids[:, :12] = ids[0, :12]
    cache = DynamicCache()
    writer(ids[:1, :12], past_key_values=cache)
    watch = Watch(writer.backbone)
    assert torch.equal(writer.generate(ids, past_key_values=cache, max_new_tokens=5), writer.generate(ids, max_new_tokens=5))
    assert watch.shapes[0] == (3, 8)
    assert (cache.batch_size, cache.get_seq_length()) == (1, 12)
    for gap in (4, 15):  # a shorter row has less of the cache, or nothing of it
        padded = torch.cat([torch.ones(1, gap, dtype=torch.long), ids[:1, : 20 - gap]], dim=1)
        both, mask = torch.cat([ids[:1], padded]), torch.ones(2, 20, dtype=torch.long)
        mask[1, :gap] = 0
        given: dict[str, Any] = {"inputs": both, "attention_mask": mask, "max_new_tokens": 5}
        assert torch.equal(writer.generate(**given, past_key_values=cache), writer.generate(**given))


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64}, {}),
        ({}, {"cache_implementation": "sliding_window"}),
        ({}, {"use_cache": False}),
    ],
)
@pytest.mark.filterwarnings("ignore:The sequence has")
def test_what_cannot_be_shared_is_read_plainly(settings: dict[str, Any], options: dict[str, Any]) -> None:
    ask = pipe("text-generation", "LlamaForCausalLM", settings)
    watch = Watch(ask.model.backbone)
    ask(PROMPTS, **GREEDY, **options)
    assert watch.shapes[0] == (5, max(map(len, PROMPTS)))


def test_prompts_without_much_in_common_stay_as_they_are() -> None:
    ask = pipe("text-generation", "LlamaForCausalLM")
    prompts = [SYSTEM[: MIN_PREFIX - 1] + end for end in ("a" * 9, "b" * 9)]
    assert [rows[0].group for rows in ask.prepare([*prompts, "x"], ask.options)] == [None] * 3


def test_groups_have_in_common_what_they_say() -> None:
    draw = random.Random(0)
    starts = [[draw.randrange(9) for _ in range(draw.randrange(2 * MIN_PREFIX))] for _ in range(6)]
    prompts = [[*draw.choice(starts), *(draw.randrange(9) for _ in range(draw.randrange(MIN_PREFIX)))] for _ in range(200)]
    groups = group_by_prefix(prompts)
    members = [index for group in groups for index in group]
    assert len(set(members)) == len(members) > 50
    for group in groups:
        same = min(common_prefix(prompts[group[0]], prompts[index]) for index in group)
        assert same >= MIN_PREFIX
        assert same == common_prefix(prompts[group[0]], prompts[group[-1]])
    assert group_by_prefix([]) == group_by_prefix([[1] * 99]) == []
    assert sorted(group_by_prefix([[1] * 99, [1] * 99])[0]) == [0, 1]
    one, other = [1] * 80, [1] * MIN_PREFIX + [2] * 80
    assert group_by_prefix([[*one, 3], [*other, 3], [*one, 4], [*other, 4]]) == [[0, 2], [1, 3]]
