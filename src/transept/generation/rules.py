"""What settings of generation must keep to: checks of values, rules of fields, contradictions, watermarks. No torch here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, NoReturn, Self, TypeVar

from transept.config.fields import Range, checked, specs
from transept.errors import ConfigError, InputError, InputTypeError, TranseptError, TranseptWarning, nearest, refuse

Kind = type[TranseptError]


def number(name: str, value: Any, allowed: Range, *, whole: bool = False) -> Any:
    """``value`` if it is a number of that range: an ``int`` if ``whole``, else a ``float``."""
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    what = f"`{name}` must be {'a whole number' if whole else 'a number'} {allowed}, but is {str(value)[:80]!r}."
    refuse(not right or value not in allowed, what, allowed.remedy)
    return value if whole else float(value)


def token_ids(name: str, value: Any, *, kind: Kind = InputError) -> list[int]:
    """An id, or a list, array or tensor of ids, as a list of whole numbers from 0 on."""
    try:
        listed = value.tolist() if hasattr(value, "tolist") else value
    except (RuntimeError, TypeError):  # a tensor that is nested, sparse or without values
        listed = value
    ids = [listed] if isinstance(listed, int) else listed
    if isinstance(ids, list | tuple | set | frozenset | range):
        ids = [index.item() if hasattr(index, "item") else index for index in ids]
        if all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in ids):
            return ids
    raise kind(f"`{name}` must be a token id or a list of them, from 0 on, but is {str(value)[:80]!r}.")


def sequences(name: str, value: Any, *, kind: Kind = InputError) -> list[list[int]]:
    """A list of one or more sequences of token ids, none of them empty."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(row, list | tuple) and row for row in value):
        raise kind(f"`{name}` must be a non-empty list of non-empty lists of token ids, but is {str(value)[:80]!r}.")
    return [token_ids(name, row, kind=kind) for row in value]


def biases(name: str, value: Any, *, kind: Kind = InputError) -> dict[tuple[int, ...], float]:
    """Sequences of tokens and what is added to their scores, from ``{(1, 2): 3.0}`` or ``[[[1, 2], 3.0]]``."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    paired = isinstance(pairs, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    if not paired or not pairs:
        form = "{(1, 2): 3.0} or [[[1, 2], 3.0]]"
        raise kind(f"`{name}` must be of the form {form} and not empty, but is {str(value)[:80]!r}.")
    found = {}
    for ids, bias in pairs:
        if not isinstance(bias, int | float) or isinstance(bias, bool) or math.isnan(bias):
            raise kind(f"`{name}` must hold numbers as biases, but holds {str(bias)[:80]!r} for {str(ids)[:80]}.")
        found[tuple(sequences(name, [ids], kind=kind)[0])] = float(bias)
    return found


T = TypeVar("T")


class Chain(list[T]):
    """Callables that are applied in order to every new token."""

    def with_custom(self, custom: Iterable[T] | None) -> Self:
        """A chain in which the caller's steps take the place of those of the same class, and the others follow."""
        steps = list(custom or ())
        for step in steps:
            what = f"{str(step)[:80]!r} of type {type(step).__name__} cannot be called on ids and scores."
            refuse(not callable(step), what, kind=InputTypeError)
        chosen = {type(step): step for step in reversed(steps)}
        for kind in [type(step) for step in self if type(step) in chosen]:
            what = f"The {kind.__name__} passed in replaces the one made from the settings."
            warnings.warn(what, TranseptWarning, stacklevel=2)
        kept = [chosen.get(type(step), step) for step in self]
        return type(self)([*kept, *(step for step in steps if not any(step is other for other in kept))])


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
    """A list of the form that one of the functions above demands."""

    read: Callable[..., Any]

    def check(self, settings: Any, name: str) -> None:
        if (value := getattr(settings, name)) is not None:
            self.read(name, value, kind=ConfigError)


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
# What a call of generate() is given beside settings and the model's inputs.
MORE: tuple[str, ...] = ("logits_processor", "stopping_criteria", "assistant_model", "tokenizer", "assistant_tokenizer")
MORE += ("prefix_allowed_tokens_fn", "negative_prompt_ids", "negative_prompt_attention_mask")
NOT_SETTINGS = frozenset((*MORE, "streamer", "synced_gpus"))
STATIC_CACHES = ("static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked")
_CACHES = (*STATIC_CACHES, "offloaded_hybrid", "offloaded_hybrid_chunked", "dynamic", "offloaded", "quantized")
_COMPILE: dict[str, Any] = {"fullgraph": bool, "dynamic": bool, "backend": (str, Callable), "mode": str, "options": dict}


