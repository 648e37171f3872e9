"""Settings of generation: files of all versions, what is a setting, ranges and contradictions, strategies."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.generation import configuration_utils as reference

from transept.errors import ConfigError, FileError, FormatError, InputTypeError, TranseptWarning, UnsupportedError
from transept.generation.config import DEFAULTS, GenerationConfig
from transept.generation.prompt import end_tokens
from transept.generation.rules import NOT_SETTINGS, UNSUPPORTED, WatermarkingConfig
from transept.models.llama import LlamaConfig, LlamaForCausalLM

OWN = ("output_logprobs", "presence_penalty", "frequency_penalty")  # which the reference lacks
NAMES = [name for name in GenerationConfig().to_dict() if name not in OWN]
# One value of each setting that is neither its default nor refused beside the others.
WATERMARK = WatermarkingConfig(bias=1.5).to_dict()
VALUES: dict[str, Any] = {
    "max_length": 40,
    "max_new_tokens": 30,
    "min_length": 3,
    "min_new_tokens": 2,
    "early_stopping": "never",
    "max_time": 2.5,
    "stop_strings": ["a", "b"],
    "do_sample": True,
    "num_beams": 4,
    "num_beam_groups": 1,
    "diversity_penalty": 0.5,
    "num_return_sequences": 2,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "top_h": 0.4,
    "typical_p": 0.8,
    "epsilon_cutoff": 0.001,
    "eta_cutoff": 0.002,
    "repetition_penalty": 1.2,
    "encoder_repetition_penalty": 1.1,
    "length_penalty": 2.0,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 2,
    "bad_words_ids": [[1], [2, 3]],
    "sequence_bias": [[[1, 2], 3.0]],
    "suppress_tokens": [4],
    "begin_suppress_tokens": [5, 6],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": [8, 9],
    "exponential_decay_length_penalty": [15, 1.6],
    "guidance_scale": 1.5,
    "renormalize_logits": True,
    "remove_invalid_values": True,
    "watermarking_config": WATERMARK,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "decoder_start_token_id": 4,
    "is_assistant": False,
    "num_assistant_tokens": 6,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.3,
    "assistant_lookbehind": 5,
    "target_lookbehind": 6,
    "assistant_ensemble_weight": 0.5,
    "max_matching_ngram_size": 3,
    "use_cache": True,
    "cache_implementation": "static",
    "cache_config": {"max_batch": 2},
    "max_cache_len": 64,
    "prefill_chunk_size": 8,
    "disable_compile": True,
    "return_dict_in_generate": True,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_scores": True,
    "output_logits": True,
}


@pytest.fixture(autouse=True)
def _quiet_reference() -> Any:
    """The reference tells of odd settings through its logger."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    yield
    transformers.logging.set_verbosity(level)


def theirs_of(config: Any) -> dict[str, Any]:
    """What the reference's object says, without what describes the file."""
    found = {name: value for name, value in config.to_diff_dict().items() if not name.startswith("_")}
    if "watermarking_config" in found:
        found["watermarking_config"] = found["watermarking_config"].to_dict()
    found.pop("transformers_version", None)
    return found


# --- names and files -------------------------------------------------------------------------------------------------------


@pytest.mark.reference
def test_every_setting_of_the_reference_is_here_or_refused() -> None:
    known = {name for name in reference.GenerationConfig().to_dict() if not name.startswith("_")} - {"transformers_version"}
    assert known == set(NAMES) | set(UNSUPPORTED)
    defaults = reference.GenerationConfig._get_default_generation_params()
    assert {name: value for name, value in defaults.items() if value is not None} == DEFAULTS | {
        "max_length": 20,
        "min_length": 0,
    }


