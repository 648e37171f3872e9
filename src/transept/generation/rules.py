"""What settings of generation must keep to: rules that are declared on fields, and contradictions. No torch here.

The settings themselves are in :mod:`transept.generation.config`, which stands above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transept.errors import ConfigError, nearest
from transept.fields import Range
from transept.generation.checks import biases, sequences, token_ids

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
_ARGUMENTS = """
assistant_model assistant_tokenizer logits_processor negative_prompt_attention_mask negative_prompt_ids
prefix_allowed_tokens_fn stopping_criteria streamer synced_gpus tokenizer
"""
NOT_SETTINGS = frozenset(_ARGUMENTS.split())
_STATIC = ("static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked")
_CACHES = (*_STATIC, "offloaded_hybrid", "offloaded_hybrid_chunked", "dynamic", "offloaded", "quantized")
_COMPILE: dict[str, tuple[Any, ...]] = {
    "fullgraph": (bool,),
    "dynamic": (bool,),
    "backend": (str, Callable),
    "mode": (str,),
    "options": (dict,),
}


# --- rules of one field ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usual:
    """The value of every model, where neither the caller nor the model's file says another; it changes nothing."""

    value: Any


@dataclass(frozen=True)
class Unless:
    """The setting has no effect unless a test of all settings holds; ``reason`` completes the sentence that says so."""

    test: Callable[[Any], Any]
    reason: str


@dataclass(frozen=True)
class Form:
    """A list of the form that a function of :mod:`transept.generation.checks` demands."""

    read: Callable[..., Any]

    def check(self, settings: Any, name: str) -> None:
        """Raise ``ConfigError`` for a value of another form."""
        if (value := getattr(settings, name)) is not None:
            self.read(name, value, kind=ConfigError)


SAMPLED = Unless(lambda c: c.do_sample, "without do_sample=True")
CONTRASTED = Unless(lambda c: c.do_sample or c.penalty_alpha, "without do_sample=True")
NOT_SAMPLED = Unless(lambda c: not (c.do_sample and c.penalty_alpha), "with do_sample=True")
PADS = Unless(lambda c: c.pad_token_id >= 0, "as padding, which is an id from 0 on")
BEAMS = Unless(lambda c: beams(c) > 1, "without num_beams above 1")
CACHED = Unless(lambda c: c.use_cache is not False, "without use_cache")
STATIC = Unless(lambda c: c.cache_implementation in _STATIC, "without cache_implementation='static'")
SHOWN = Unless(lambda c: c.return_dict_in_generate, "without return_dict_in_generate=True")
ONE, FROM_ZERO = Range(1), Range(0)
Ids, Sequences, Biases = Form(token_ids), Form(sequences), Form(biases)


def beams(c: Any) -> int:
    """How many beams there are."""
    return c.num_beams or 1


# --- contradictions --------------------------------------------------------------------------------------------------------


def _grouped(c: Any) -> bool:
    return (c.num_beam_groups or 1) > 1


def _is_banned(c: Any, name: str) -> bool:
    forced = set(token_ids(name, getattr(c, name), kind=ConfigError))
    return bool(forced) and forced <= set(c.suppress_tokens or ())


def _stops_nowhere(c: Any) -> bool:
    stops = [c.stop_strings] if isinstance(c.stop_strings, str) else c.stop_strings
    return not (stops and all(stops))


def _decays_wrongly(c: Any) -> bool:
    decay = c.exponential_decay_length_penalty
    return not (len(decay) == 2 and float(decay[0]).is_integer() and min(decay) >= 0)


# For each setting that is given: when it is wrong, what it must be instead ({beams} is their number), and what to do.
CONTRADICTIONS: tuple[tuple[str, Callable[[Any], Any], str, str], ...] = (
    ("stop_strings", _stops_nowhere, "must be one or more non-empty strings", "Use None to stop at none."),
    (
        "exponential_decay_length_penalty",
        _decays_wrongly,
        "must be a number of tokens and a factor",
        "For example (15, 1.05).",
    ),
    (
        "num_beam_groups",
        lambda c: beams(c) % (c.num_beam_groups or 1),
        "must divide `num_beams` ({beams})",
        "Use 1 for no groups.",
    ),
    (
        "num_beam_groups",
        lambda c: _grouped(c) and c.do_sample,
        "must be 1 with `do_sample`",
        "Groups of beams are not sampled: do_sample=False.",
    ),
    (
        "num_beam_groups",
        lambda c: _grouped(c) and not c.diversity_penalty,
        "needs `diversity_penalty` to be above 0",
        "Without a penalty all groups would be alike; 0.5 is usual.",
    ),
    (
        "guidance_scale",
        lambda c: _grouped(c) and c.guidance_scale != 1,
        "must be None with `num_beam_groups`",
        "Each step runs the other prompt once for all beams: num_beam_groups=1.",
    ),
    (
        "output_logprobs",
        lambda c: beams(c) > 1 and c.output_logprobs is not False,
        "must be None with `num_beams` ({beams})",
        "Ask for output_scores=True, and call compute_transition_scores().",
    ),
    (
        "num_return_sequences",
        lambda c: beams(c) == 1 and c.num_return_sequences > 1 and not c.do_sample,
        "must be 1 for greedy decoding",
        "Use do_sample=True or num_beams.",
    ),
    (
        "num_return_sequences",
        lambda c: 1 < beams(c) < c.num_return_sequences,
        "must be at most `num_beams` ({beams})",
        "Use more beams.",
    ),
    (
        "penalty_alpha",
        lambda c: beams(c) > 1 and c.penalty_alpha,
        "must be None with `num_beams` ({beams})",
        "Use num_beams=1 for contrastive search.",
    ),
    (
        "prompt_lookup_num_tokens",
        lambda c: beams(c) > 1,
        "must be None with `num_beams` ({beams})",
        "Drafts are verified for one beam: num_beams=1.",
    ),
    *(
        (
            name,
            lambda c, name=name: _is_banned(c, name),
            "must not be in `suppress_tokens`",
            "Against an early end use min_new_tokens.",
        )
        for name in ("forced_bos_token_id", "forced_eos_token_id")
    ),
    (
        "cache_implementation",
        lambda c: c.cache_implementation not in _CACHES,
        "must be a kind of cache",
        f"Known: {', '.join(sorted(_CACHES))}.",
    ),
)


def check_compile(options: dict[str, Any] | None) -> None:
    """Raise ``ConfigError`` for arguments of ``torch.compile`` that there are not."""
    for name, value in (options or {}).items():
        if name not in _COMPILE:
            raise ConfigError(f"`compile_config` has no setting {name!r}.", hint=nearest(name, _COMPILE))
        if value is not None and not isinstance(value, _COMPILE[name]):
            raise ConfigError(f"`compile_config` has {name!r} of type {type(value).__name__}: {value!r}.")
