"""How a model writes text: the settings of ``generate()``, read and written as ``generation_config.json``. No torch here.

A setting that is ``None`` is not set: the model's own value counts then, and after it the usual one of all models.
"""

from __future__ import annotations

import copy
import enum
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from transept.config.fields import Range, checked, plain, specs
from transept.config.model import Config
from transept.config.settings import Settings
from transept.errors import ConfigError, TranseptWarning, UnsupportedError, refuse
from transept.generation import rules
from transept.generation.rules import UNSUPPORTED, Form, Unless, Usual, biases, number
from transept.storage.files import PathName

GENERATION_CONFIG_NAME = "generation_config.json"
Mode = Literal["greedy", "sample", "beam", "beam_sample", "group_beam", "contrastive", "assisted"]
Schedule = Literal["constant", "heuristic", "heuristic_transient"]

# What is declared on several fields.
SAMPLED = Unless(lambda c: c.do_sample, "without do_sample=True")
CONTRASTED = Unless(lambda c: c.do_sample or c.penalty_alpha, "without do_sample=True")
NOT_SAMPLED = Unless(lambda c: not (c.do_sample and c.penalty_alpha), "with do_sample=True")
PADS = Unless(lambda c: c.pad_token_id >= 0, "as padding, which is an id from 0 on")
BEAMS = Unless(lambda c: (c.num_beams or 1) > 1, "without num_beams above 1")
CACHED = Unless(lambda c: c.use_cache is not False, "without use_cache")
STATIC = Unless(lambda c: c.cache_implementation in rules.STATIC_CACHES, "without cache_implementation='static'")
SHOWN = Unless(lambda c: c.return_dict_in_generate, "without return_dict_in_generate=True")
IDS, SEQUENCES, BIASES, OPTIONS = map(Form, (rules.token_ids, rules.sequences, biases, rules.compile_options))
ONE, FROM_ZERO = Range(1), Range(0)
TEMPERATURE = Range(0, open="(", remedy="For greedy decoding use do_sample=False.")
PENALTY = Range(0, open="(", remedy="Use 1.0 for no penalty.")
CUTOFF = Range(0, 1, open=")", remedy="Use 0.0 to keep all tokens.")
WEIGHT = Range(0, 1, open="()", remedy="Use None for the model's own distribution.")
WRITTEN = Range(-2, 2, remedy="Use 0.0 for no penalty.")
NGRAM = Range(0, remedy="Use 0 to allow every n-gram.")


class GenerationMode(enum.StrEnum):
    """The strategies under the reference's names."""

    GREEDY_SEARCH, SAMPLE = enum.auto(), enum.auto()
    BEAM_SEARCH, BEAM_SAMPLE, GROUP_BEAM_SEARCH = enum.auto(), enum.auto(), enum.auto()
    CONTRASTIVE_SEARCH, ASSISTED_GENERATION = enum.auto(), enum.auto()


