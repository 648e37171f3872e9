"""What settings of generation must keep to: ranges, combinations, and which have no effect. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from transept.errors import ConfigError, nearest
from transept.generation.checks import RANGES, Range, biases, sequences, token_ids
from transept.generation.watermark_config import watermark

if TYPE_CHECKING:
    from transept.generation.config import GenerationConfig

# Of every model, where neither the caller nor the model's file says another.
DEFAULTS: dict[str, Any] = {
    "do_sample": False,
    "use_cache": True,
    "early_stopping": False,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
    "output_scores": False,
    "return_dict_in_generate": False,
    "remove_invalid_values": False,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_repetition_penalty": 1.0,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "target_lookbehind": 10,
}

# Settings of the reference that are not here, and what to do without them.
UNSUPPORTED = {
    "assistant_early_exit": "Pass a smaller model as assistant_model.",
    "constraints": "Use sequence_bias or prefix_allowed_tokens_fn.",
    "continuous_batching_config": "Leave it out.",
    "dola_layers": "Use contrastive search: penalty_alpha and top_k.",
    "force_words_ids": "Use sequence_bias or prefix_allowed_tokens_fn.",
    "low_memory": "Leave it out: the texts are the same without it.",
    "speculation_type": "Pass a draft model as assistant_model, or set prompt_lookup_num_tokens.",
    "token_healing": "End the prompt where a word ends.",
    "use_mtp": "Pass a draft model as assistant_model, or set prompt_lookup_num_tokens.",
}

# What generate() takes beside its settings.
NOT_SETTINGS = frozenset(
    {
        "assistant_model",
        "assistant_tokenizer",
        "logits_processor",
        "negative_prompt_attention_mask",
        "negative_prompt_ids",
        "prefix_allowed_tokens_fn",
        "stopping_criteria",
        "streamer",
        "synced_gpus",
        "tokenizer",
    }
)

_STATIC = ("static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked")
_CACHES = (*_STATIC, "offloaded_hybrid", "offloaded_hybrid_chunked", "dynamic", "offloaded", "quantized")
_COMPILE: dict[str, tuple[Any, ...]] = {
    "fullgraph": (bool,),
    "dynamic": (bool,),
    "backend": (str, Callable),
    "mode": (str,),
    "options": (dict,),
}

_ONE = Range(1)
_RANGES = RANGES | {
    "max_length": _ONE,
    "max_new_tokens": Range(1, remedy="To only read the prompt call the model itself."),
    "max_time": Range(0),
    "num_return_sequences": _ONE,
    "diversity_penalty": Range(0),
    "penalty_alpha": Range(0, 1, remedy="Use None for no contrastive search."),
    "forced_bos_token_id": Range(0),
    "num_assistant_tokens": _ONE,
    "assistant_lookbehind": _ONE,
    "target_lookbehind": _ONE,
    "assistant_ensemble_weight": Range(0, 1, open="()", remedy="Use None for the model's own distribution."),
    "prompt_lookup_num_tokens": Range(1, remedy="Use None for no drafts."),
    "max_matching_ngram_size": _ONE,
    "output_logprobs": Range(0, remedy="Use None for no log-probabilities."),
    "max_cache_len": _ONE,
    "prefill_chunk_size": Range(1, remedy="Use None to read the prompt at once."),
}


def check(config: GenerationConfig) -> None:
    """Raise ``ConfigError`` for the first setting out of range, and for settings that contradict each other."""
    for name, allowed in _RANGES.items():
        value = getattr(config, name)
        if value is None or value in allowed or (name == "temperature" and value == 0 and config.do_sample is False):
            continue
        raise _wrong(config, name, f"must be {allowed}", allowed.remedy)
    _check_lists(config)
    if config.watermarking_config is not None:
        watermark(config.watermarking_config)
    _check_caches(config)
    _check_beams(config)
    _check_forced(config)


def _wrong(config: GenerationConfig, name: str, rule: str, remedy: str | None) -> ConfigError:
    return ConfigError(f"`{name}` of GenerationConfig {rule}, but is {repr(getattr(config, name))[:80]}.", hint=remedy)


def _check_lists(config: GenerationConfig) -> None:
    for name in ("suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id", "decoder_start_token_id"):
        if (value := getattr(config, name)) is not None:
            token_ids(name, value, kind=ConfigError)
    if config.bad_words_ids is not None:
        sequences("bad_words_ids", config.bad_words_ids, kind=ConfigError)
    if config.sequence_bias is not None:
        biases("sequence_bias", config.sequence_bias, kind=ConfigError)
    stops = [config.stop_strings] if isinstance(config.stop_strings, str) else config.stop_strings
    if stops is not None and not (stops and all(stops)):
        raise _wrong(config, "stop_strings", "must be one or more non-empty strings", "Use None to stop at none.")
    decay = config.exponential_decay_length_penalty
    if decay is not None and not (len(decay) == 2 and float(decay[0]).is_integer() and min(decay) >= 0):
        raise _wrong(
            config,
            "exponential_decay_length_penalty",
            "must be a number of tokens and a factor",
            "For example (15, 1.05).",
        )


def _check_caches(config: GenerationConfig) -> None:
    if config.cache_implementation not in (None, *_CACHES):
        raise _wrong(
            config, "cache_implementation", "must be a kind of cache", nearest(str(config.cache_implementation), _CACHES)
        )
    for name, value in (config.compile_config or {}).items():
        if name not in _COMPILE:
            raise ConfigError(f"`compile_config` has no setting {name!r}.", hint=nearest(name, _COMPILE))
        if value is not None and not isinstance(value, _COMPILE[name]):
            raise ConfigError(f"`compile_config` has {name!r} of type {type(value).__name__}: {value!r}.")


def _check_beams(config: GenerationConfig) -> None:
    beams, groups, sequences = config.num_beams or 1, config.num_beam_groups or 1, config.num_return_sequences or 1
    if beams % groups:
        raise _wrong(config, "num_beam_groups", f"must divide `num_beams` ({beams})", "Use 1 for no groups.")
    if groups > 1 and config.do_sample:
        raise _wrong(
            config, "num_beam_groups", "must be 1 with `do_sample`", "Groups of beams are not sampled: do_sample=False."
        )
    if groups > 1 and not config.diversity_penalty:
        remedy = "Without a penalty all groups would be alike; 0.5 is usual."
        raise _wrong(config, "diversity_penalty", "must be above 0 with `num_beam_groups`", remedy)
    if groups > 1 and config.guidance_scale not in (None, 1):
        remedy = "Each step runs the other prompt once for all beams: num_beam_groups=1."
        raise _wrong(config, "guidance_scale", "must be None with `num_beam_groups`", remedy)
    if beams > 1 and config.output_logprobs not in (None, False):
        remedy = "Ask for output_scores=True, and call compute_transition_scores()."
        raise _wrong(config, "output_logprobs", f"must be None with `num_beams` ({beams})", remedy)
    if beams == 1 and sequences > 1 and not config.do_sample:
        raise _wrong(config, "num_return_sequences", "must be 1 for greedy decoding", "Use do_sample=True or num_beams.")
    if beams > 1 and sequences > beams:
        raise _wrong(config, "num_return_sequences", f"must be at most `num_beams` ({beams})", "Use more beams.")
    if beams > 1 and config.penalty_alpha:
        raise _wrong(
            config, "penalty_alpha", f"must be None with `num_beams` ({beams})", "Use num_beams=1 for contrastive search."
        )
    if beams > 1 and config.prompt_lookup_num_tokens is not None:
        remedy = "Drafts are verified for one beam: num_beams=1."
        raise _wrong(config, "prompt_lookup_num_tokens", f"must be None with `num_beams` ({beams})", remedy)


def _check_forced(config: GenerationConfig) -> None:
    banned = set(config.suppress_tokens or ())
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        value = getattr(config, name)
        if value is not None and (forced := set(token_ids(name, value))) and forced <= banned:
            raise _wrong(config, name, "must not be in `suppress_tokens`", "Against an early end use min_new_tokens.")


# Settings of one strategy alone, and their values that change nothing.
_SAMPLING: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "top_k": 50,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
_BEAMS: dict[str, Any] = {"early_stopping": False, "length_penalty": 1.0}
_OUTPUTS = ("output_attentions", "output_hidden_states", "output_scores", "output_logits", "output_logprobs")


def idle(config: GenerationConfig, given: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """Settings that have no effect beside the others, and without what; of those ``given`` where that is not ``None``."""
    for name, reason in _idle(config):
        if given is None or name in given:
            yield name, reason


def _idle(config: GenerationConfig) -> Iterator[tuple[str, str]]:
    if not config.do_sample:
        contrastive = bool(config.penalty_alpha)
        for name, neutral in _SAMPLING.items():
            if getattr(config, name) not in (None, neutral) and not (name == "top_k" and contrastive):
                yield name, "without do_sample=True"
    if (config.num_beams or 1) == 1:
        for name, neutral in _BEAMS.items():
            if getattr(config, name) not in (None, neutral):
                yield name, "without num_beams above 1"
    if config.do_sample and config.penalty_alpha:
        yield "penalty_alpha", "with do_sample=True"
    if config.use_cache is False:
        for name in ("cache_implementation", "cache_config"):
            if getattr(config, name) is not None:
                yield name, "without use_cache"
    if config.max_cache_len is not None and config.cache_implementation not in _STATIC:
        yield "max_cache_len", "without cache_implementation='static'"
    if not config.return_dict_in_generate:
        for name in _OUTPUTS:
            value = getattr(config, name)
            if value is not None and value is not False:
                yield name, "without return_dict_in_generate=True"
    if config.pad_token_id is not None and config.pad_token_id < 0:
        yield "pad_token_id", "as padding, which is an id from 0 on"
