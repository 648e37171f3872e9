"""Configurations: typed settings that read and write the ecosystem's ``config.json``.

A family's config lists its fields under the names of its ``config.json``. Nothing in a file can name code or an
implementation to run. No torch here.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from transept.config.fields import MAX_LAYERS, MAX_SIZE, Range, specs
from transept.config.gguf import settings_of
from transept.config.settings import Settings
from transept.errors import ConfigError, TranseptWarning
from transept.storage.gguf import GGUF, gguf_of
from transept.storage.source import Source, model_name

CONFIG_NAME = "config.json"
MAX_LABELS = 10**6
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_LABELS = ("num_labels", "id2label", "label2id")
_DECODERS = ("decoder", "generator", "text_config")
_SIZE = Range(0, MAX_SIZE)
_TRUTH = dict.fromkeys(("true", "1", "y", "yes"), True) | dict.fromkeys(("false", "0", "n", "no"), False)
# What a file of the reference leaves out where it is as usual.
_USUAL = ("chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict", "is_encoder_decoder")
# Settings that every config of the reference took once, beside those of generate(); they are kept, and most mean nothing.
_REFERENCE = """
add_cross_attention bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id diversity_penalty
do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id gradient_checkpointing is_decoder length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
num_beams num_return_sequences output_past output_scores prefix pruned_heads remove_invalid_values repetition_penalty
return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
tokenizer_class top_k top_p torchscript transformers_version typical_p use_bfloat16 xla_device
"""
_ONCE = frozenset(_REFERENCE.split())


class _TypeName:
    """The type of the weights, kept by its name; read as a ``torch.dtype`` where torch is there."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        name = None if instance is None else instance.__dict__.get("dtype")
        found = vars(sys.modules["torch"]).get(name) if name is not None and "torch" in sys.modules else None
        return found if type(found).__name__ == "dtype" else name

    def __set__(self, instance: Any, value: Any) -> None:
        if value is not None and not isinstance(value, str) and type(value).__name__ != "dtype":
            raise ConfigError(f"`dtype` of {type(instance).__name__} must be a type of weights, but is {str(value)[:80]!r}.")
        instance.__dict__["dtype"] = None if value is None else str(value).removeprefix("torch.")


class _SubConfigs:
    """The classes of nested configs by their names: of a config those that it has, of its class those that it states."""

    def __get__(self, config: Config | None, cls: type[Config]) -> dict[str, type[Config]]:
        if config is None:
            stated: Mapping[str, Any] = getattr(cls, "parts", {})
            return {name: part if isinstance(part, type) else Config for name, part in stated.items()}
        return {name: type(value) for name, value in vars(config).items() if isinstance(value, Config)}


