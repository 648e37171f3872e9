"""Whisper writes what the reference writes, token for token; where that mixes up rows, what it writes of the row alone."""

from __future__ import annotations

import asyncio
import copy
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

from tests.models.speech import FIRST_TIME, GENERATION, PREVIOUS, SILENT, START, TRANSCRIBE, UNTIMED, mask, pair, sounds
from transept import TextIteratorStreamer
from transept.errors import ConfigError, InputError, InputTypeError, UnsupportedError
from transept.models.whisper.alignment import warp
from transept.models.whisper.segments import split

TEXT_ONLY = {"suppress_tokens": [1, 2, START, *range(92, 101), *range(FIRST_TIME, 153)]}
TIMES = {"return_timestamps": True}
PROMPT = {"prompt_ids": torch.tensor([PREVIOUS, 5, 6, 7])}
TRIES = {"temperature": (0.0, 0.4, 0.8), "logprob_threshold": -1.5, "compression_ratio_threshold": 0.9}
SHORT: dict[str, dict[str, Any]] = {
    "found_language": {},
    "language": {"language": "English"},
    "languages": {"language": ["fr", "<|de|>"], "task": "translate"},
    "task_alone": {"task": "translate"},
    "beams": {"num_beams": 3},
    "drawn": {"temperature": 0.7},
    "prompt": PROMPT,
    "at_least": {"min_new_tokens": 12, "max_new_tokens": 14},
}
LONG: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 2},
    "fallback": TRIES,
    "beams_judged": {"num_beams": 2, "logprob_threshold": -1.2, "temperature": (0.0,)},
    "silence": {"temperature": (0.0, 0.4), "logprob_threshold": -1.0, "no_speech_threshold": 0.005},
    "conditioned": {"condition_on_prev_tokens": True},
    "prompt": PROMPT,
    "prompt_first": PROMPT | {"condition_on_prev_tokens": True},
    "prompt_everywhere": PROMPT | {"condition_on_prev_tokens": True, "prompt_condition_type": "all-segments"},
}


def both(seed: int, settings: dict[str, Any] | None = None, **inputs: Any) -> tuple[Any, Any]:
    """What both models write, drawn from the same state of the generator."""
    written = []
    for model in pair(seed, generation=json.dumps(settings or {})):
        torch.manual_seed(seed)
        written.append(model.generate(**inputs))
    return written[0], written[1]


@pytest.mark.parametrize("times", [False, True], ids=["text", "times"])
@pytest.mark.parametrize("name", SHORT)
def test_short_sounds_are_written_as_the_reference_writes_them(name: str, times: bool) -> None:
    for seed in range(2):
        ours, reference = both(seed, input_features=sounds(2), **SHORT[name] | (TIMES if times else TEXT_ONLY))
        assert torch.equal(ours, reference)


@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
def test_settings_of_speech_are_set_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for model in pair(0, generation="{}"):
        settings = copy.deepcopy(model.generation_config)
        monkeypatch.setattr(model, "generation_config", settings)
        settings.language, settings.task, settings.forced_decoder_ids = "french", "translate", None
        written.append(model.generate(input_features=sounds(2), **TEXT_ONLY))
    assert torch.equal(*written)


def test_what_old_files_force_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pair(0, generation=json.dumps({"lang_to_id": None, "task_to_id": None}))
    expected = model.generate(input_features=sounds(1), **TEXT_ONLY)
    monkeypatch.setitem(model.config.extra, "forced_decoder_ids", [[1, 9], [2, TRANSCRIBE]])
    assert not torch.equal(model.generate(input_features=sounds(1), **TEXT_ONLY), expected)
    monkeypatch.setattr(model, "generation_config", copy.deepcopy(model.generation_config))
    model.generation_config.forced_decoder_ids = None
    assert torch.equal(model.generate(input_features=sounds(1), **TEXT_ONLY), expected)


@pytest.mark.parametrize("name", LONG)
def test_long_sounds_are_written_as_the_reference_writes_them(name: str) -> None:
    for seed in range(2):
        ours, reference = both(seed, input_features=sounds(1, 290), **TIMES | LONG[name])
        assert torch.equal(ours, reference)