def contradictions(c: Any) -> Iterator[tuple[str, Any, str, str]]:
    """Of settings: a name, whether its value is wrong beside the others, what it must be instead, and what to do."""
    beams, groups, decay = c.num_beams or 1, c.num_beam_groups or 1, c.exponential_decay_length_penalty
    stops = [c.stop_strings] if isinstance(c.stop_strings, str) else c.stop_strings
    endless = stops is not None and not all(stops or [""])
    yield "stop_strings", endless, "must be one or more non-empty strings", "Use None to stop at none."
    odd = decay is not None and not (len(decay) == 2 and float(decay[0]).is_integer() and min(decay) >= 0)
    yield "exponential_decay_length_penalty", odd, "must be a number of tokens and a factor", "For example (15, 1.05)."
    name, remedy = "num_beam_groups", "Without a penalty all groups would be alike; 0.5 is usual."
    yield name, beams % groups, f"must divide `num_beams` ({beams})", "Use 1 for no groups."
    yield name, groups > 1 and c.do_sample, "must be 1 with `do_sample`", "Groups of beams are not sampled: do_sample=False."
    yield name, groups > 1 and not c.diversity_penalty, "needs `diversity_penalty` to be above 0", remedy
    guided, remedy = c.guidance_scale not in (None, 1), "Each step runs the other prompt once for all beams: num_beam_groups=1."
    yield "guidance_scale", groups > 1 and guided, "must be None with `num_beam_groups`", remedy
    none = f"must be None with `num_beams` ({beams})"
    shown = c.output_logprobs is not None and c.output_logprobs is not False
    remedy = "Ask for output_scores=True, and call compute_transition_scores()."
    yield "output_logprobs", beams > 1 and shown, none, remedy
    name, count = "num_return_sequences", c.num_return_sequences or 1
    yield name, beams == 1 < count and not c.do_sample, "must be 1 for greedy decoding", "Use do_sample=True or num_beams."
    yield name, 1 < beams < count, f"must be at most `num_beams` ({beams})", "Use more beams."
    yield "penalty_alpha", beams > 1 and c.penalty_alpha, none, "Use num_beams=1 for contrastive search."
    drafts = beams > 1 and c.prompt_lookup_num_tokens is not None
    yield "prompt_lookup_num_tokens", drafts, none, "Drafts are verified for one beam: num_beams=1."
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        forced = [] if getattr(c, name) is None else token_ids(name, getattr(c, name), kind=ConfigError)
        banned = bool(forced) and set(forced) <= set(c.suppress_tokens or ())
        yield name, banned, "must not be in `suppress_tokens`", "Against an early end use min_new_tokens."
    unknown = c.cache_implementation not in (None, *_CACHES)
    yield "cache_implementation", unknown, "must be a kind of cache", f"Known: {', '.join(sorted(_CACHES))}."


def compile_options(name: str, options: dict[str, Any], *, kind: Kind = InputError) -> None:
    """Refuse arguments of ``torch.compile`` that there are not."""
    for key, value in options.items():
        if key not in _COMPILE:
            raise kind(f"`{name}` has no setting {key!r}.", hint=nearest(key, _COMPILE))
        wrong = value is not None and not isinstance(value, _COMPILE[key])
        refuse(wrong, f"`{name}` has {key!r} of type {type(value).__name__}: {value!r}.", kind=kind)


_TABLE = 2**24


@dataclass(frozen=True)
class Watermark:
    """Settings of a watermark, which are checked (``ConfigError``), and go to a dict and back."""

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            object.__setattr__(self, name, checked(getattr(self, name), spec.kind, name, "watermarking_config"))
            for rule in spec.rules:
                rule.check(self, name)

    def fail(self, name: str, rule: str, remedy: str | None = None) -> NoReturn:
        raise ConfigError(f"`{name}` {rule}, but is {str(getattr(self, name))[:80]!r}.", hint=remedy)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **more: Any) -> Self:
        """The settings of a mapping; ``ConfigError`` for one that there is not, that is missing, or that has a wrong value."""
        given, known = {**settings, **more}, {field.name: field for field in fields(cls)}
        for name in [each for each in given if each not in known]:
            raise ConfigError(f"`watermarking_config` has no setting {name!r}.", hint=nearest(str(name), known))
        for name in [name for name, field in known.items() if field.default is MISSING and name not in given]:
            raise ConfigError(f"`watermarking_config` lacks {name!r}.", hint="A marked text can only be told by it.")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class WatermarkingConfig(Watermark):
    """A watermark of favoured tokens (Kirchenbauer et al. 2023): which ones they are follows from the tokens before.

    Args:
        greenlist_ratio: the share of the vocabulary that is favoured.
        bias: what is added to the logits of those.
        hashing_key: the secret.
        seeding_scheme: ``lefthash``, by the last token, or ``selfhash``, by the token itself too, which is slow.
        context_width: how many tokens before count.
    """

    greenlist_ratio: Annotated[float, Range(0, 1, open="()")] = 0.25
    bias: Annotated[float, Range(-1e9, 1e9)] = 2.0
    hashing_key: Annotated[int, Range(1)] = 15485863
    seeding_scheme: str = "lefthash"
    context_width: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeding_scheme not in ("lefthash", "selfhash"):
            self.fail("seeding_scheme", "must be one of lefthash, selfhash")


@dataclass(frozen=True)
class SynthIDTextWatermarkingConfig(Watermark):
    """A watermark by a tournament of tokens (Dathathri et al. 2024), which leaves the distribution of texts as it is.

    Args:
        ngram_len: tokens that decide a draw, the new one included.
        keys: the secret, one number for each round of the tournament.
        context_history_size: contexts that are remembered, since one that comes again is not marked again.
        sampling_table_seed, sampling_table_size: of the table of random bits.
        skip_first_ngram_calls: leave the first ``ngram_len - 1`` tokens unmarked.
        debug_mode: mark as if all tokens were equally likely.
    """

    ngram_len: Annotated[int, Range(2, 2**16)]
    keys: Annotated[list[int], Range(0, 2**63 - 1)]
    context_history_size: Annotated[int, Range(1, _TABLE)] = 1024
    sampling_table_seed: Annotated[int, Range(0)] = 0
    sampling_table_size: Annotated[int, Range(1, _TABLE)] = 2**16
    skip_first_ngram_calls: bool = False
    debug_mode: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keys:
            self.fail("keys", "must be one or more numbers")


def watermark(settings: Mapping[str, Any]) -> Watermark:
    """The kind of watermark that settings are of: that with ``keys``, or else that with favoured tokens."""
    return (SynthIDTextWatermarkingConfig if "keys" in settings else WatermarkingConfig).from_dict(settings)
