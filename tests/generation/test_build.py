"""From settings to processors and criteria: the reference's, in its order."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.generation import GenerationConfig as TheirConfig
from transformers.generation import GenerationMixin, LogitsProcessorList

from transept.errors import InputError, TranseptWarning
from transept.generation.config import GenerationConfig
from transept.generation.logits_processors import FiniteLogitsCheck
from transept.generation.logits_warpers import TopKLogitsWarper
from transept.generation.run import build_processors
from transept.generation.stopping_criteria import build_criteria

PROMPT, MOST = 5, 20
IDS = torch.randint(0, 9, (4, PROMPT), generator=torch.Generator().manual_seed(0))
SCORES = torch.randn(4, 60, generator=torch.Generator().manual_seed(1)) * 3
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "everything": {
        "do_sample": True,
        "sequence_bias": [[[1], 2.0], [[2, 3], -1.0]],
        "encoder_repetition_penalty": 1.3,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "encoder_no_repeat_ngram_size": 3,
        "bad_words_ids": [[7], [8, 1]],
        "min_length": 9,
        "forced_bos_token_id": 4,
        "forced_eos_token_id": [2, 3],
        "remove_invalid_values": True,
        "exponential_decay_length_penalty": (2, 1.1),
        "suppress_tokens": [11, 12],
        "begin_suppress_tokens": [13],
        "temperature": 0.7,
        "top_h": 0.9,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "typical_p": 0.9,
        "epsilon_cutoff": 0.0005,
        "eta_cutoff": 0.0005,
        "renormalize_logits": True,
    },
    "switched off": {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "min_length": 0,
        "min_new_tokens": 0,
    },
    "sampled": {"do_sample": True},
    "greedy": {"min_new_tokens": 3, "suppress_tokens": [1]},
    "beams": {"do_sample": True, "num_beams": 2, "top_p": 0.5, "top_k": 2},
}


def theirs(settings: dict[str, Any], eos: Any, prompt: int = PROMPT, **options: Any) -> LogitsProcessorList:
    """What the reference builds for a decoder, as its `generate` prepares the settings."""
    config = TheirConfig(**settings)
    config.update(**config._get_default_generation_params(), defaults_only=True)
    config.max_length = MOST
    if config.min_new_tokens is not None:
        config.min_length = config.min_new_tokens + prompt
    config._eos_token_tensor = None if eos is None else torch.tensor(eos if isinstance(eos, list) else [eos])
    model: Any = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False))
    model._merge_criteria_processor_list = lambda made, custom: GenerationMixin._merge_criteria_processor_list(
        model, made, custom
    )
    return GenerationMixin._get_logits_processor(model, config, prompt, IDS, device="cpu", **options)


def ours(settings: dict[str, Any], eos: Any, prompt: int = PROMPT, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # settings without effect are there on purpose
        config = GenerationConfig(**settings, eos_token_id=eos)
    config.fill()
    return build_processors(config, prompt, MOST, **({"encoder_input_ids": IDS} | options))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@pytest.mark.parametrize("prompt", [1, PROMPT])
@pytest.mark.parametrize("eos", [2, [2, 3]])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_processors_in_the_same_order(name: str, eos: Any, prompt: int) -> None:
    mine = ours(SETTINGS[name], eos, prompt, attention_mask=MASK)
    expected = theirs(SETTINGS[name], eos, prompt, model_kwargs={"attention_mask": MASK})
    names = [type(processor).__name__ for processor in mine]
    wanted = [type(processor).__name__ for processor in expected]
    if "min_new_tokens" in SETTINGS[name]:  # the two say the same then, and ours keeps one
        wanted.remove("MinLengthLogitsProcessor")
    assert names == [*wanted, "FiniteLogitsCheck"]
    for length in (prompt, prompt + 1, 9, MOST - 1):
        ids = IDS.repeat(1, 4)[:, :length]
        assert torch.equal(mine(ids, SCORES), expected(ids, SCORES.clone())), length


@pytest.mark.reference
def test_copies_of_prompts_and_the_callers_own() -> None:
    settings = {"repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2, "do_sample": True, "top_k": 4}
    prompts, mask = IDS[::2], MASK[::2]

    def extra(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * 2

    mine = ours(settings, 2, encoder_input_ids=prompts, attention_mask=mask, copies=2, custom=[extra])
    wide = {"attention_mask": mask.repeat_interleave(2, dim=0)}
    expected = theirs(settings, 2, model_kwargs=wide, logits_processor=[extra])
    assert [type(p) for p in mine][2:4] == [type(extra), TopKLogitsWarper]
    expected[1] = type(expected[1])(2, prompts)
    ids = prompts.repeat_interleave(2, dim=0)
    assert torch.equal(mine(ids, SCORES), expected(ids, SCORES.clone()))


def test_no_end_means_no_length_to_keep() -> None:
    assert [type(processor) for processor in ours({"min_length": 3}, None)] == [FiniteLogitsCheck]
    assert [type(processor) for processor in ours({"min_length": 3}, 2, embedded=4)] == [FiniteLogitsCheck]


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"guidance_scale": 2.0}, {}, "`guidance_scale` needs the model"),
        ({"exponential_decay_length_penalty": (1, 1.1)}, {}, "needs `eos_token_id`"),
    ],
)
def test_what_is_missing_is_an_error(settings: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ours(settings, None, **options)


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"encoder_repetition_penalty": 2.0}, {"encoder_input_ids": None}, "`encoder_repetition_penalty` has no effect"),
        (
            {"encoder_no_repeat_ngram_size": 2},
            {"encoder_input_ids": -torch.ones(4, 3)},
            "`encoder_no_repeat_ngram_size` has no",
        ),
        ({"min_length": 30}, {}, "At least 30 tokens are asked for and at most 20"),
        ({"min_new_tokens": 16}, {}, "At least 21"),
    ],
)
def test_what_has_no_effect_is_warned_of(settings: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.warns(TranseptWarning, match=said):
        ours(settings, 2, **options)


@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size"])
def test_embeddings_have_no_ids_to_repeat(name: str) -> None:
    config = GenerationConfig(**{name: 2})
    config.fill()
    with pytest.warns(TranseptWarning, match=f"`{name}` counts new tokens only"):
        build_processors(config, 0, MOST)


def test_guidance_comes_first() -> None:
    chain = ours({"guidance_scale": 2.0, "repetition_penalty": 1.5}, 2, model=max, negative_prompt_ids=IDS)
    assert [type(processor).__name__ for processor in chain][:2] == [
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
    ]


# --- criteria --------------------------------------------------------------------------------------------------------------


class Words:
    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [0]}

    def convert_ids_to_tokens(self, ids: int) -> str:
        return ["abcdef", "st", "op", "x"][ids]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def test_criteria() -> None:
    config = GenerationConfig(eos_token_id=3, max_time=100.0, stop_strings="stop", is_assistant=True)
    config.fill()
    chain = build_criteria(config, 8, tokenizer=Words(), custom=[lambda ids, scores: ids[:, 0] == 2])
    assert [type(criterion).__name__ for criterion in chain] == [
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "StopStringCriteria",
        "EosTokenCriteria",
        "ConfidenceCriteria",
        "function",
    ]
    assert chain.max_length == 8
    sure = torch.full((4, 4), -20.0).scatter(1, torch.tensor([[2], [3], [1], [1]]), 20.0)
    ids = torch.tensor([[1, 1, 2], [1, 1, 3], [2, 1, 1], [1, 1, 1]])
    assert chain(ids, (sure,)).tolist() == [True, True, True, False]
    with pytest.raises(InputError, match=r"`stop_strings` needs the tokenizer.*tokenizer=tokenizer"):
        build_criteria(config, 8)