def test_long_sounds_in_a_batch_are_written_as_alone() -> None:
    features, lengths = sounds(3, 330), (330, 230, 120)
    for seed in range(2):
        ours, reference = both(seed, input_features=features, attention_mask=mask(*lengths), **TIMES)
        assert torch.equal(ours, reference)
        model = pair(seed, generation="{}")[0]
        for row, length in enumerate(lengths):
            alone = model.generate(features[row : row + 1, :, :length], **TIMES)[0]
            assert torch.equal(ours[row, : len(alone)], alone)


@pytest.mark.parametrize("options", [{"condition_on_prev_tokens": True}, TRIES | {"temperature": (0.0,)}, PROMPT])
def test_rows_of_a_batch_do_not_change_each_other(options: dict[str, Any]) -> None:
    features, lengths = sounds(3, 330), (330, 230, 120)
    model, reference = pair(1, generation="{}")
    together = model.generate(features, attention_mask=mask(*lengths), **TIMES | options)
    for row, length in enumerate(lengths):
        alone = reference.generate(features[row : row + 1, :, :length], **TIMES | options)[0]
        assert torch.equal(together[row, : len(alone)], alone)


def test_each_row_is_written_again_by_itself() -> None:
    """With seeds for rows, what a row draws does not depend on which others are written again."""
    features, model = sounds(3, 230), pair(1, generation="{}")[0]
    options = TIMES | TRIES | {"condition_on_prev_tokens": True}
    together = model.generate(features, attention_mask=mask(230, 230, 230), seed=[5, 6, 7], **options)
    for row in range(3):
        alone = model.generate(features[row : row + 1], seed=[5 + row], **options)[0]
        assert torch.equal(together[row, : len(alone)], alone)


@pytest.mark.parametrize("options", [{}, TIMES, {"num_beams": 3}, TIMES | PROMPT], ids=str)
def test_times_of_tokens_match_the_reference(options: dict[str, Any]) -> None:
    for seed in range(3):
        more = {} if "return_timestamps" in options else TEXT_ONLY
        asked = {"return_token_timestamps": True, "attention_mask": mask(100), "return_segments": True}
        ours, reference = both(seed, input_features=sounds(1), **asked | options | more)
        assert torch.equal(ours["sequences"], reference["sequences"])
        for one, other in zip(ours["segments"][0], reference["segments"][0], strict=True):
            assert (one["token_timestamps"] - other["token_timestamps"]).abs().max() < 0.0201
            assert float(one["start"]) == pytest.approx(float(other["start"]))
            assert float(one["end"]) == pytest.approx(float(other["end"]))
            assert one["idxs"] == other["idxs"]
            assert torch.equal(one["tokens"], other["tokens"])


def test_times_of_tokens_go_on_over_windows_and_are_those_of_the_row_alone() -> None:
    features, model = sounds(2, 250), pair(0, generation="{}")[0]
    asked = TIMES | {"return_token_timestamps": True, "return_segments": True}
    found = model.generate(features, attention_mask=mask(250, 180), **asked)
    for row, length in enumerate((250, 180)):
        alone = model.generate(features[row : row + 1, :, :length], attention_mask=mask(length), **asked)
        size = alone["sequences"].shape[1]
        assert torch.equal(found["sequences"][row, :size], alone["sequences"][0])
        torch.testing.assert_close(found["token_timestamps"][row, :size], alone["token_timestamps"][0])
        starts = torch.cat([part["token_timestamps"] for part in found["segments"][row]])
        assert starts.max() <= length / 100
    last = found["segments"][0][-1]
    assert float(last["start"]) <= float(last["token_timestamps"][0]) + 1e-6


def test_warping_finds_the_references_path() -> None:
    chance = np.random.default_rng(0)
    for rows, columns in ((1, 1), (1, 9), (7, 1), (5, 40), (30, 17), (12, 12)):
        for costs in (chance.normal(size=(rows, columns)), chance.integers(0, 3, (rows, columns)).astype(float)):
            texts, times = _dynamic_time_warping(costs)
            jumps = np.pad(np.diff(texts), (1, 0), constant_values=1).astype(bool)
            assert warp(costs).tolist() == times[jumps].tolist()


