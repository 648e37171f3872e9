"""Presence and frequency penalties, beside their definition, in every way to write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transept
from tests.pipelines.test_text_generation import writer_at
from transept.errors import ConfigError, InputError
from transept.generation.config import GenerationConfig
from transept.generation.logits_processors import LogitsProcessor
from transept.generation.penalties import FrequencyPenaltyLogitsProcessor, PresencePenaltyLogitsProcessor

PROMPT = 3


def defined(ids: Tensor, scores: Tensor, presence: float, frequency: float) -> Tensor:
    """The penalties as OpenAI's API defines them, token by token."""
    found = scores.clone()
    for row, written in enumerate(ids[:, PROMPT:].tolist()):
        for token in range(scores.shape[1]):
            count = written.count(token)
            found[row, token] -= presence * (count > 0) + frequency * count
    return found


class Both(LogitsProcessor):
    """A caller's processor that computes the definition."""

    rows_alone = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return defined(input_ids, scores, 1.5, 0.75)


@pytest.mark.parametrize("penalty", [-2.0, -0.3, 0.0, 0.7, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [PROMPT, PROMPT + 1, 40])
def test_scores_are_those_of_the_definition(penalty: float, dtype: torch.dtype, length: int) -> None:
    pick = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 12, (3, length), generator=pick)  # some of them beyond the vocabulary of ten
    scores = torch.randn(3, 10, generator=pick).to(dtype)
    scores[0, 1] = -torch.inf
    before, close = scores.clone(), 0.02 if dtype is torch.bfloat16 else 1e-5
    present = PresencePenaltyLogitsProcessor(penalty, PROMPT)(ids, scores)
    often = FrequencyPenaltyLogitsProcessor(penalty, PROMPT)(ids, scores)
    torch.testing.assert_close(present, defined(ids, before, penalty, 0), rtol=close, atol=close)
    torch.testing.assert_close(often, defined(ids, before, 0, penalty), rtol=close, atol=close)
    assert torch.equal(scores, before)


def test_more_tokens_than_a_small_type_counts() -> None:
    ids, scores = torch.zeros(1, 1001, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bfloat16)
    assert FrequencyPenaltyLogitsProcessor(1.0, 1)(ids, scores).tolist() == [[-1000.0, 0.0]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return transept.AutoModelForCausalLM.from_pretrained(writer_at(str(tmp_path_factory.mktemp("writer"))))


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "without a cache": {"use_cache": False},
    "sampled": {"do_sample": True, "seed": 4, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "lookup": {"prompt_lookup_num_tokens": 4},
    "contrastive": {"penalty_alpha": 0.5, "top_k": 4},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_is_what_the_definition_gives(model: Any, way: str) -> None:
    ids = torch.randint(5, 90, (1 if way == "lookup" else 2, PROMPT), generator=torch.Generator().manual_seed(1))
    settings = {"max_new_tokens": 24, "eos_token_id": 2, "pad_token_id": 0, **WAYS[way]}
    plain = model.generate(ids, **settings)
    mine = model.generate(ids, presence_penalty=1.5, frequency_penalty=0.75, **settings)
    assert torch.equal(mine, model.generate(ids, logits_processor=[Both()], **settings))
    assert plain.shape != mine.shape or not torch.equal(plain, mine)


def test_a_draft_changes_nothing(model: Any) -> None:
    settings = {"max_new_tokens": 16, "presence_penalty": 1.0, "frequency_penalty": -0.5}
    ids = torch.tensor([[7, 8, 9]])
    assert torch.equal(model.generate(ids, assistant_model=model, **settings), model.generate(ids, **settings))


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_values_are_checked_and_kept(name: str) -> None:
    for wrong in (2.01, -3.0):
        with pytest.raises(ConfigError, match=rf"`{name}` .*in \[-2, 2\].*Use 0.0 for no penalty"):
            GenerationConfig(**{name: wrong})
    with pytest.raises(ConfigError, match=name):
        GenerationConfig(**{name: "much"})
    assert GenerationConfig.from_dict(GenerationConfig(**{name: -1.5}).to_dict()).to_dict()[name] == -1.5
    kind = PresencePenaltyLogitsProcessor if name == "presence_penalty" else FrequencyPenaltyLogitsProcessor
    with pytest.raises(InputError, match=rf"`{name}` must be a number in \[-2, 2\]"):
        kind(5.0)
    with pytest.raises(InputError, match="`prompt_length` must be a whole number at least 0"):
        kind(1.0, -1)
