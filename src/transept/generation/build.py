"""From settings to what every step of generation runs: logits processors in their order, and stopping criteria."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from transept.errors import InputError, TranseptWarning
from transept.generation import penalties, processors, stopping, warpers
from transept.generation.config import GenerationConfig
from transept.generation.decode import vocabulary_size
from transept.generation.processors import LogitsProcessorList
from transept.generation.stopping import StoppingCriteriaList
from transept.generation.watermark import make_processor


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
    chain, group = LogitsProcessorList(), (config.num_beams or 1) // (config.num_beam_groups or 1)
    if (scale := config.guidance_scale) is not None and scale != 1:
        if model is None:
            raise InputError("`guidance_scale` needs the model, to run another prompt.", hint="Use guidance_scale=None.")
        cached = config.use_cache is not False
        chain.append(penalties.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model, other, other_mask, cached))
    chain += _repetition(config, prompt_length, source, mask)
    chain += _lengths(config, prompt_length, max_length, embedded)
    if prefix_allowed_tokens_fn is not None:
        chain.append(processors.PrefixConstrainedLogitsProcessor(prefix_allowed_tokens_fn, group))
    chain += _forced(config, prompt_length, max_length)
    chain = chain.with_custom(custom)
    if config.do_sample:
        chain += _sampling(config)
    if config.watermarking_config is not None:
        if model is None:
            raise InputError("`watermarking_config` needs the model, for its vocabulary.", hint="Leave it out.")
        chain.append(make_processor(config.watermarking_config, vocabulary_size(model), getattr(model, "device", "cpu")))
    if config.renormalize_logits:
        chain.append(processors.LogitNormalization())
    chain.append(processors.FiniteLogitsCheck(prompt_length, group))
    return chain


Processors = list[Callable[..., Tensor]]


def _repetition(config: GenerationConfig, prompt_length: int, source: Tensor | None, mask: Tensor | None) -> Processors:
    """What looks at tokens that came before, in the text or in the encoder's input."""
    found: Processors = []
    if config.sequence_bias is not None:
        found.append(penalties.SequenceBiasLogitsProcessor(config.sequence_bias))
    if (groups := config.num_beam_groups or 1) > 1:
        apart, beams = config.diversity_penalty or 0.0, config.num_beams or 1
        found.append(penalties.HammingDiversityLogitsProcessor(apart, beams, groups))
    reward = config.encoder_repetition_penalty
    if reward is not None and reward != 1 and (ids := _readable(source, "encoder_repetition_penalty")) is not None:
        found.append(penalties.EncoderRepetitionPenaltyLogitsProcessor(reward, ids))
    if (penalty := config.repetition_penalty) is not None and penalty != 1:
        _warn_of_embeddings("repetition_penalty", prompt_length)
        padding = None if mask is None else (mask != 0).int().argmax(1)
        found.append(penalties.RepetitionPenaltyLogitsProcessor(penalty, padding))
    if config.no_repeat_ngram_size:
        _warn_of_embeddings("no_repeat_ngram_size", prompt_length)
        found.append(penalties.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    size = config.encoder_no_repeat_ngram_size
    if size and (ids := _readable(source, "encoder_no_repeat_ngram_size")) is not None:
        found.append(penalties.EncoderNoRepeatNGramLogitsProcessor(size, ids))
    if config.bad_words_ids is not None:
        found.append(penalties.NoBadWordsLogitsProcessor(config.bad_words_ids, config.eos_token_id))
    return found


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
    found: Processors = []
    fresh = config.min_new_tokens
    least = (config.min_length or 0) - embedded if fresh is None else prompt_length + fresh
    if least > max_length:
        text = f"At least {least} tokens are asked for and at most {max_length}, prompt included: no text can end by itself."
        warnings.warn(text, TranseptWarning, stacklevel=3)
    if config.eos_token_id is None or least <= 0:
        return found
    if fresh is None:
        found.append(processors.MinLengthLogitsProcessor(least, config.eos_token_id))
    elif fresh > 0:
        found.append(processors.MinNewTokensLengthLogitsProcessor(prompt_length, fresh, config.eos_token_id))
    return found


def _forced(config: GenerationConfig, prompt_length: int, max_length: int) -> Processors:
    """What must or must not come, at the ends or anywhere."""
    found: Processors = []
    if config.forced_bos_token_id is not None:
        found.append(processors.ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
    if config.forced_eos_token_id is not None:
        found.append(processors.ForcedEOSTokenLogitsProcessor(max_length, config.forced_eos_token_id))
    if config.remove_invalid_values:
        found.append(processors.InfNanRemoveLogitsProcessor())
    if (decay := config.exponential_decay_length_penalty) is not None:
        if config.eos_token_id is None:
            raise InputError("`exponential_decay_length_penalty` needs `eos_token_id`, the token it makes more likely.")
        penalty = (int(decay[0]), decay[1])
        found.append(processors.ExponentialDecayLengthPenalty(penalty, config.eos_token_id, prompt_length))
    if config.suppress_tokens is not None:
        found.append(processors.SuppressTokensLogitsProcessor(config.suppress_tokens))
    if config.begin_suppress_tokens is not None:
        after_forced = prompt_length <= 1 and config.forced_bos_token_id is not None
        begin = prompt_length + 1 if after_forced else prompt_length
        found.append(processors.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin))
    return found


def _sampling(config: GenerationConfig) -> Processors:
    """What shapes the distribution that tokens are sampled from."""
    found: Processors = []
    keep = 1
    if (config.num_beams or 1) > 1:  # a token beside every end, so that each beam can go on
        keep = len(config.eos_token_id) + 1 if isinstance(config.eos_token_id, list) else 2
    if config.temperature is not None and config.temperature != 1:
        found.append(warpers.TemperatureLogitsWarper(config.temperature))
    if config.top_h is not None:
        found.append(warpers.TopHLogitsWarper(config.top_h))
    if config.top_k:
        found.append(warpers.TopKLogitsWarper(config.top_k, min_tokens_to_keep=keep))
    if config.top_p is not None and config.top_p < 1:
        found.append(warpers.TopPLogitsWarper(config.top_p, min_tokens_to_keep=keep))
    if config.min_p is not None:
        found.append(warpers.MinPLogitsWarper(config.min_p, min_tokens_to_keep=keep))
    if config.typical_p is not None and config.typical_p < 1:
        found.append(warpers.TypicalLogitsWarper(config.typical_p, min_tokens_to_keep=keep))
    if config.epsilon_cutoff:
        found.append(warpers.EpsilonLogitsWarper(config.epsilon_cutoff, min_tokens_to_keep=keep))
    if config.eta_cutoff:
        found.append(warpers.EtaLogitsWarper(config.eta_cutoff, min_tokens_to_keep=keep))
    return found


def build_criteria(
    config: GenerationConfig,
    max_length: int,
    *,
    tokenizer: stopping.Vocabulary | None = None,
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
    chain = StoppingCriteriaList([stopping.MaxLengthCriteria(max_length, max_positions)])
    if config.max_time is not None:
        chain.append(stopping.MaxTimeCriteria(config.max_time))
    if config.stop_strings is not None:
        if tokenizer is None:
            raise InputError("`stop_strings` needs the tokenizer.", hint="Pass it: generate(..., tokenizer=tokenizer).")
        chain.append(stopping.StopStringCriteria(tokenizer, config.stop_strings))
    if config.eos_token_id is not None:
        chain.append(stopping.EosTokenCriteria(config.eos_token_id))
    if config.is_assistant and config.assistant_confidence_threshold:
        chain.append(stopping.ConfidenceCriteria(config.assistant_confidence_threshold))
    return chain.with_custom(custom)