@pytest.mark.reference
def test_files_go_both_ways_between_the_libraries(tmp_path: Path) -> None:
    ours, theirs = GenerationConfig(**VALUES), reference.GenerationConfig(**VALUES)
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    read = reference.GenerationConfig.from_pretrained(tmp_path / "ours")
    assert theirs_of(read) == theirs_of(theirs) == ours.to_diff_dict()
    found = GenerationConfig.from_pretrained(tmp_path / "theirs")
    assert found == ours
    assert found.extra == {"transformers_version": transformers.__version__}
    assert set(VALUES) == set(NAMES) - {"penalty_alpha", "prompt_lookup_num_tokens", "compile_config"}


def write(directory: Path, document: Any, name: str = "generation_config.json") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return directory


# As version 4 wrote all of them, defaults too, and what families add.
OLD = {
    "_from_model_config": True,
    "_commit_hash": "abc",
    "transformers_version": "4.38.0",
    "max_length": 20,
    "do_sample": False,
    "temperature": 0.6,
    "top_k": 50,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "penalty_alpha": None,
    "low_memory": None,
    "constraints": None,
    "force_words_ids": None,
    "dola_layers": None,
    "watermarking_config": None,
    "generation_kwargs": {},
    "return_legacy_cache": True,
    "cache_implementation": "hybrid",
    "exponential_decay_length_penalty": None,
    "lang_to_id": {"<|en|>": 50259},
    "eos_token_id": [128001, 128009],
}


