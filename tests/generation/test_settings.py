"""Settings and callables of ``generate`` from end to end, against the reference."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transept
from tests.generation.test_generate import NEW, WRITERS, inputs, ready, written
from tests.models.families import Family
from tests.pipelines.test_text_generation import writer_at
from transept.core.model import Model
from transept.errors import ConfigError, GenerationError, InputError

pytestmark = pytest.mark.reference

NAMES = ("GPT2LMHeadModel", "LlamaForCausalLM", "BartForConditionalGeneration", "T5ForConditionalGeneration")
CASES = [case for case in WRITERS if case.values[1].__name__ in NAMES]
ONE = [case for case in CASES if case.values[1].__name__ == "LlamaForCausalLM"]
BART = [case for case in CASES if case.values[1].__name__ == "BartForConditionalGeneration"]


def allowed(row: int, ids: Tensor) -> list[int]:
    """Other tokens in each row, and by what came last."""
    return [token for token in range(5, 99) if token % 3 == (row + int(ids[-1])) % 3]


class Odd:
    """A processor without a base class: odd tokens are worth more."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + (torch.arange(scores.shape[-1]) % 2) * 2.0


def two_of(input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
    """A criterion: the last two tokens are both below 60."""
    return (input_ids[:, -2:] < 60).all(dim=1)


SETTINGS: dict[str, dict[str, Any]] = {
    "allowed": {"prefix_allowed_tokens_fn": allowed},
    "allowed beams": {"prefix_allowed_tokens_fn": allowed, "num_beams": 3},
    "bias": {"sequence_bias": [[[30, 31], 9.0], [[7], 4.0], [[7, 30], 6.0]]},
    "bias beams": {"sequence_bias": [[[30, 31], 9.0], [[7], 4.0], [[7, 30], 6.0]], "num_beams": 2},
    "custom": {"logits_processor": [Odd()], "stopping_criteria": [two_of]},
    "custom beams": {"logits_processor": [Odd()], "num_beams": 2},
    "time": {"max_time": 0.0},
    "time beams": {"max_time": 0.0, "num_beams": 2},
}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize(("family", "cls"), CASES)
def test_settings_equal_reference(family: Family, cls: type[Model], kind: str) -> None:
    from transformers import LogitsProcessorList, StoppingCriteriaList

    ours, theirs = ready(family, cls)
    given, settings = inputs(family, cls), SETTINGS[kind]
    lists = {"logits_processor": LogitsProcessorList, "stopping_criteria": StoppingCriteriaList}
    wrapped = {name: lists[name](value) if name in lists else value for name, value in settings.items()}
    found = written(ours, given, **settings)
    assert torch.equal(found, written(theirs, given, **wrapped))
    plain = written(ours, given, num_beams=settings.get("num_beams", 1))
    assert found.shape != plain.shape or not torch.equal(found, plain)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize(("family", "cls"), [case for case in CASES if case.values[0].modality != "seq2seq"])
def test_guidance_equals_reference(family: Family, cls: type[Model], use_cache: bool) -> None:
    ours, theirs = ready(family, cls)
    given, plain = inputs(family, cls), written(ours, inputs(family, cls))
    other = torch.randint(5, 99, (3, 6), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(other)
    mask[1, :2] = 0
    for settings in (
        {"guidance_scale": 2.5},
        {"guidance_scale": 1.7, "negative_prompt_ids": other},
        {"guidance_scale": 1.7, "negative_prompt_ids": other, "negative_prompt_attention_mask": mask},
    ):
        found = written(ours, given, use_cache=use_cache, **settings)
        assert torch.equal(found, written(theirs, given, use_cache=use_cache, **settings))
        assert found.shape != plain.shape or not torch.equal(found, plain)


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_guided_beams_read_their_own_text(family: Family, cls: type[Model]) -> None:
    """With the cache as without it; the reference's other prompt goes on with another beam's cache."""
    ours, theirs = ready(family, cls)
    given = inputs(family, cls, "none")
    settings = {"guidance_scale": 2.0, "negative_prompt_ids": given["input_ids"].flip(1), "num_beams": 3}
    found = written(ours, given, **settings)
    assert torch.equal(found, written(ours, given, **settings, use_cache=False))
    assert torch.equal(
        written(ours, given, **settings | {"num_beams": 1}, prompt_lookup_num_tokens=None),
        written(theirs, given, **settings | {"num_beams": 1}),
    )


def test_stop_strings_equal_reference(tmp_path: Path) -> None:
    import transformers

    path = writer_at(str(tmp_path))
    ours, theirs = transept.AutoModelForCausalLM.from_pretrained(path), transformers.AutoModelForCausalLM.from_pretrained(path)
    tokenizer, other = transept.AutoTokenizer.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path)
    given = tokenizer(["Hello there", "What is it"], return_tensors="pt", padding=True, padding_side="left")
    plain = written(ours, given, max_new_tokens=40)
    text = tokenizer.decode(plain[0, given["input_ids"].shape[1] + 4 :])
    pairs = (text[place : place + 2] for place in range(len(text) - 4))
    found = next(pair for pair in pairs if "\ufffd" not in pair)
    mine = written(ours, given, max_new_tokens=40, stop_strings=[found, "zzz"], tokenizer=tokenizer)
    assert torch.equal(mine, written(theirs, given, max_new_tokens=40, stop_strings=[found, "zzz"], tokenizer=other))
    assert mine.shape[1] < plain.shape[1] or not torch.equal(mine, plain)


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_time_ends_what_would_go_on(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = None

    def slow(input_ids: Tensor, scores: Tensor) -> Tensor:
        time.sleep(0.05)
        return scores

    found = written(ours, inputs(family, cls), max_new_tokens=50, max_time=0.3, logits_processor=[slow])
    assert 9 < found.shape[1] <= 9 + 7


@pytest.mark.parametrize(("family", "cls"), CASES)
def test_log_probabilities_are_those_of_the_scores(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    settings = {"return_dict_in_generate": True, "output_scores": True, "repetition_penalty": 1.3, "max_new_tokens": 20}
    start = 1 if ours.config.is_encoder_decoder else 9
    ours.generation_config.eos_token_id = [int(written(ours, inputs(family, cls))[0, start])]  # another row goes on
    found = written(ours, inputs(family, cls), output_logprobs=3, **settings)
    new = found.logprobs.shape[1]
    tokens, chances = found.sequences[:, -new:], torch.stack(found.scores, dim=1).log_softmax(-1)
    ends = torch.isin(tokens, torch.tensor(ours.generation_config.eos_token_id)).int()
    done = (ends.cumsum(dim=1) - ends) > 0
    assert bool(done.any())
    expected = chances.gather(2, tokens[:, :, None])[:, :, 0].masked_fill(done, 0)
    torch.testing.assert_close(found.logprobs, expected)
    values, index = chances.topk(3)
    torch.testing.assert_close(found.top_logprobs, values.masked_fill(done[:, :, None], 0))
    assert torch.equal(found.top_tokens, index.masked_fill(done[:, :, None], 0))
    only = written(ours, inputs(family, cls), output_logprobs=True, **settings)
    torch.testing.assert_close(only.logprobs, found.logprobs)
    assert only.top_logprobs is None
    for none in (False, None):
        assert written(ours, inputs(family, cls), output_logprobs=none, **settings).logprobs is None
    with pytest.raises(ConfigError, match="compute_transition_scores"):
        written(ours, inputs(family, cls), output_logprobs=1, num_beams=2)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("family", "cls"), CASES)
def test_transition_scores_equal_reference(family: Family, cls: type[Model], beams: int, normalize: bool) -> None:
    ours, theirs = ready(family, cls)
    settings = {"return_dict_in_generate": True, "output_scores": True, "num_beams": beams, "num_return_sequences": beams}
    found = written(ours, inputs(family, cls), **settings)
    given = (found.sequences, found.scores, found.beam_indices if beams > 1 else None, normalize)
    torch.testing.assert_close(ours.compute_transition_scores(*given), theirs.compute_transition_scores(*given))
    for wrong in (((), None), (found.scores * 9, None), (tuple(step[:1] for step in found.scores), None)):
        with pytest.raises(InputError):
            ours.compute_transition_scores(found.sequences, *wrong)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}, {"do_sample": True}, {"prompt_lookup_num_tokens": 2}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("family", "cls"), ONE)
