"""Watermarks: the same marks as the reference's, found again by its detector and ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation import logits_process as reference

from tests.generation.test_caches import llama
from transept.errors import ConfigError, InputError
from transept.generation.config import GenerationConfig
from transept.generation.rules import SynthIDTextWatermarkingConfig, WatermarkingConfig
from transept.generation.watermark import (
    SynthIDTextWatermarkLogitsProcessor,
    WatermarkDetector,
    WatermarkDetectorOutput,
    WatermarkLogitsProcessor,
)

pytestmark = pytest.mark.reference
KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57]


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("key", [15485863, 7])
def test_favoured_tokens_are_the_references(scheme: str, width: int, key: int) -> None:
    given: dict[str, Any] = {"greenlist_ratio": 0.4, "bias": 1.5, "hashing_key": key, "seeding_scheme": scheme}
    ours = WatermarkLogitsProcessor(60, "cpu", **given, context_width=width)
    theirs = reference.WatermarkLogitsProcessor(60, "cpu", **given, context_width=width)
    for length in (1, 2, 3, 9):
        scores = torch.randn(3, 60, generator=torch.Generator().manual_seed(length))
        before = scores.clone()
        found = ours(ids(3, length), scores)
        assert torch.equal(found, theirs(ids(3, length), scores))
        assert torch.equal(scores, before)
        assert (found is scores) == (length < width)
    small = WatermarkLogitsProcessor(7, seeding_scheme="selfhash")(ids(2, 3) % 7, torch.randn(2, 7))
    assert small.shape == (2, 7)  # fewer tokens than are tried


@pytest.mark.parametrize("more", [{}, {"skip_first_ngram_calls": True}, {"debug_mode": True}, {"context_history_size": 2}])
def test_tournaments_are_the_references(more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"ngram_len": 4, "keys": KEYS, "sampling_table_size": 1000, "sampling_table_seed": 3}
    given |= {"context_history_size": 8} | more
    ours = SynthIDTextWatermarkLogitsProcessor(**given)
    theirs = reference.SynthIDTextWatermarkLogitsProcessor(**given, device=torch.device("cpu"))
    # The second half repeats the first, so that contexts come again.
    text = ids(2, 10).repeat(1, 2)
    for length in range(1, 21):
        scores = torch.randn(2, 60, generator=torch.Generator().manual_seed(length)) * 3
        assert torch.equal(ours(text[:, :length], scores), theirs(text[:, :length], scores))
    assert torch.equal(ours.compute_g_values(text), theirs.compute_g_values(text))
    assert torch.equal(ours.compute_context_repetition_mask(text), theirs.compute_context_repetition_mask(text))
    assert torch.equal(ours.compute_eos_token_mask(text, int(text[0, 4])), theirs.compute_eos_token_mask(text, int(text[0, 4])))
    assert ours.expected_mean_g_value(60) == theirs.expected_mean_g_value(60)


def test_rows_that_leave_take_their_contexts_with_them() -> None:
    whole, part = (SynthIDTextWatermarkLogitsProcessor(3, KEYS) for _ in range(2))
    text, scores = ids(3, 6), torch.randn(3, 60)
    for length in (1, 2, 3):
        whole(text[:, :length], scores)
        part(text[:, :length], scores)
    left = torch.tensor([2, 0])
    part.select(left)
    for length in (4, 5, 6):
        assert torch.equal(part(text[left, :length], scores[left]), whole(text[:, :length], scores)[left])


@pytest.mark.parametrize(
    "settings", [WatermarkingConfig(bias=4.0), SynthIDTextWatermarkingConfig(4, KEYS)], ids=["favour", "draw"]
)
@pytest.mark.parametrize("sampled", [False, True])
def test_generate_marks_as_the_reference_does(settings: Any, sampled: bool, tmp_path: Any) -> None:
    model = llama()
    model.save_pretrained(tmp_path)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    given = {"max_new_tokens": 12, "do_sample": sampled, "eos_token_id": None, "pad_token_id": 0}
    torch.manual_seed(3)
    found = model.generate(ids(2, 5), watermarking_config=settings, **given)
    torch.manual_seed(3)
    kind = getattr(transformers, type(settings).__name__)
    marking = kind(**settings.to_dict())
    assert torch.equal(found, theirs.generate(ids(2, 5), watermarking_config=marking, **given))
    torch.manual_seed(3)
    assert torch.equal(found, model.generate(ids(2, 5), watermarking_config=settings.to_dict(), **given))
    torch.manual_seed(3)
    assert not torch.equal(found, model.generate(ids(2, 5), **given))


@pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
@pytest.mark.parametrize("once", [False, True])
def test_marks_are_detected(scheme: str, once: bool) -> None:
    model, settings = llama(), WatermarkingConfig(bias=8.0, seeding_scheme=scheme)
    given: dict[str, Any] = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": True, "seed": 1}
    marked = model.generate(ids(2, 5), watermarking_config=settings, **given)[:, 5:]
    plain = model.generate(ids(2, 5), **given)[:, 5:]
    detector = WatermarkDetector(model.config, "cpu", settings, ignore_repeated_ngrams=once)
    theirs = transformers.WatermarkDetector(model.config, "cpu", settings.to_dict(), ignore_repeated_ngrams=once)
    for text in (marked, plain):
        found, expected = detector(text, return_dict=True), theirs(text, return_dict=True)
        assert isinstance(found, WatermarkDetectorOutput)
        for name, value in vars(expected).items():
            assert getattr(found, name) == pytest.approx(value, rel=1e-6)  # theirs has float32 errors in p-values
    assert detector(marked).tolist() == [True, True]
    assert detector(plain).tolist() == [False, False]
    first = torch.full((2, 1), model.config.bos_token_id)
    assert detector(torch.cat([first, marked], dim=1)).tolist() == [True, True]
    with pytest.raises(InputError, match="some texts begin with the first token"):
        detector(torch.cat([torch.tensor([[model.config.bos_token_id], [9]]), marked], dim=1))
    with pytest.raises(InputError, match="more than 1 token"):
        detector(marked[:, :1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"greenlist_ratio": 0.0}, "greenlist_ratio"),
        ({"greenlist_ratio": 1.5}, "greenlist_ratio"),
        ({"seeding_scheme": "righthash"}, "lefthash, selfhash"),
        ({"context_width": 0}, "context_width"),
        ({"bia": 2.0}, "no setting 'bia'.*bias"),
        ({"keys": [1, 2]}, "lacks 'ngram_len'"),
        ({"keys": [], "ngram_len": 5}, "one or more numbers"),
        ({"keys": ["a"], "ngram_len": 5}, "keys"),
        ({"keys": [1], "ngram_len": 5, "sampling_table_size": 2**30}, "sampling_table_size"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GenerationConfig(watermarking_config=settings)