@pytest.mark.reference
def test_older_files_are_read_without_a_word_and_kept(tmp_path: Path) -> None:
    directory = write(tmp_path / "old", OLD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = GenerationConfig.from_pretrained(directory)
    theirs = reference.GenerationConfig.from_pretrained(directory)
    assert {name: getattr(config, name) for name in NAMES} == {name: getattr(theirs, name) for name in NAMES}
    assert config.lang_to_id == {"<|en|>": 50259}
    assert config.low_memory is None
    config.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again/generation_config.json").read_text())
    kept = {"lang_to_id", "return_legacy_cache", "transformers_version", "generation_kwargs", "eos_token_id", "temperature"}
    assert {name: again[name] for name in kept} == {name: OLD[name] for name in kept}
    assert not [name for name in again if name.startswith("_")]
    assert GenerationConfig.from_pretrained(tmp_path / "again") == config
    config.fill()
    assert config.cache_implementation is None


def test_files_and_overrides(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", {"top_k": 5, "other": 1})
    write(directory, {"top_k": 6}, "mine.json")
    assert GenerationConfig.from_pretrained(directory, "mine.json").top_k == 6
    assert GenerationConfig.from_pretrained(directory / "mine.json").top_k == 6
    changed = GenerationConfig.from_pretrained(directory, do_sample=True, top_k=7, other=2)
    assert (changed.top_k, changed.do_sample, changed.other) == (7, True, 2)
    config, unused = GenerationConfig.from_pretrained(directory, do_sample=True, foo=1, return_unused_kwargs=True)
    assert unused == {"foo": 1}
    assert config.do_sample
    with pytest.raises(ConfigError, match="no setting 'temperature_'.*'temperature'"):
        GenerationConfig.from_pretrained(directory, temperature_=1.0)
    with pytest.raises(FileError, match="generation_config"):
        GenerationConfig.from_pretrained(tmp_path)
    with pytest.raises(FormatError, match="outside"):
        GenerationConfig().save_pretrained(tmp_path, "../out.json")


@pytest.mark.parametrize(
    ("document", "kind", "said"),
    [
        ("[1]", FormatError, "must hold a JSON object"),
        ('{"top_k": 1, "top_k": 2}', FormatError, "twice"),
        ("{", FormatError, "not valid JSON"),
        ('{"top_k": "many"}', ConfigError, "`top_k` of GenerationConfig must be int"),
        ('{"top_p": NaN}', ConfigError, "`top_p`"),
        ('{"top_p": 7}', ConfigError, r"`top_p` of GenerationConfig must be in \[0, 1\], but is 7.0"),
        ('{"eos_token_id": ["x"]}', ConfigError, "`eos_token_id`"),
        ('{"do_sample": true, "temperature": 0}', ConfigError, "do_sample=False"),
        ('{"num_beams": 2, "num_return_sequences": 3}', ConfigError, "`num_return_sequences`"),
        (f'{{"top_k": {2**63}}}', ConfigError, "`top_k` .* 64 bits"),
        (f'{{"eos_token_id": [1, {2**70}]}}', ConfigError, "`eos_token_id` .* 64 bits"),
        (f'{{"sequence_bias": [[[{2**70}], 1.0]]}}', ConfigError, "`sequence_bias` .* 64 bits"),
        (f'{{"bad_words_ids": [[{2**70}]]}}', ConfigError, "`bad_words_ids` .* 64 bits"),
        (f'{{"watermarking_config": {{"hashing_key": {2**70}}}}}', ConfigError, "`watermarking_config` .* 64 bits"),
    ],
)
def test_bad_files_name_the_file(tmp_path: Path, document: str, kind: type[Exception], said: str) -> None:
    directory = write(tmp_path / "bad", document)
    with pytest.raises(kind, match=f"generation_config.json: .*{said}"):
        GenerationConfig.from_pretrained(directory)


def test_what_a_file_cannot_set(tmp_path: Path) -> None:
    config = GenerationConfig.from_pretrained(write(tmp_path / "m", {"compile_config": {"backend": "x"}, "_x": 1}))
    assert config.compile_config is None
    assert config.extra == {}
    config.compile_config = {"mode": "reduce-overhead"}
    config.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved/generation_config.json").read_text() == "{}\n"


MODEL_CONFIGS: list[dict[str, Any]] = [
    {"model_type": "gpt2", "eos_token_id": 5, "bos_token_id": 4, "use_cache": True, "n_embd": 8, "task_specific_params": {}},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "min_length": 3, "no_repeat_ngram_size": 3},
    {"output_attentions": True, "pad_token_id": None},
    {"bos_token_id": 3, "force_bos_token_to_be_generated": True},
    {"eos_token_id": 1, "decoder": {"eos_token_id": 2, "bos_token_id": 7, "max_length": 30}},
    {"text_config": {"eos_token_id": [2, 3], "hidden_size": 8}},
    {"pad_token_id": -1},
]


@pytest.mark.reference
@pytest.mark.parametrize("values", MODEL_CONFIGS)
def test_from_the_models_own_config(values: dict[str, Any]) -> None:
    before = copy.deepcopy(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = GenerationConfig.from_model_config(values)
    assert values == before
    theirs = reference.GenerationConfig.from_model_config(copy.deepcopy(values))
    assert found.to_diff_dict() == theirs_of(theirs)


@pytest.mark.reference
def test_from_a_config_object() -> None:
    ours = LlamaConfig(eos_token_id=[3, 4], pad_token_id=0, use_cache=False)
    theirs = transformers.LlamaConfig(eos_token_id=[3, 4], pad_token_id=0, use_cache=False)
    found, expected = GenerationConfig.from_model_config(ours), reference.GenerationConfig.from_model_config(theirs)
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "max_length", "do_sample", "top_k")
    assert {name: getattr(found, name) for name in names} == {name: getattr(expected, name) for name in names}


# --- an object like others -------------------------------------------------------------------------------------------------


def test_equality_copies_and_what_is_shown() -> None:
    config = GenerationConfig(do_sample=True, top_k=3, sequence_bias={(1, 2): 2, (3,): float("-inf")})
    assert config == copy.deepcopy(config) == pickle.loads(pickle.dumps(config))
    assert config == GenerationConfig(do_sample=True, top_k=3, sequence_bias=[[[1, 2], 2.0], [[3], float("-inf")]])
    assert config != GenerationConfig(do_sample=True, top_k=3)
    assert config != {"top_k": 3}
    shown = repr(config)
    assert shown.startswith("GenerationConfig {")
    assert "top_k" in shown
    assert "top_p" not in shown
    assert config.to_dict()["top_p"] is None
    assert "top_p" not in config.to_diff_dict()
    assert json.loads(GenerationConfig(top_k=50).to_json_string(use_diff=False))["top_p"] is None


def test_infinite_biases_survive_a_file(tmp_path: Path) -> None:
    config = GenerationConfig(sequence_bias={(1, 2): 2, (3,): float("-inf")})
    config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path) == config


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_supported_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"`{name}` is not supported. [A-Z]"):
        GenerationConfig(**{name: 1})
    assert getattr(GenerationConfig(**{name: None}), name) is None
    config = GenerationConfig.from_pretrained(write(tmp_path / "m", {name: 7}))
    assert getattr(config, name) == 7
    with pytest.raises(UnsupportedError, match=f"`{name}` is not supported"):
        _ = config.mode
    assert config.update(**{name: None}) == {}
    assert config.mode == "greedy"


