"""How a model writes text: the settings of ``generate()``, read and written as ``generation_config.json``.

A setting that is ``None`` is not set: the model's own value counts then, and after it the default of all models (see
:meth:`GenerationConfig.fill`). Keys of a file that are not known are kept in ``extra`` and written back. No torch here.
"""

from __future__ import annotations

import copy
import json
import os
import typing
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from transept.config import MAX_CONFIG_BYTES, Config, _checked
from transept.errors import ConfigError, TranseptWarning, UnsupportedError, nearest
from transept.files import dump_json, load_object, make_directory, safe_join, write_text
from transept.generation.checks import biases
from transept.generation.rules import DEFAULTS, NOT_SETTINGS, UNSUPPORTED, check, idle
from transept.generation.watermark_config import Watermark
from transept.publish import Pushable
from transept.source import Source, model_name, take_source_options

GENERATION_CONFIG_NAME = "generation_config.json"
# What a file cannot set: it chooses how code runs, not what comes out.
_NEVER_IN_FILE = frozenset({"compile_config"})
Mode = Literal["greedy", "sample", "beam", "beam_sample", "group_beam", "contrastive", "assisted"]


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class GenerationConfig(Pushable):
    """Settings of ``generate()``, all of them keywords.

    Length, in tokens; the first two count the prompt, and the other two, which win, do not:
        max_length, min_length, max_new_tokens, min_new_tokens; max_time: seconds; stop_strings: need the tokenizer;
        early_stopping: beams end when complete (``True``), if better ones are unlikely (``False``) or impossible (``"never"``).

    Strategy:
        do_sample; num_beams; num_beam_groups and diversity_penalty: beams in groups unlike each other;
        penalty_alpha: contrastive search among the ``top_k``; num_return_sequences: texts a prompt.

    Scores of the next token:
        temperature, top_k, top_p, min_p, top_h, typical_p, epsilon_cutoff, eta_cutoff: with ``do_sample`` only;
        repetition_penalty, encoder_repetition_penalty, no_repeat_ngram_size, encoder_no_repeat_ngram_size, bad_words_ids,
        sequence_bias, suppress_tokens, begin_suppress_tokens, forced_bos_token_id, forced_eos_token_id,
        exponential_decay_length_penalty, guidance_scale, renormalize_logits, remove_invalid_values, watermarking_config;
        length_penalty: the power of its length that a beam's score is divided by.

    Special tokens:
        pad_token_id, bos_token_id, eos_token_id (one or several), decoder_start_token_id (one, or one a row).

    Draft and verify:
        is_assistant, num_assistant_tokens, num_assistant_tokens_schedule, assistant_confidence_threshold,
        assistant_lookbehind, target_lookbehind, assistant_ensemble_weight: with a draft model;
        prompt_lookup_num_tokens, max_matching_ngram_size: drafts out of the prompt.

    Cache and speed:
        use_cache, cache_implementation, cache_config, max_cache_len; prefill_chunk_size: tokens of a prompt at a time;
        disable_compile; compile_config: arguments of ``torch.compile``, never in a file.

    Outputs:
        return_dict_in_generate; output_attentions, output_hidden_states, output_scores, output_logits;
        output_logprobs: of the tokens chosen (``True``), and with a number of that many of the most likely ones too.

    Raises:
        ConfigError: an unknown argument, a value of the wrong type or out of range, settings that contradict each other.
        UnsupportedError: a setting of the reference that this library does not have.
    """

    noun = "config"

    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    early_stopping: bool | Literal["never"] | None = None
    max_time: float | None = None
    stop_strings: str | list[str] | None = None

    do_sample: bool | None = None
    num_beams: int | None = None
    num_beam_groups: int | None = None
    diversity_penalty: float | None = None
    penalty_alpha: float | None = None
    num_return_sequences: int | None = None

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_h: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    encoder_repetition_penalty: float | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    bad_words_ids: list[list[int]] | None = None
    sequence_bias: Any = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = None
    exponential_decay_length_penalty: list[float] | None = None
    guidance_scale: float | None = None
    renormalize_logits: bool | None = None
    remove_invalid_values: bool | None = None
    watermarking_config: dict[str, Any] | None = None

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | list[int] | None = None

    is_assistant: bool | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "heuristic_transient"] | None = None
    assistant_confidence_threshold: float | None = None
    assistant_lookbehind: int | None = None
    target_lookbehind: int | None = None
    assistant_ensemble_weight: float | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None

    use_cache: bool | None = None
    cache_implementation: str | None = None
    cache_config: dict[str, Any] | None = None
    max_cache_len: int | None = None
    prefill_chunk_size: int | None = None
    disable_compile: bool | None = None
    compile_config: dict[str, Any] | None = None

    return_dict_in_generate: bool | None = None
    output_attentions: bool | None = None
    output_hidden_states: bool | None = None
    output_scores: bool | None = None
    output_logits: bool | None = None
    output_logprobs: int | bool | None = None

    if typing.TYPE_CHECKING:
        extra: dict[str, Any]  # no field

    def __init__(self, **settings: Any) -> None:
        self.__dict__["extra"] = {}
        if unknown := self.update(**settings):
            raise _unknown(next(iter(unknown)))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in UNSUPPORTED:
            if value not in (None, False):
                raise UnsupportedError(f"`{name}` is not supported.", hint=UNSUPPORTED[name])
            self.extra.pop(name, None)
        elif name in _NAMES:
            object.__setattr__(self, name, _typed(name, value.to_dict() if isinstance(value, Watermark) else value))
        elif name in self.extra:
            self.extra[name] = value
        else:
            raise _unknown(name)

    def __getattr__(self, name: str) -> Any:
        # Only called where normal look-up failed: a key kept from the file, a setting we lack, or a mistake.
        if name.startswith("__") or "extra" not in self.__dict__:
            raise AttributeError(name)
        if name in self.extra:
            return self.extra[name]
        if name in UNSUPPORTED:
            return None
        raise AttributeError(f"GenerationConfig has no setting {name!r}")

    def update(self, defaults_only: bool = False, allow_custom_entries: bool = False, **settings: Any) -> dict[str, Any]:
        """Change settings; all of them or, where one is wrong, none.

        Args:
            defaults_only: change only those that are not set.
            allow_custom_entries: keep unknown ones in ``extra`` too.
            settings: names and values.

        Returns:
            Those whose names are not known.

        Raises:
            ConfigError: a value of the wrong type or out of range, or settings that contradict each other.
        """
        changed: dict[str, Any] = {}
        unused: dict[str, Any] = {}
        extra = dict(self.extra)
        for name, value in settings.items():
            if not self.knows(name):
                (extra if allow_custom_entries else unused)[name] = value
            elif defaults_only and getattr(self, name) is not None:
                unused[name] = value
            else:
                changed[name] = value
        self._change(changed, extra, warn=True)
        return unused

    def _change(self, settings: dict[str, Any], extra: dict[str, Any], *, warn: bool = False) -> None:
        """Take over settings and kept keys if all of them are right together."""
        twin = copy.copy(self)
        twin.__dict__["extra"] = extra
        for name, value in settings.items():
            setattr(twin, name, value)
        twin.validate(user_set_attributes=settings if warn else ())
        self.__dict__.update(twin.__dict__)

    def validate(self, strict: bool = False, user_set_attributes: Collection[str] | None = None) -> None:
        """Check ranges and combinations.

        Args:
            strict: settings that have no effect are errors too, not only warned of.
            user_set_attributes: settings to warn of where they have no effect; all by default.

        Raises:
            ConfigError: naming the setting, its value and the remedy.
        """
        check(self)
        without = [f"`{name}` ({getattr(self, name)!r}) {reason}" for name, reason in idle(self, user_set_attributes)]
        if without and strict:
            raise ConfigError(f"Settings have no effect: {'; '.join(without)}.")
        if without:
            warnings.warn(f"Settings have no effect: {'; '.join(without)}.", TranseptWarning, stacklevel=5)

    def knows(self, name: str) -> bool:
        """Whether that is a setting, also one that is not supported, or a key kept from the file."""
        return name in _NAMES or name in UNSUPPORTED or name in self.extra

    def fill(self, model: GenerationConfig | None = None) -> None:
        """Set what is not set: from the model's own settings, then from the defaults of all models.

        Lengths stay unset where nobody set them, since their default counts from the prompt. What is set to ``None``
        afterwards is switched off.

        Raises:
            ConfigError: the model's settings contradict these; then nothing changes.
        """
        known = {} if model is None else model.to_diff_dict()
        unset = [name for name in _NAMES if getattr(self, name) is None]
        values = {name: value for name in unset if (value := known.get(name, DEFAULTS.get(name))) is not None}
        if "hybrid" in (self.cache_implementation, values.get("cache_implementation")):
            values["cache_implementation"] = None  # what older files name is what sliding windows get anyway
        kept = {} if model is None else copy.deepcopy(model.extra)
        self._change(values, kept | self.extra)

    @property
    def mode(self) -> Mode:
        """The strategy that the settings ask for; a draft model passed to ``generate`` makes greedy and sample assisted.

        Raises:
            UnsupportedError: the model's file asks for a strategy that this library does not have.
        """
        for name, remedy in UNSUPPORTED.items():
            if self.extra.get(name) not in (None, False):
                raise UnsupportedError(f"`{name}` is not supported.", hint=remedy)
        if (self.num_beams or 1) > 1:
            if (self.num_beam_groups or 1) > 1:
                return "group_beam"
            return "beam_sample" if self.do_sample else "beam"
        if not self.do_sample and self.penalty_alpha and (self.top_k or 0) > 1:
            return "contrastive"
        if self.prompt_lookup_num_tokens is not None:
            return "assisted"
        return "sample" if self.do_sample else "greedy"

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], *, return_unused_kwargs: bool = False, **overrides: Any) -> Any:
        """Build from the content of a ``generation_config.json``, of which unknown keys are kept.

        Args:
            config_dict: the content.
            return_unused_kwargs: return the overrides that are not known, beside the settings, in place of an error.
            overrides: settings that replace the file's.

        Raises:
            ConfigError: naming the setting and its value.
        """
        config = cls()
        for name, value in config_dict.items():
            if name in _NAMES and name not in _NEVER_IN_FILE:
                setattr(config, name, value)
            elif not name.startswith("_") and name not in _NEVER_IN_FILE:
                config.extra[name] = value
        unused = config.update(**overrides)
        if return_unused_kwargs:
            return config, unused
        if unused:
            raise _unknown(next(iter(unused)))
        return config

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name: str | os.PathLike[str], config_file_name: str | None = None, **options: Any
    ) -> Any:
        """Read ``generation_config.json`` of a directory, a repository, or the file itself.

        Args:
            pretrained_model_name: directory, file or repository id.
            config_file_name: another name of the file.
            options: where to look (see :class:`transept.source.Source`), and those of :meth:`from_dict`.

        Raises:
            FileError: there is no such file.
            FormatError: it is no JSON object.
            ConfigError: naming the file, the setting and its value.
        """
        hub, path = take_source_options(options), Path(pretrained_model_name)
        if not path.is_file():
            path = Source(model_name(pretrained_model_name), **hub).need(config_file_name or GENERATION_CONFIG_NAME)
        return cls._read(path, options)

    @classmethod
    def read(cls, source: Source) -> Self:
        """The settings among a model's files; see :meth:`from_pretrained` for errors."""
        return typing.cast("Self", cls._read(source.need(GENERATION_CONFIG_NAME), {}))

    @classmethod
    def _read(cls, path: Path, options: dict[str, Any]) -> Any:
        values = load_object(path, finite=False, max_bytes=MAX_CONFIG_BYTES)
        try:
            return cls.from_dict(values, **options)
        except ConfigError as error:
            error.path = error.path or str(path)
            raise

    @classmethod
    def from_model_config(cls, model_config: Config | Mapping[str, Any]) -> Self:
        """The settings that older files keep in the model's own ``config.json``, or in that of its decoder."""
        values = model_config.to_dict() if isinstance(model_config, Config) else dict(model_config)
        inner: Any = next((values[name] for name in ("decoder", "generator", "text_config") if values.get(name)), {})
        found = {**(inner.to_dict() if isinstance(inner, Config) else inner)}
        found.update((name, value) for name, value in values.items() if value is not None)
        config = cls.from_dict({name: found[name] for name in _NAMES if found.get(name) is not None})
        if values.get("force_bos_token_to_be_generated"):
            config.forced_bos_token_id = config.bos_token_id
        if any(getattr(config, name) for name in _NAMES if name.startswith("output_")):
            config.return_dict_in_generate = True
        return typing.cast("Self", config)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types, with ``None`` for those that are not set, and the kept unknown keys."""
        values = copy.deepcopy(self.extra) | {name: copy.deepcopy(getattr(self, name)) for name in _NAMES}
        if self.sequence_bias is not None:
            values["sequence_bias"] = [[list(ids), bias] for ids, bias in biases("sequence_bias", self.sequence_bias).items()]
        return values

    def to_diff_dict(self) -> dict[str, Any]:
        """Like :meth:`to_dict`, without those that are not set."""
        return {name: value for name, value in self.to_dict().items() if value is not None or name in self.extra}

    def to_json_string(self, use_diff: bool = True) -> str:
        """The text of ``generation_config.json``, with ``use_diff`` without settings that are not set."""
        values = self.to_diff_dict() if use_diff else self.to_dict()
        return dump_json({name: value for name, value in values.items() if name not in _NEVER_IN_FILE})

    def save_pretrained(self, directory: str | os.PathLike[str], config_file_name: str | None = None) -> None:
        """Write ``generation_config.json`` into a directory, which is made where needed.

        Raises:
            ConfigError: settings that were changed one by one and contradict each other.
        """
        check(self)
        write_text(safe_join(make_directory(directory), config_file_name or GENERATION_CONFIG_NAME), self.to_json_string())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GenerationConfig):
            return NotImplemented
        return self._compared() == other._compared()

    __hash__ = None  # type: ignore[assignment]

    def _compared(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_dict().items() if name != "transformers_version"}

    def __repr__(self) -> str:
        return f"GenerationConfig {json.dumps(self.to_diff_dict(), indent=2, sort_keys=True, default=str)}"


_TYPES = typing.get_type_hints(GenerationConfig)
_NAMES = tuple(field.name for field in fields(GenerationConfig))


def _typed(name: str, value: Any) -> Any:
    """``value`` if it is of the setting's type, with whole floats and integers accepted for each other."""
    kind = _TYPES[name]
    if kind == float | None and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind == int | None and isinstance(value, float) and value.is_integer():
        return int(value)
    return _checked(value, kind, name, "GenerationConfig")


def _unknown(name: str) -> ConfigError:
    if name in NOT_SETTINGS:
        return ConfigError(f"`{name}` is no setting.", hint="Pass it to generate() itself.")
    return ConfigError(f"GenerationConfig has no setting {name!r}.", hint=nearest(name, _NAMES))
