"""From settings to what a call of ``generate`` needs: logits processors in their order, stopping criteria, and a cache."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from transept.config import Config
from transept.errors import ConfigError, InputError, TranseptWarning, nearest
from transept.generation import logits_processors as rules
from transept.generation import logits_warpers as warpers
from transept.generation import stopping_criteria as stopping
from transept.generation.compiled import compiles
from transept.generation.config import GenerationConfig
from transept.generation.logits_processors import LogitsProcessorList
from transept.generation.nonfinite import FiniteLogitsCheck
from transept.generation.prompt import vocabulary_size
from transept.generation.stopping_criteria import StoppingCriteriaList
from transept.generation.watermark import make_processor
from transept.layers.cache import Cache
from transept.layers.caches import OffloadedCache, SlidingWindowCache, StaticCache
from transept.layers.quantized_cache import QuantizedCache

Processors = list[Callable[..., Tensor]]

CACHES: dict[str, type[Cache] | None] = {
    "dynamic": None,
    "static": StaticCache,
    "sliding_window": SlidingWindowCache,
    "hybrid": SlidingWindowCache,
    "offloaded": OffloadedCache,
    "quantized": QuantizedCache,
}
# Positions that a cache for compiled graphs is made larger by at a time.
_ROOM = 256


def build_processors(
    config: GenerationConfig,
    prompt_length: int,
    max_length: int,
    *,
    copies: int = 1,
    embedded: int = 0,
    encoder_input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    prefix_allowed_tokens_fn: Callable[[int, Tensor], Iterable[int]] | None = None,
    custom: Iterable[Callable[..., Tensor]] | None = None,
    model: Any = None,
    negative_prompt_ids: Tensor | None = None,
    negative_prompt_attention_mask: Tensor | None = None,
) -> LogitsProcessorList:
    """The logits processors that settings ask for, in the order of the reference, and a check of what comes out.

    Args:
        config: filled up (see :meth:`GenerationConfig.fill`).
        prompt_length: ids before the first new token.
        max_length: ids that a row can have in all.
        copies: rows per prompt that are treated at once: beams of a group, or returned sequences.
        embedded: positions of the prompt that have no ids, for they are embeddings.
        encoder_input_ids: what the encoder reads (B, S); for a decoder alone its prompt.
        attention_mask: 0 for the padding before the prompt (B, S): repeating it is no repetition.
        prefix_allowed_tokens_fn: see :class:`PrefixConstrainedLogitsProcessor`.
        custom: the caller's own processors; one of a class that the settings make takes its place.
        model: runs another prompt beside this one, for ``guidance_scale``.
        negative_prompt_ids: that other prompt (B, S).
        negative_prompt_attention_mask: 0 for its padding (B, S).

    Raises:
        InputError: a setting needs what is not there.
    """
    source, mask, other, other_mask = (
        None if given is None else given.repeat_interleave(copies, dim=0)
        for given in (encoder_input_ids, attention_mask, negative_prompt_ids, negative_prompt_attention_mask)
    )
    made, group = LogitsProcessorList(), (config.num_beams or 1) // (config.num_beam_groups or 1)
    if config.guidance_scale not in (None, 1):
        guided, cached = _need(model, "guidance_scale", "to run another prompt"), config.use_cache is not False
        made.append(
            warpers.UnbatchedClassifierFreeGuidanceLogitsProcessor(config.guidance_scale, guided, other, other_mask, cached)
        )
    made += _repetition(config, prompt_length, source, mask)
    made += _lengths(config, prompt_length, max_length, embedded)
    if prefix_allowed_tokens_fn is not None:
        made.append(rules.PrefixConstrainedLogitsProcessor(prefix_allowed_tokens_fn, group))
    made += _forced(config, prompt_length, max_length)
    made = made.with_custom(custom)
    if config.do_sample:
        made += _sampling(config)
    if config.watermarking_config is not None:
        size = vocabulary_size(_need(model, "watermarking_config", "for its vocabulary"))
        made.append(make_processor(config.watermarking_config, size, getattr(model, "device", "cpu")))
    if config.renormalize_logits:
        made.append(warpers.LogitNormalization())
    made.append(FiniteLogitsCheck(prompt_length, group))
    return made


def _need(model: Any, name: str, why: str) -> Any:
    if model is None:
        raise InputError(f"`{name}` needs the model, {why}.", hint=f"Use {name}=None.")
    return model


def _repetition(config: GenerationConfig, prompt_length: int, source: Tensor | None, mask: Tensor | None) -> Processors:
    """What looks at tokens that came before, in the text or in the encoder's input."""
    made: Processors = []
    if config.sequence_bias is not None:
        made.append(rules.SequenceBiasLogitsProcessor(config.sequence_bias))
    if (groups := config.num_beam_groups or 1) > 1:
        made.append(warpers.HammingDiversityLogitsProcessor(config.diversity_penalty or 0.0, config.num_beams or 1, groups))
    reward = config.encoder_repetition_penalty
    if reward not in (None, 1) and (ids := _readable(source, "encoder_repetition_penalty")) is not None:
        made.append(warpers.EncoderRepetitionPenaltyLogitsProcessor(reward, ids))
    if config.repetition_penalty not in (None, 1):
        _warn_of_embeddings("repetition_penalty", prompt_length)
        padding = None if mask is None else (mask != 0).int().argmax(1)
        made.append(warpers.RepetitionPenaltyLogitsProcessor(config.repetition_penalty, padding))
    if config.no_repeat_ngram_size:
        _warn_of_embeddings("no_repeat_ngram_size", prompt_length)
        made.append(rules.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    size = config.encoder_no_repeat_ngram_size
    if size and (ids := _readable(source, "encoder_no_repeat_ngram_size")) is not None:
        made.append(rules.EncoderNoRepeatNGramLogitsProcessor(size, ids))
    if config.bad_words_ids is not None:
        made.append(rules.NoBadWordsLogitsProcessor(config.bad_words_ids, config.eos_token_id))
    return made


def _readable(source: Tensor | None, name: str) -> Tensor | None:
    """The encoder's input if it is text: what stands for anything else is filled up with negative numbers."""
    if source is not None and source.dim() == 2 and not source.is_floating_point() and not bool((source < 0).any()):
        return source
    warnings.warn(f"`{name}` has no effect: there are no input ids to compare with.", TranseptWarning, stacklevel=4)
    return None


def _warn_of_embeddings(name: str, prompt_length: int) -> None:
    if prompt_length == 0:
        text = f"`{name}` counts new tokens only: a prompt of embeddings has no ids."
        warnings.warn(text, TranseptWarning, stacklevel=4)


def _lengths(config: GenerationConfig, prompt_length: int, max_length: int, embedded: int) -> Processors:
    """What keeps a text from ending early."""
    fresh = config.min_new_tokens
    least = (config.min_length or 0) - embedded if fresh is None else prompt_length + fresh
    if least > max_length:
        text = f"At least {least} tokens are asked for and at most {max_length}, prompt included: no text can end by itself."
        warnings.warn(text, TranseptWarning, stacklevel=3)
    if config.eos_token_id is None or least <= 0 or fresh == 0:
        return []
    if fresh is None:
        return [rules.MinLengthLogitsProcessor(least, config.eos_token_id)]
    return [rules.MinNewTokensLengthLogitsProcessor(prompt_length, fresh, config.eos_token_id)]


def _forced(config: GenerationConfig, prompt_length: int, max_length: int) -> Processors:
    """What must or must not come, at the ends or anywhere."""
    made: Processors = []
    if config.forced_bos_token_id is not None:
        made.append(rules.ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
    if config.forced_eos_token_id is not None:
        made.append(rules.ForcedEOSTokenLogitsProcessor(max_length, config.forced_eos_token_id))
    if config.remove_invalid_values:
        made.append(rules.InfNanRemoveLogitsProcessor())
    if (decay := config.exponential_decay_length_penalty) is not None:
        if config.eos_token_id is None:
            raise InputError("`exponential_decay_length_penalty` needs `eos_token_id`, the token it makes more likely.")
        penalty = (int(decay[0]), decay[1])
        made.append(warpers.ExponentialDecayLengthPenalty(penalty, config.eos_token_id, prompt_length))
    if config.suppress_tokens is not None:
        made.append(rules.SuppressTokensLogitsProcessor(config.suppress_tokens))
    if config.begin_suppress_tokens is not None:
        after_forced = prompt_length <= 1 and config.forced_bos_token_id is not None
        begin = prompt_length + 1 if after_forced else prompt_length
        made.append(rules.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin))
    return made


# What shapes the distribution that tokens are sampled from, in its order: the setting, its values of no effect, the warper, and
# whether it is told how many tokens to keep.
_SAMPLING: tuple[tuple[str, Callable[[Any], bool], Callable[..., Any], bool], ...] = (
    ("temperature", lambda value: value == 1, warpers.TemperatureLogitsWarper, False),
    ("top_h", lambda value: False, warpers.TopHLogitsWarper, False),
    ("top_k", lambda value: value == 0, warpers.TopKLogitsWarper, True),
    ("top_p", lambda value: value >= 1, warpers.TopPLogitsWarper, True),
    ("min_p", lambda value: False, warpers.MinPLogitsWarper, True),
    ("typical_p", lambda value: value >= 1, warpers.TypicalLogitsWarper, True),
    ("epsilon_cutoff", lambda value: value == 0, warpers.EpsilonLogitsWarper, True),
    ("eta_cutoff", lambda value: value == 0, warpers.EtaLogitsWarper, True),
)


def _sampling(config: GenerationConfig) -> Processors:
    keep = 1
    if (config.num_beams or 1) > 1:  # a token beside every end, so that each beam can go on
        keep = len(config.eos_token_id) + 1 if isinstance(config.eos_token_id, list) else 2
    given = [(getattr(config, name), *rest) for name, *rest in _SAMPLING]
    return [
        warper(value, min_tokens_to_keep=keep) if keeps else warper(value)
        for value, neutral, warper, keeps in given
        if value is not None and not neutral(value)
    ]


def build_criteria(
    config: GenerationConfig,
    max_length: int,
    *,
    tokenizer: Any = None,
    max_positions: int | None = None,
    custom: Iterable[Callable[..., Any]] | None = None,
) -> StoppingCriteriaList:
    """The stopping criteria that settings ask for.

    Args:
        config: filled up (see :meth:`GenerationConfig.fill`).
        max_length: ids that a row can have in all.
        tokenizer: the model's own, for ``stop_strings``.
        max_positions: how many positions the model knows.
        custom: the caller's own criteria; one of a class that the settings make takes its place.

    Raises:
        InputError: ``stop_strings`` without a tokenizer.
    """
    made = StoppingCriteriaList([stopping.MaxLengthCriteria(max_length, max_positions)])
    if config.max_time is not None:
        made.append(stopping.MaxTimeCriteria(config.max_time))
    if config.stop_strings is not None:
        if tokenizer is None:
            raise InputError("`stop_strings` needs the tokenizer.", hint="Pass it: generate(..., tokenizer=tokenizer).")
        made.append(stopping.StopStringCriteria(tokenizer, config.stop_strings))
    if config.eos_token_id is not None:
        made.append(stopping.EosTokenCriteria(config.eos_token_id))
    if config.is_assistant and config.assistant_confidence_threshold:
        made.append(stopping.ConfidenceCriteria(config.assistant_confidence_threshold))
    return made.with_custom(custom)


def make_cache(settings: GenerationConfig, model_config: Config, length: int | None = None) -> Cache | None:
    """The cache that the settings ask for; ``None`` for the one that the model makes itself.

    Args:
        settings: complete.
        model_config: of the model that it is for.
        length: positions that will be read; what a static cache has room for unless ``max_cache_len`` says more.

    Raises:
        ConfigError: a kind that there is not, or a ``cache_config`` that the kind does not take.
        InputError: a static cache without a size, or of too small a one.
    """
    name, given = settings.cache_implementation, dict(settings.cache_config or {})
    if name is not None and name not in CACHES:
        raise ConfigError(
            f"`cache_implementation` is {name!r}, but the kinds are {', '.join(CACHES)}.", hint=nearest(str(name), CACHES)
        )
    kind = None if name is None else CACHES[name]
    taken = [] if kind is None else [each for each in inspect.signature(kind).parameters if each != "config"]
    for key in given:
        if key not in taken:
            known = f"those of {name!r} are {', '.join(taken)}" if taken else f"{name!r} has none"
            raise ConfigError(f"`cache_config` has no setting {key!r}: {known}.", hint=nearest(str(key), taken))
    if kind is None:
        return None
    if kind is StaticCache:
        room = settings.max_cache_len or given.get("max_cache_len")
        size = _size(room, length)
        # A graph is for one size: texts of about one length then share it.
        given["max_cache_len"] = -(-size // _ROOM) * _ROOM if room is None and compiles(settings) else size
    return kind(**given | {"config": model_config})


def _size(asked: int | None, length: int | None) -> int:
    if asked is None and length is None:
        raise InputError("a static cache needs a size.", hint="Set `max_cache_len`.")
    if asked is not None and length is not None and asked < length:
        raise InputError(
            f"`max_cache_len` is {asked}, but {length} positions will be read.",
            hint="Leave it out to have the cache made as large as is needed.",
        )
    return asked or length or 0