def test_unknown_names() -> None:
    with pytest.warns(TranseptWarning, match="no setting 'top_l'.*'top_[hkp]'"):
        config = GenerationConfig(top_l=3)
    with pytest.warns(TranseptWarning, match="no setting 'temperature_'.*'temperature'"):
        config.temperature_ = 1.0
    assert (config.top_l, config.to_dict()["temperature_"]) == (3, 1.0)
    with pytest.raises(AttributeError, match="temperature_"):
        _ = GenerationConfig().temperature_
    for name in NOT_SETTINGS:
        with pytest.raises(ConfigError, match=rf"`{name}` is no setting. Pass it to generate\(\)"):
            GenerationConfig(**{name: 1})
    assert GenerationConfig().knows("top_k")
    assert not GenerationConfig().knows("attention_mask")


def test_settings_need_no_torch() -> None:
    code = "import sys, transept.generation.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- update and fill -------------------------------------------------------------------------------------------------------


def test_update_returns_what_it_does_not_know() -> None:
    config = GenerationConfig(num_beams=2)
    assert config.update(num_beams=3, attention_mask=1) == {"attention_mask": 1}
    assert config.num_beams == 3
    assert config.update(defaults_only=True, num_beams=5, min_length=2) == {"num_beams": 5}
    assert (config.num_beams, config.min_length) == (3, 2)
    assert config.update(allow_custom_entries=True, own=1) == {}
    assert config.own == 1
    config.own = 2
    assert config.to_dict()["own"] == 2


def test_a_wrong_update_changes_nothing() -> None:
    config = GenerationConfig(num_beams=2)
    before = copy.deepcopy(config)
    with pytest.raises(ConfigError, match="`num_return_sequences`"):
        config.update(num_beams=3, num_return_sequences=9, own=1, allow_custom_entries=True)
    assert config == before


@pytest.mark.reference
@pytest.mark.parametrize(
    ("own", "model"),
    [
        ({}, {}),
        ({"top_k": 5, "do_sample": True}, {"top_p": 0.9, "temperature": 0.6, "eos_token_id": [1, 2]}),
        ({"num_beams": 2}, {"do_sample": True, "top_k": 7, "own": 3}),
    ],
)
def test_what_is_not_set_comes_from_the_model_then_from_the_defaults(own: dict[str, Any], model: dict[str, Any]) -> None:
    ours, theirs = GenerationConfig(**own), reference.GenerationConfig(**own)
    ours.fill(GenerationConfig.from_dict(model))
    theirs.update(**reference.GenerationConfig(**model).to_dict(), defaults_only=True, allow_custom_entries=True)
    theirs.update(**theirs._get_default_generation_params(), defaults_only=True)
    lengths = {"max_length": None, "min_length": None}  # their defaults are those of the prompt
    found = {name: getattr(theirs, name) for name in NAMES} | lengths
    assert {name: getattr(ours, name) for name in NAMES} == found
    assert ours.extra == {name: value for name, value in model.items() if name == "own"}
    ours.update(top_k=None)
    assert ours.top_k is None