def test_a_window_that_would_not_move_is_consumed_whole() -> None:
    assert split(torch.tensor([FIRST_TIME, FIRST_TIME, 5]), FIRST_TIME, 100, 0.02)[1] == 100
    assert split(torch.tensor([], dtype=torch.long), FIRST_TIME, 60, 0.02) == ([(0, 0, 0.0, 0.6)], 60)
    model = pair(0, generation="{}")[0]
    zero: Any = lambda ids, scores: torch.full_like(scores, -1e9).index_fill(1, torch.tensor([FIRST_TIME]), 0.0)  # noqa: E731
    written = model.generate(sounds(1, 250), logits_processor=[zero], language="en", max_new_tokens=4, return_timestamps=None)
    assert written.shape[0] == 1  # and it ends


def test_silence_and_noise_end() -> None:
    model = pair(0, generation="{}")[0]
    for features in (torch.zeros(1, 8, 450), 50 * sounds(1, 450)):
        assert model.generate(features).shape[0] == 1
    quiet = model.generate(sounds(1, 250), no_speech_threshold=0.0)
    assert quiet.shape == (1, 0)


@pytest.mark.parametrize(
    "name",
    [
        "begin_suppress_tokens",
        "suppress_tokens",
        "prev_sot_token_id",
        "max_initial_timestamp_index",
        "alignment_heads",
        "task_to_id",
        "max_new_tokens",
    ],
)
def test_files_without_a_setting_write_short_texts(name: str) -> None:
    ours, reference = both(1, {name: None}, input_features=sounds(2), **({} if name == "suppress_tokens" else TEXT_ONLY))
    assert torch.equal(ours, reference)


def test_files_of_old_versions_write_short_texts() -> None:
    bare = dict.fromkeys(
        ("lang_to_id", "task_to_id", "no_timestamps_token_id", "is_multilingual", "prev_sot_token_id", "return_timestamps")
    )
    for forced in (None, [[1, 94], [2, TRANSCRIBE], [3, UNTIMED]], [[1, None], [2, TRANSCRIBE]]):
        ours, reference = both(1, bare | {"forced_decoder_ids": forced}, input_features=sounds(2), **TEXT_ONLY)
        assert torch.equal(ours, reference)
    ours, reference = both(1, {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]}, input_features=sounds(2), **TIMES)
    assert torch.equal(ours, reference)


def test_languages_are_heard_as_the_reference_hears_them() -> None:
    ours, reference = pair(0, generation="{}")
    features = sounds(4, 150)
    assert torch.equal(ours.detect_language(features), reference.detect_language(features, num_segment_frames=100))
    states = ours.get_encoder()(features[:, :, :100], return_dict=True)
    assert torch.equal(ours.detect_language(encoder_outputs=states), ours.detect_language(features))


def test_encoder_outputs_stand_in_for_a_window() -> None:
    ours = pair(0, generation="{}")[0]
    states = ours.get_encoder()(sounds(2), return_dict=True)
    assert torch.equal(ours.generate(encoder_outputs=states, **TEXT_ONLY), ours.generate(sounds(2), **TEXT_ONLY))


def test_returned_sequences_are_rows_of_their_own() -> None:
    ours = pair(0, generation="{}")[0]
    found = ours.generate(sounds(2), num_return_sequences=2, do_sample=True, seed=3, **TEXT_ONLY)
    assert found.shape[0] == 4
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found, ours.generate(sounds(2), num_return_sequences=2, do_sample=True, seed=3, **TEXT_ONLY))