class Config(Settings):
    """Base of all configurations.

    An integer without a range of its own is a size, from 0 to 2**31 - 1.

    Args:
        architectures: class names that the checkpoint was saved from.
        dtype: the weights' type in the checkpoint (``torch_dtype`` in older files); its name, such as ``"float32"``, or a
            ``torch.dtype``.
        chunk_size_feed_forward: positions per chunk in the feed-forward layers; 0 for all at once.
        num_labels, id2label, label2id: the classes of a task head; any one of them gives the others. Numbers may be written as
            text, as in JSON. A ``num_labels`` that is not the number of the names counts, with a warning.
        problem_type: how a sequence classifier reads its labels; inferred from them when absent.
        attn_implementation: ``"eager"``, ``"sdpa"``, ``"flex"`` or ``"flash_attention_2"``, for nested configs, too, or a
            mapping of their names (``""`` for this one) to kernels; not read from or written to files.

    Raises:
        ConfigError: an unknown argument, a value of the wrong type or out of range.
    """

    model_type: ClassVar[str] = ""
    base_model_tp_plan: ClassVar[None] = None  # plans for several devices follow from the roles of layers here
    base_model_pp_plan: ClassVar[None] = None
    keeps_unknown = True
    aliases = {"torch_dtype": "dtype", "name_or_path": "_name_or_path"}
    gguf_keys: ClassVar[Mapping[str, str]] = {}  # keys of GGUF files that only this family has -> settings
    unread = frozenset({"attn_implementation", "auto_map", "trust_remote_code", "custom_pipelines"})
    unwritten = frozenset({"attn_implementation", "num_labels"})

    architectures: list[str] | None = None
    dtype: Any = _TypeName()
    chunk_size_feed_forward: int = 0
    output_attentions: bool = False
    output_hidden_states: bool = False
    return_dict: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    num_labels: int = 2
    id2label: dict[int, str | int] | None = None
    label2id: dict[str | int, int] | None = None
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None
    attn_implementation: str | None = None

    _name_or_path = ""  # where the config was read from

    def __init__(self, **values: Any) -> None:
        # What names its model or its library is the content of a file, which may hold anything.
        is_file = not {"model_type", "transformers_version"}.isdisjoint(values)
        self.fill_in(values, keep=is_file)
        self.validate()

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("dtype") is not None:  # here the newer name counts
            values.pop("torch_dtype", None)
        return super().upgrade(values)

    def fill_in(self, values: Mapping[str, Any], *, keep: bool) -> None:
        own, values = specs(type(self)).keys() | self.aliases.keys(), dict(values)
        kernel = values.pop("_attn_implementation", None) or values.pop("attn_implementation", None)
        values = {name: value for name, value in values.items() if not keep or name[:1] != "_" or name in own}
        model_type = values.pop("model_type", self.model_type)
        if self.model_type and model_type != self.model_type:
            wrong = f"holds a model of type {model_type!r}, but {type(self).__name__} is for {self.model_type!r}."
            raise ConfigError(wrong, hint="Load it with AutoConfig, AutoModel or the class of its own family.")
        count, names = values.get("num_labels"), values.get("id2label")
        if count is not None and isinstance(names, Mapping) and len(names) != count:
            what = f"`num_labels` of {type(self).__name__} is {count}, but `id2label` names {len(names)}"
            warnings.warn(f"{what}: the names are left out.", TranseptWarning, stacklevel=4)
            values = {name: value for name, value in values.items() if name not in ("id2label", "label2id")}
        super().fill_in(values, keep=keep)
        if kernel is not None:  # once there are nested configs, which have it, too
            self.attn_implementation = kernel

    @classmethod
    def filled(cls, values: Mapping[str, Any]) -> Self:
        if cls.__init__.__code__ is Config.__init__.__code__:
            return super().filled(values)
        config = cls(**{"model_type": cls.model_type, **values})  # by a constructor of the user's own
        config.extra.update((name, values[name]) for name in values.keys() & config.extra.keys())
        return config

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        config_file_name: str | None = None,
        *,
        overrides: dict[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """As for all settings; ``overrides`` replace the file's, and may also be given as keyword arguments."""
        values = {**(overrides or {}), **options}
        found: Any = super().from_pretrained(pretrained_model_name_or_path, config_file_name, **values)
        config = found[0] if isinstance(found, tuple) else found  # with return_unused_kwargs
        config.name_or_path = pretrained_model_name_or_path
        return found  # type: ignore[no-any-return]

    @classmethod
    def read(
        cls, name_or_path: str | os.PathLike[str], hub: dict[str, Any], file_name: str | None = None
    ) -> tuple[dict[str, Any], Path]:
        gguf = gguf_of(Source(model_name(name_or_path), **hub))
        return super().read(name_or_path, hub, file_name) if gguf is None else (settings_of(gguf, cls), gguf.paths[0])

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        """The settings of a GGUF file, given those that its keys say; a family adds what they do not say."""
        return values

    def in_gguf(self) -> Self:
        """The config that a GGUF file of such a model is read as, where the format has the same in other words."""
        return self

    def to_gguf(self) -> dict[str, Any]:
        """Settings of a GGUF file that only this family has, under keys without the name of the architecture."""
        return {}

    def knows(self, name: str) -> bool:
        return name in _ONCE or name == "_name_or_path" or super().knows(name)

    def __setattr__(self, name: str, value: Any) -> None:
        name = self.aliases.get(name, name)
        if name == "attn_implementation" and value is not None:
            by_name = value if isinstance(value, Mapping) else {"": value, **dict.fromkeys(self.sub_configs, value)}
            for part in self.sub_configs.keys() & by_name.keys():
                getattr(self, part).attn_implementation = by_name[part]
            value = by_name.get("", getattr(self, name, None))
        if name not in _LABELS:
            super().__setattr__(name, str(value) if name == "_name_or_path" else value)
        elif value is not None or not self.__dict__.get(name):  # `num_labels` makes the others
            if name == "id2label" and isinstance(value, Mapping):
                value = {_number(index): label for index, label in value.items()}
            elif name == "label2id" and isinstance(value, Mapping):
                value = {label: _number(index) for label, index in value.items()}
            super().__setattr__(name, value)
            if value is not None:
                self._follow(name)

    def _follow(self, name: str) -> None:
        """Let the other settings of labels follow the one that was set."""
        own = self.__dict__
        if name == "num_labels":
            Range(0, MAX_LABELS).check(self, name)
            if len(own.get("id2label") or ()) != own["num_labels"]:
                own["id2label"] = _unnamed(own["num_labels"])
                own["label2id"] = {label: i for i, label in own["id2label"].items()}
        elif name == "id2label":
            own["num_labels"] = len(own["id2label"])
            own["label2id"] = {label: i for i, label in own["id2label"].items()}
        elif own.get("id2label") == _unnamed(own["num_labels"]) and len(set(own["label2id"].values())) == len(own["label2id"]):
            given = own["label2id"]
            self.id2label = {i: label for label, i in given.items()}
            own["label2id"] = given

    def validate(self) -> None:
        for name, spec in specs(type(self)).items():
            value, declared = getattr(self, name), spec.by_type.get(Range)
            if isinstance(value, list) and len(value) > MAX_LAYERS:
                self.fail(name, f"must hold at most {MAX_LAYERS} values")
            if type(value) is int and not name.endswith("_id") and (declared is None or declared.low >= 0):
                _SIZE.check(self, name)
            for rule in spec.checks:
                rule.check(self, name)

    def check_model(self) -> None:
        """Check what a model of these settings needs beside: sizes that are multiples of others (``ConfigError``)."""
        for name, spec in specs(type(self)).items():
            for rule in spec.rules:
                if hasattr(rule, "check_model"):
                    rule.check_model(self, name)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types, under the names of ``config.json``, with the kept unknown keys."""
        values = ({"model_type": self.model_type} if self.model_type else {}) | super().to_dict()
        values["dtype"] = self.__dict__.get("dtype")
        if self.id2label == _unnamed(specs(type(self))["num_labels"].default()):
            del values["id2label"], values["label2id"]  # what a file says by silence
        elif self.id2label is not None:
            values["id2label"] = {str(i): label for i, label in self.id2label.items()}
        return values

    def to_diff_dict(self) -> dict[str, Any]:
        """Like :meth:`to_dict`, without what a file says by silence."""
        own, base = specs(type(self)), specs(Config)
        silent = [name for name in _USUAL if getattr(self, name) == base[name].default() == own[name].default()]
        return {name: value for name, value in super().to_diff_dict().items() if name not in silent}

    def update(self, config_dict: Mapping[str, Any]) -> None:
        """Set several settings or attributes; all of them or, where one is wrong, none."""
        self.change(config_dict)

    def update_from_string(self, update_str: str) -> None:
        """Set several settings from a text such as ``"hidden_size=24,use_cache=false"``, by the types of their present values.

        Raises:
            ConfigError: an unknown setting, or a value that it cannot have; then nothing changes.
        """
        values: dict[str, Any] = {}
        for name, equals, text in (pair.partition("=") for pair in update_str.split(",")):
            self.need_known(name)
            old, values[name] = getattr(self, name), text if equals else None
            if isinstance(old, bool):
                values[name] = _TRUTH.get(text.lower(), text)
            elif isinstance(old, int | float):
                with contextlib.suppress(ValueError):  # what is no number is refused with the setting's name
                    values[name] = type(old)(text)
        self.update(values)

    @property
    def _attn_implementation(self) -> str:
        """The attention kernel of models of this config: the one that is set, or ``"sdpa"``."""
        return self.attn_implementation or "sdpa"

    @_attn_implementation.setter
    def _attn_implementation(self, value: str | None) -> None:
        self.attn_implementation = value

    # The older name of ``return_dict``, which can only be read.
    use_return_dict = property(lambda self: self.return_dict)

    sub_configs: ClassVar = _SubConfigs()

    def __iter__(self) -> Iterator[str]:
        """The names of all settings, and of attributes that were added."""
        yield from {**specs(type(self)), **self.extra}

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Config:
        """The config of the part that reads or writes text: a nested one, or this; of one side where one is asked for.

        Raises:
            ConfigError: there are several.
        """
        both = decoder == encoder
        names = [*(["text_encoder"] if both or encoder else []), *(_DECODERS if both or decoder else [])]
        found = {name: part for name in names if isinstance(part := getattr(self, name, None), Config)}
        if len(found) > 1:
            wrong = f"{type(self).__name__} has several configs of texts: {', '.join(found)}."
            raise ConfigError(wrong, hint="Take one of them.")
        if found or both or not self.is_encoder_decoder:
            return next(iter(found.values()), self)
        side, twin = "decoder_" if decoder else "encoder_", copy.deepcopy(self)
        for name in specs(type(self)):
            if name.startswith(side):
                short = name.removeprefix(side)
                short = {"layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}.get(short, short)
                setattr(twin, short, getattr(self, name))
        return twin

    def set_vocab_size(self, size: int) -> None:
        """Say that a model's tables of tokens have so many rows, wherever the config says how many they have."""
        self.get_text_config().vocab_size = size


PretrainedConfig = PreTrainedConfig = Config


def _unnamed(count: int) -> dict[int, str]:
    return {i: f"LABEL_{i}" for i in range(count)}


def _number(index: Any) -> Any:
    """The number of a class, which JSON and older guides write as a text."""
    return int(index) if _NUMBER.fullmatch(str(index)) else index