def test_a_model_that_contradicts_changes_nothing() -> None:
    config = GenerationConfig(num_beams=2)
    with pytest.raises(ConfigError, match="at most `num_beams` \\(2\\)"):
        config.fill(GenerationConfig.from_dict({"num_return_sequences": 4, "do_sample": True}))
    assert config == GenerationConfig(num_beams=2)


# --- strategies ------------------------------------------------------------------------------------------------------------

MODES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "greedy", "greedy_search"),
    ({"num_beams": 1, "do_sample": False}, "greedy", "greedy_search"),
    ({"do_sample": True}, "sample", "sample"),
    ({"num_beams": 2}, "beam", "beam_search"),
    ({"num_beams": 2, "do_sample": True}, "beam_sample", "beam_sample"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, "group_beam", "group_beam_search"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive", "contrastive_search"),
    ({"penalty_alpha": 0.0, "top_k": 50}, "greedy", "greedy_search"),
    ({"penalty_alpha": 0.6}, "greedy", "greedy_search"),
    ({"prompt_lookup_num_tokens": 3}, "assisted", "assisted_generation"),
    ({"prompt_lookup_num_tokens": 3, "do_sample": True}, "assisted", "assisted_generation"),
]


@pytest.mark.reference
@pytest.mark.parametrize(("settings", "mode", "theirs"), MODES)
def test_strategies(settings: dict[str, Any], mode: str, theirs: str) -> None:
    assert GenerationConfig(**settings).mode == mode
    assert reference.GenerationConfig(**settings).get_generation_mode().value == theirs
    assert GenerationConfig(**settings).get_generation_mode() == theirs
    with_draft = reference.GenerationConfig(**settings).get_generation_mode
    if mode in ("greedy", "sample"):
        assert GenerationConfig(**settings).get_generation_mode(object()).value == with_draft(object()).value