def test_outputs_are_given_as_asked() -> None:
    ours, reference = both(0, input_features=sounds(2), return_dict_in_generate=True, output_scores=True, **TEXT_ONLY)
    assert torch.equal(ours.sequences, reference.sequences)
    for one, other in zip(ours.scores, reference.scores, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    found = pair(0, generation="{}")[0].generate(sounds(1, 250), return_dict_in_generate=True)
    assert set(found) == {"sequences", "segments"}


def test_a_call_changes_nothing_and_reports() -> None:
    model, seen = pair(0, generation="{}")[0], []
    before = model.generation_config.to_dict(), model.config.to_dict()
    options = TIMES | TRIES | {"language": "fr", "return_token_timestamps": True, "num_beams": 2}
    model.generate(sounds(1, 250), monitor_progress=seen.append, **options)
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before
    assert seen[0].tolist() == [[0, 250]]
    assert seen[-1].tolist() == [[250, 250]]
    pieces = [piece for _, piece in model.generate_segments(sounds(1, 250), language="fr")]
    whole = model.generate(sounds(1, 250), language="fr")[0]
    assert torch.equal(torch.cat([piece.tokens for piece in pieces]), whole)


WRONG: dict[str, tuple[type[Exception], str, dict[str, Any], dict[str, Any]]] = {
    "unknown": (InputError, "language 'klingon' is not known", {"language": "klingon"}, {}),
    "not_in_model": (InputError, r"`lang_to_id` has no '<\|it\|>'", {"language": "italian"}, {}),
    "too_many": (InputError, "3 languages for 1 sounds", {"language": ["en", "fr", "de"]}, {}),
    "english_only": (InputError, "knows English only", {"language": "en"}, {"is_multilingual": False}),
    "no_languages": (InputError, "has no languages", {"language": "en"}, {"lang_to_id": None}),
    "task": (InputError, "task 'sing' is not known", {"task": "sing"}, {}),
    "no_times": (InputError, "the model writes none", TIMES, {"no_timestamps_token_id": None}),
    "times_beyond": (InputError, "the model writes none", TIMES, {"no_timestamps_token_id": 152}),
    "heads": (InputError, "no `alignment_heads`", {"return_token_timestamps": True}, {"alignment_heads": None}),
    "wrong_heads": (
        ConfigError,
        r"`alignment_heads` has \[7, 0\]",
        {"return_token_timestamps": True},
        {"alignment_heads": [[7, 0]]},
    ),
    "id_beyond": (ConfigError, "names the token 999", {}, {"lang_to_id": {"<|en|>": 999}}),
    "id_of_text": (ConfigError, "`lang_to_id` of SpeechSettings must be", {}, {"lang_to_id": {"<|en|>": "a"}}),
    "everywhere": (InputError, "needs `condition_on_prev_tokens=True`", {"prompt_condition_type": "all-segments"}, {}),
    "condition": (ConfigError, "`prompt_condition_type`", {"prompt_condition_type": "sometimes"}, {}),
    "temperature": (InputError, "`temperature` must be a number from 0", {"temperature": -1.0}, {}),
    "prompt": (InputError, "a prompt of 63 tokens leaves no room", {"prompt_ids": torch.arange(60)}, {}),
    "assistant": (UnsupportedError, "`assistant_model`", {"assistant_model": pair}, {}),
    "unknown_option": (InputError, "takes no `tongue`", {"tongue": "en"}, {}),
    "forced": (ConfigError, "`forced_decoder_ids` has", {}, {"forced_decoder_ids": [[2, 5]], "lang_to_id": None}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    kind, message, options, settings = WRONG[name]
    model = pair(0, generation=json.dumps(settings))[0]
    if name == "assistant":
        options = {"assistant_model": model}
    with pytest.raises(kind, match=message):
        model.generate(sounds(1), **options)


def test_tokens_are_not_given_one_by_one() -> None:
    model, tokenizer = pair(0, generation="{}")[0], SimpleNamespace(decode=str)
    for call in (
        lambda: model.stream(sounds(1), tokenizer=tokenizer, language="fr"),
        lambda: asyncio.run(anext(model.astream(sounds(1), tokenizer=tokenizer))),
        lambda: model.generate(sounds(1), streamer=TextIteratorStreamer(tokenizer)),
    ):
        with pytest.raises(UnsupportedError, match=r"not supported for transcripts\. Call generate_segments\(\)"):
            call()


def test_what_is_no_sound_is_named() -> None:
    model = pair(0, generation="{}")[0]
    with pytest.raises(InputError, match="2 sounds that are longer than a window need an `attention_mask`"):
        model.generate(sounds(2, 250))
    with pytest.raises(InputError, match="is written with times"):
        model.generate(sounds(1, 250), return_timestamps=False)
    with pytest.raises(InputError, match=r"must be \(sounds, 8, frames\) of floats, but is \(1, 9, 100\)"):
        model.generate(torch.zeros(1, 9, 100))
    with pytest.raises(InputError, match=r"must be \(sounds, 8, frames\) of floats, but is \(1, 8, 0\)"):
        model.generate(torch.zeros(1, 8, 0))
    with pytest.raises(InputTypeError, match="but is NoneType"):
        model.generate()
    with pytest.raises(InputError, match=r"`attention_mask` must be \(1, 100\), but is \(1, 99\)"):
        model.generate(sounds(1), attention_mask=mask(99))
    assert GENERATION["no_timestamps_token_id"] == SILENT + 1