def test_the_layer_that_gives_no_numbers_is_named(
    family: Family, cls: type[Model], value: float, settings: dict[str, Any]
) -> None:
    ours, _ = ready(family, cls)
    given = {name: part[:1] for name, part in inputs(family, cls, "none").items()}
    with torch.no_grad():
        ours.backbone.layers[1].mlp.up_proj.weight[3, 4] = value
    with pytest.raises(GenerationError, match=r"new token 1 of row 0 .*first layer .* model\.layers\.1\.mlp\.up_proj\. "):
        written(ours, given, **settings)
    assert not ours.backbone.layers[1].mlp.up_proj._forward_hooks
    text = written(ours, given, remove_invalid_values=True)
    assert text.shape[1] > given["input_ids"].shape[1]


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_a_processor_that_gives_no_numbers_is_told_from_the_model(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    with pytest.raises(GenerationError, match="a logits processor makes it"):
        written(ours, inputs(family, cls), logits_processor=[lambda ids, scores: scores * float("nan")])
    with pytest.raises(GenerationError, match="Every token is banned"):
        written(ours, inputs(family, cls), suppress_tokens=list(range(99)))


@pytest.mark.parametrize(("family", "cls"), BART)
def test_layers_of_encoders_are_named(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    with torch.no_grad():
        ours.backbone.encoder.layers[0].mlp.up_proj.bias[3] = float("nan")
    with pytest.raises(GenerationError, match=r"encoder\.layers\.0\.fc1"):
        written(ours, inputs(family, cls))


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_combinations_that_cannot_be_are_told(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls)
    with pytest.raises(InputError, match=r"num_beams=3.*nothing can be streamed"):
        ours.stream(**given, num_beams=3, tokenizer="none is needed to see that")
    with pytest.raises(InputError, match="`stop_strings` needs the tokenizer"):
        written(ours, given, stop_strings="end")
    bare = copy.deepcopy(ours)
    bare.generation_config.eos_token_id = bare.generation_config.pad_token_id = None
    with pytest.raises(InputError, match=r"3 rows that stop one after the other.*Set `pad_token_id`"):
        written(bare, given, stopping_criteria=[two_of])
    assert written(bare, given).shape == (3, 9 + NEW)


STRATEGIES: dict[str, dict[str, Any]] = {
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "beams": {"num_beams": 3},
    "lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("cache", ["static", "offloaded", "sliding_window", "quantized"])
@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize(("family", "cls"), ONE)
def test_every_cache_serves_every_strategy(family: Family, cls: type[Model], kind: str, cache: str) -> None:
    ours, _ = ready(family, cls)
    given = {name: part[-1:] for name, part in inputs(family, cls).items()}
    settings = STRATEGIES[kind] | {"max_new_tokens": 20}
    # Quantised caches keep the last positions as they are, and here there are no more than those.
    assert torch.equal(written(ours, given, **settings, cache_implementation=cache), written(ours, given, **settings))