# --- what cannot be --------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"temperature": 0, "do_sample": True},
        r"`temperature` of GenerationConfig must be above 0, but is 0.0. .*do_sample=False",
    ),
    ({"temperature": 0.0}, "do_sample=False"),
    ({"temperature": -1.0, "do_sample": False}, "`temperature`.*-1.0"),
    ({"top_p": 1.5}, r"`top_p` .* in \[0, 1\], but is 1.5. Use 1.0"),
    ({"top_p": -0.1}, "`top_p`"),
    ({"top_k": -1}, "`top_k`.*Use 0"),
    ({"min_p": 2.0}, "`min_p`"),
    ({"top_h": 0.0}, r"`top_h` .* in \(0, 1\]"),
    ({"typical_p": 0.0}, "`typical_p`"),
    ({"epsilon_cutoff": 1.0}, r"`epsilon_cutoff` .* in \[0, 1\)"),
    ({"eta_cutoff": -0.1}, "`eta_cutoff`"),
    ({"repetition_penalty": 0.0}, "`repetition_penalty`.*Use 1.0"),
    ({"encoder_repetition_penalty": -1.0}, "`encoder_repetition_penalty`"),
    ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size`"),
    ({"encoder_no_repeat_ngram_size": -1}, "`encoder_no_repeat_ngram_size`"),
    ({"max_new_tokens": 0}, "`max_new_tokens` .* at least 1, but is 0"),
    ({"max_new_tokens": -3}, "`max_new_tokens`"),
    ({"max_new_tokens": "many"}, "must be int"),
    ({"max_new_tokens": 2.5}, "must be int"),
    ({"max_length": 0}, "`max_length`"),
    ({"min_length": -1}, "`min_length`"),
    ({"min_new_tokens": -1}, "`min_new_tokens`"),
    ({"max_time": -1.0}, "`max_time`"),
    ({"num_beams": 0}, "`num_beams` .* at least 1, but is 0"),
    ({"num_return_sequences": 0}, "`num_return_sequences`"),
    (
        {"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0},
        r"`num_beam_groups` .* divide `num_beams` \(4\), but is 3",
    ),
    ({"num_beam_groups": 2}, r"divide `num_beams` \(1\)"),
    ({"num_beams": 4, "num_beam_groups": 2}, "`diversity_penalty` .* above 0"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True}, "`do_sample`"),
    ({"num_return_sequences": 2}, "greedy decoding, but is 2. Use do_sample=True or num_beams"),
    ({"num_beams": 2, "num_return_sequences": 3}, r"at most `num_beams` \(2\), but is 3"),
    ({"num_beams": 2, "penalty_alpha": 0.5}, "`penalty_alpha` .* `num_beams`.*num_beams=1"),
    ({"penalty_alpha": 1.5}, "`penalty_alpha`"),
    ({"num_beams": 2, "prompt_lookup_num_tokens": 3}, "`prompt_lookup_num_tokens` .*num_beams=1"),
    ({"prompt_lookup_num_tokens": 0}, "`prompt_lookup_num_tokens`"),
    ({"assistant_ensemble_weight": 1.0}, "`assistant_ensemble_weight`"),
    ({"assistant_confidence_threshold": 1.5}, "`assistant_confidence_threshold`"),
    ({"num_assistant_tokens": 0}, "`num_assistant_tokens`"),
    ({"num_assistant_tokens_schedule": "random"}, "`num_assistant_tokens_schedule`"),
    ({"early_stopping": "always"}, "`early_stopping`"),
    ({"do_sample": "yes"}, "`do_sample`"),
    ({"stop_strings": [""]}, "`stop_strings` .* non-empty"),
    ({"stop_strings": []}, "`stop_strings`"),
    ({"bad_words_ids": [[]]}, "`bad_words_ids`"),
    ({"bad_words_ids": [[-1]]}, "`bad_words_ids`"),
    ({"sequence_bias": {"x": 1.0}}, "`sequence_bias`"),
    ({"sequence_bias": 3}, "`sequence_bias`"),
    ({"suppress_tokens": [-1]}, "`suppress_tokens`"),
    ({"begin_suppress_tokens": ["x"]}, "`begin_suppress_tokens`"),
    ({"exponential_decay_length_penalty": (1.5, 2.0)}, "`exponential_decay_length_penalty`"),
    ({"exponential_decay_length_penalty": [3]}, "`exponential_decay_length_penalty`"),
    ({"forced_bos_token_id": 3, "suppress_tokens": [3, 4]}, "`forced_bos_token_id` .* `suppress_tokens`.*min_new_tokens"),
    ({"forced_eos_token_id": [3], "suppress_tokens": [3]}, "`forced_eos_token_id`"),
    ({"cache_implementation": "fast"}, "`cache_implementation` .* but is 'fast'"),
    ({"compile_config": {"backnd": "x"}}, "no setting 'backnd'.*'backend'"),
    ({"prefill_chunk_size": 0}, "`prefill_chunk_size`"),
    ({"max_cache_len": 0}, "`max_cache_len`"),
    ({"output_logprobs": -1}, "`output_logprobs`"),
    ({"guidance_scale": float("nan")}, "`guidance_scale`"),
]


@pytest.mark.parametrize(("settings", "said"), WRONG)
def test_what_cannot_be_is_an_error(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GenerationConfig(**settings)
    config = GenerationConfig()
    with pytest.raises(ConfigError, match=said):
        config.update(**settings)
    assert config == GenerationConfig()


def test_settings_changed_one_by_one_are_checked_before_they_are_saved(tmp_path: Path) -> None:
    config = GenerationConfig()
    config.num_return_sequences = 3
    with pytest.raises(ConfigError, match="`num_return_sequences`"):
        config.validate()
    with pytest.raises(ConfigError, match="`num_return_sequences`"):
        config.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_whole_numbers_stand_for_each_other() -> None:
    config = GenerationConfig(do_sample=True, temperature=1, max_new_tokens=20.0, exponential_decay_length_penalty=(3, 2))
    assert (config.temperature, config.max_new_tokens) == (1.0, 20)
    assert isinstance(config.temperature, float)
    assert isinstance(config.max_new_tokens, int)


IDLE: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: VALUES[name]}, rf"`{name}` \(.*\) without do_sample=True")
        for name in ("temperature", "top_p", "min_p", "top_h", "typical_p", "top_k", "epsilon_cutoff", "eta_cutoff")
    ),
    ({"temperature": 0, "do_sample": False}, r"`temperature` \(0.0\) without"),
    ({"early_stopping": True}, "`early_stopping` .* without num_beams above 1"),
    ({"length_penalty": 2.0, "num_beams": 1}, "`length_penalty`"),
    ({"penalty_alpha": 0.6, "do_sample": True}, "`penalty_alpha` .* with do_sample=True"),
    ({"use_cache": False, "cache_implementation": "dynamic"}, "`cache_implementation` .* without use_cache"),
    ({"use_cache": False, "cache_config": {}}, "`cache_config`"),
    ({"max_cache_len": 5}, "`max_cache_len` .* without cache_implementation='static'"),
    ({"output_scores": True}, "`output_scores` .* without return_dict_in_generate=True"),
    ({"output_logprobs": 0}, "`output_logprobs`"),
    ({"pad_token_id": -1}, "`pad_token_id`"),
]


@pytest.mark.parametrize(("settings", "said"), IDLE)
def test_settings_without_effect_are_warned_of_where_they_are_given(settings: dict[str, Any], said: str) -> None:
    with pytest.warns(TranseptWarning, match=said) as caught:
        config = GenerationConfig(**settings)
    assert [Path(warning.filename).name for warning in caught] == ["test_config.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GenerationConfig.from_dict(settings) == config
        config.update(max_new_tokens=4)
    with pytest.raises(ConfigError, match=said):
        config.validate(strict=True)


def test_settings_with_effect_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GenerationConfig(**VALUES)
        GenerationConfig(penalty_alpha=0.6, top_k=4)
        GenerationConfig(temperature=1.0, top_k=50, top_p=1.0)


# --- as the reference's ----------------------------------------------------------------------------------------------------


def test_a_watermark_stays_an_object(tmp_path: Path) -> None:
    mark = WatermarkingConfig(bias=1.5)
    for given in (mark, mark.to_dict()):
        config = GenerationConfig(watermarking_config=given)
        assert config.watermarking_config == mark
        assert config.to_dict()["watermarking_config"] == mark.to_dict()
    config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).watermarking_config == mark


def test_an_end_that_no_token_is() -> None:
    for given, kept in ((-1, []), ([-1, 5], [5]), ([4, 5], [4, 5]), (3, [3]), (None, [])):
        config = GenerationConfig(eos_token_id=given)
        assert config.eos_token_id == given
        assert end_tokens(config) == kept


def test_a_text_that_never_ends() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=5, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    )
    written = model.generate(torch.tensor([[1, 2]]), eos_token_id=-1, min_new_tokens=2, max_new_tokens=60, do_sample=True)
    assert written.shape == (1, 62)


@pytest.mark.parametrize("wrong", [None, 5, ["x"]])
def test_what_names_no_file(wrong: Any) -> None:
    with pytest.raises(InputTypeError):
        GenerationConfig.from_pretrained(wrong)
    with pytest.raises(InputTypeError):
        GenerationConfig.from_dict(wrong)


def test_the_files_content(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", {"top_k": 5})
    assert GenerationConfig.get_config_dict(directory, own=1) == ({"top_k": 5}, {"own": 1})
    assert GenerationConfig.from_json_file(directory / "generation_config.json").top_k == 5