class CompileConfig(dict[str, Any]):
    """Arguments of ``torch.compile`` for the setting ``compile_config``; what is ``None`` is left to the library."""

    def __init__(
        self,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., Any] = "inductor",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        given = {"fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "options": options}
        super().__init__({name: value for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


class GenerationConfig(Settings):
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
        presence_penalty, frequency_penalty: of tokens that were written, not of the prompt's;
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

    file_name = GENERATION_CONFIG_NAME
    keeps_unknown = True
    unread = frozenset({"compile_config"})  # it chooses how code runs, not what comes out
    _beside: ClassVar[frozenset[str]] = frozenset()  # settings that the model reads beside those of all models

    max_length: Annotated[int | None, ONE] = None
    max_new_tokens: Annotated[int | None, Range(1, remedy="To only read the prompt call the model itself.")] = None
    min_length: Annotated[int | None, FROM_ZERO] = None
    min_new_tokens: Annotated[int | None, FROM_ZERO] = None
    early_stopping: Annotated[bool | Literal["never"] | None, Usual(False), BEAMS] = None
    max_time: Annotated[float | None, FROM_ZERO] = None
    stop_strings: str | list[str] | None = None

    do_sample: Annotated[bool | None, Usual(False)] = None
    num_beams: Annotated[int | None, Range(1, remedy="Use 1 for no beam search."), Usual(1)] = None
    num_beam_groups: Annotated[int | None, Range(1, remedy="Use 1 for no groups."), Usual(1)] = None
    diversity_penalty: Annotated[float | None, FROM_ZERO, Usual(0.0)] = None
    penalty_alpha: Annotated[float | None, Range(0, 1, remedy="Use None for no contrastive search."), NOT_SAMPLED] = None
    num_return_sequences: Annotated[int | None, ONE, Usual(1)] = None

    temperature: Annotated[float | None, TEMPERATURE, Usual(1.0), SAMPLED] = None
    top_k: Annotated[int | None, Range(0, remedy="Use 0 to keep all tokens."), Usual(50), CONTRASTED] = None
    top_p: Annotated[float | None, Range(0, 1, remedy="Use 1.0 to keep all tokens."), Usual(1.0), SAMPLED] = None
    min_p: Annotated[float | None, Range(0, 1, remedy="Use None to keep all tokens."), SAMPLED] = None
    top_h: Annotated[float | None, Range(0, 1, open="(", remedy="Use None to keep all tokens."), SAMPLED] = None
    typical_p: Annotated[float | None, Range(0, 1, open="(", remedy="Use 1.0 to keep all tokens."), Usual(1.0), SAMPLED] = None
    epsilon_cutoff: Annotated[float | None, CUTOFF, Usual(0.0), SAMPLED] = None
    eta_cutoff: Annotated[float | None, CUTOFF, Usual(0.0), SAMPLED] = None
    repetition_penalty: Annotated[float | None, PENALTY, Usual(1.0)] = None
    encoder_repetition_penalty: Annotated[float | None, PENALTY, Usual(1.0)] = None
    presence_penalty: Annotated[float | None, WRITTEN] = None
    frequency_penalty: Annotated[float | None, WRITTEN] = None
    length_penalty: Annotated[float | None, Usual(1.0), BEAMS] = None
    no_repeat_ngram_size: Annotated[int | None, NGRAM, Usual(0)] = None
    encoder_no_repeat_ngram_size: Annotated[int | None, NGRAM, Usual(0)] = None
    bad_words_ids: Annotated[list[list[int]] | None, SEQUENCES] = None
    sequence_bias: Annotated[Any, BIASES] = None
    suppress_tokens: Annotated[list[int] | None, IDS] = None
    begin_suppress_tokens: Annotated[list[int] | None, IDS] = None
    forced_bos_token_id: Annotated[int | None, FROM_ZERO] = None
    forced_eos_token_id: Annotated[int | list[int] | None, IDS] = None
    exponential_decay_length_penalty: list[float] | None = None
    guidance_scale: float | None = None
    renormalize_logits: bool | None = None
    remove_invalid_values: Annotated[bool | None, Usual(False)] = None
    watermarking_config: rules.Watermark | None = None

    pad_token_id: Annotated[int | None, PADS] = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: Annotated[int | list[int] | None, IDS] = None

    is_assistant: bool | None = None
    num_assistant_tokens: Annotated[int | None, ONE, Usual(20)] = None
    num_assistant_tokens_schedule: Annotated[Schedule | None, Usual("constant")] = None
    assistant_confidence_threshold: Annotated[float | None, Range(0, 1), Usual(0.4)] = None
    assistant_lookbehind: Annotated[int | None, ONE, Usual(10)] = None
    target_lookbehind: Annotated[int | None, ONE, Usual(10)] = None
    assistant_ensemble_weight: Annotated[float | None, WEIGHT] = None
    prompt_lookup_num_tokens: Annotated[int | None, Range(1, remedy="Use None for no drafts.")] = None
    max_matching_ngram_size: Annotated[int | None, ONE] = None

    use_cache: Annotated[bool | None, Usual(True)] = None
    cache_implementation: Annotated[str | None, CACHED] = None
    cache_config: Annotated[dict[str, Any] | None, CACHED] = None
    max_cache_len: Annotated[int | None, ONE, STATIC] = None
    prefill_chunk_size: Annotated[int | None, Range(1, remedy="Use None to read the prompt at once.")] = None
    disable_compile: bool | None = None
    compile_config: Annotated[dict[str, Any] | None, OPTIONS] = None

    return_dict_in_generate: Annotated[bool | None, Usual(False)] = None
    output_attentions: Annotated[bool | None, SHOWN] = None
    output_hidden_states: Annotated[bool | None, SHOWN] = None
    output_scores: Annotated[bool | None, Usual(False), SHOWN] = None
    output_logits: Annotated[bool | None, SHOWN] = None
    output_logprobs: Annotated[int | bool | None, Range(0, remedy="Use None for no log-probabilities."), SHOWN] = None

    def __init__(self, **values: Any) -> None:
        self.fill_in(values, keep=False)
        if values:  # nothing is set without
            self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in UNSUPPORTED:
            refuse(value not in (None, False), f"`{name}` is not supported.", UNSUPPORTED[name], UnsupportedError)
            self.extra.pop(name, None)
        else:
            if name not in specs(GenerationConfig) and not self.knows(name) and name[:1] != "_":
                self.warn_of([name])
            if name == "watermarking_config" and isinstance(value, Mapping | rules.Watermark):
                value = rules.watermark(checked(plain(value), dict, name, type(self).__name__))
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        return None if name in UNSUPPORTED and name not in self.extra else super().__getattr__(name)

    def update(self, defaults_only: bool = False, allow_custom_entries: bool = False, **settings: Any) -> dict[str, Any]:
        """Change settings; all of them or, where one is wrong, none (``ConfigError``).

        Args:
            defaults_only: change only those that are not set.
            allow_custom_entries: keep unknown ones in ``extra`` too.

        Returns:
            Those whose names are not known.
        """
        known = [name for name in settings if self.knows(name)]
        changed = [name for name in known if not defaults_only or getattr(self, name) is None]
        custom = [name for name in settings if allow_custom_entries and name not in known]
        self.change({name: settings[name] for name in changed}, self.extra | {name: settings[name] for name in custom})
        return {name: value for name, value in settings.items() if name not in (*changed, *custom)}

    def change(self, settings: Mapping[str, Any], kept: dict[str, Any] | None = None) -> None:
        """Set several settings, and with them the kept keys; all of them or, where one is wrong, none."""
        twin = copy.copy(self)
        twin.__dict__["_extra"] = dict(self.extra) if kept is None else kept
        for name, value in settings.items():
            setattr(twin, name, value)
        twin.validate(user_set_attributes=settings)
        self.__dict__.update(twin.__dict__)

    def validate(self, strict: bool = False, user_set_attributes: Collection[str] | None = None) -> None:
        """Check ranges and combinations (``ConfigError``); where settings have no effect, warn, or with ``strict`` refuse them.

        ``user_set_attributes`` are the settings to warn of; all by default.
        """
        self.check()
        idle = []
        for name, rule in CONDITIONS.items():
            value = getattr(self, name)
            given = value is not None and value is not False and value != DEFAULTS.get(name)
            asked = user_set_attributes is None or name in user_set_attributes
            if asked and given and not rule.test(self):
                idle.append(f"`{name}` ({value!r}) {rule.reason}")
        if idle:
            refuse(strict, said := f"Settings have no effect: {'; '.join(idle)}.", kind=ConfigError)
            warnings.warn(said, TranseptWarning, stacklevel=3)

    def check(self) -> None:
        greedy = self.temperature == 0 and self.do_sample is False
        for name, spec in specs(GenerationConfig).items():
            if self.__dict__.get(name) is None or (name == "temperature" and greedy):
                continue
            for rule in spec.checks:
                rule.check(self, name)
        for name, is_wrong, rule, remedy in rules.contradictions(self):
            if is_wrong:
                self.fail(name, rule, remedy)

    def knows(self, name: str) -> bool:
        return name in UNSUPPORTED or super().knows(name)

    def need_known(self, name: str) -> None:
        _refuse_arguments([name])
        super().need_known(name)

    def warn_of(self, unknown: Sequence[str], likeness: float | None = None) -> None:
        if likeness is None:
            _refuse_arguments(unknown)
        super().warn_of([name for name in unknown if name not in self._beside], likeness)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name: PathName, config_file_name: str | None = None, **options: Any
    ) -> Self:
        return super().from_pretrained(pretrained_model_name, config_file_name, **options)

    def fill(self, model: GenerationConfig | None = None) -> None:
        """Set what is not set: from the model's own settings, then from the usual ones of all models.

        Lengths stay unset where nobody set them, since their default counts from the prompt. What is set to ``None``
        afterwards is switched off. Where the model's settings contradict these, nothing changes (``ConfigError``).
        """
        values: dict[str, Any] = {}
        for name in specs(GenerationConfig):
            if getattr(self, name) is None:
                value = None if model is None else getattr(model, name)
                value = DEFAULTS.get(name) if value is None else value
                if value is not None:
                    values[name] = copy.deepcopy(value)
        if "hybrid" in (self.cache_implementation, values.get("cache_implementation")):
            values["cache_implementation"] = None  # what older files name is what sliding windows get anyway
        kept = {} if model is None else copy.deepcopy(model.extra)
        twin = copy.copy(self)
        twin.__dict__.update(values, _extra=kept | self.extra)  # values that have been checked already, but not together
        twin.check()
        self.__dict__.update(twin.__dict__)

    @property
    def mode(self) -> Mode:
        """The strategy that the settings ask for; a draft model passed to ``generate`` makes greedy and sample assisted."""
        for name, remedy in UNSUPPORTED.items():
            refuse(self.extra.get(name) not in (None, False), f"`{name}` is not supported.", remedy, UnsupportedError)
        if (self.num_beams or 1) > 1:
            if (self.num_beam_groups or 1) > 1:
                return "group_beam"
            return "beam_sample" if self.do_sample else "beam"
        if not self.do_sample and self.penalty_alpha and (self.top_k or 0) > 1:
            return "contrastive"
        if self.prompt_lookup_num_tokens is not None:
            return "assisted"
        return "sample" if self.do_sample else "greedy"

    def get_generation_mode(self, assistant_model: Any = None) -> GenerationMode:
        """The strategy under the reference's name; with a draft model it is assisted where that is possible."""
        mode = "assisted" if assistant_model is not None and self.mode in ("greedy", "sample") else self.mode
        long = {"beam_sample": mode, "sample": mode, "assisted": "assisted_generation"}
        return GenerationMode(long.get(mode, f"{mode}_search"))

    @classmethod
    def from_model_config(cls, model_config: Config | Mapping[str, Any]) -> Self:
        """The settings that older files keep in the model's own ``config.json``, or in that of its decoder."""
        values = model_config.to_dict() if isinstance(model_config, Config) else dict(model_config)
        inner: Any = next((values[name] for name in ("decoder", "generator", "text_config") if values.get(name)), {})
        found = {**(inner.to_dict() if isinstance(inner, Config) else inner)}
        found.update((name, value) for name, value in values.items() if value is not None)
        config = cls.from_dict({name: found[name] for name in specs(cls) if found.get(name) is not None})
        if values.get("force_bos_token_to_be_generated"):
            config.forced_bos_token_id = config.bos_token_id
        if any(getattr(config, name) for name in specs(cls) if name.startswith("output_")):
            config.return_dict_in_generate = True
        return config

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.sequence_bias is not None:
            values["sequence_bias"] = [[list(ids), bias] for ids, bias in biases("sequence_bias", self.sequence_bias).items()]
        return values

    def __eq__(self, other: object) -> bool:
        silent = {"transformers_version": None}
        return isinstance(other, GenerationConfig) and self.to_dict() | silent == other.to_dict() | silent

    __hash__ = None


def _refuse_arguments(names: Iterable[str]) -> None:
    for name in names:
        refuse(name in rules.NOT_SETTINGS, f"`{name}` is no setting.", "Pass it to generate() itself.", ConfigError)


DEFAULTS: dict[str, Any] = {
    name: spec.by_type[Usual].value for name, spec in specs(GenerationConfig).items() if Usual in spec.by_type
}
CONDITIONS: dict[str, Unless] = {
    name: spec.by_type[Unless] for name, spec in specs(GenerationConfig).items() if Unless in spec.by_type
}


def setting(name: str, value: Any, *, whole: bool = False) -> Any:
    """A number that the setting of that name may have; ``InputError`` for others."""
    return number(name, value, specs(GenerationConfig)[name].by_type[Range], whole=whole)
