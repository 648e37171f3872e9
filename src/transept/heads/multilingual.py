"""Transcription in many languages by one model: a few weights a language, in files of their own (Pratap et al. 2023)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from transept.checkpoint.store import TensorStore
from transept.config import Config
from transept.errors import CheckpointError, InputError, nearest
from transept.heads.audio import A, ForCTC
from transept.source import OPTIONS, Source, take_source_options

# What backbones call their layers for languages where they tell which weights may be new.
_LAYERS = "model.layers.*.adapter*"
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ForMultilingualCTC(ForCTC[A]):
    """Transcription whose head, and small layers inside the backbone, can be exchanged for those of another language.

    A checkpoint holds one language; beside it, ``adapter.<language>.safetensors`` holds those weights for each.
    ``from_pretrained`` loads ``target_lang`` where that is given.
    """

    def __init__(self, config: Config, target_lang: str | None = None) -> None:
        super().__init__(config)
        self.target_lang = target_lang
        self.source: Source | None = None
        if target_lang is not None:
            self._check_language(target_lang)

    def loaded(self, source: Source) -> None:
        super().loaded(source)
        self.source = source
        if self.target_lang is not None:
            self.load_adapter(self.target_lang)
        self.source = replace(source, token=None, force_download=False)  # a copy of the model is no place for a token

    def load_adapter(self, target_lang: str, force_load: bool = True, **options: Any) -> None:
        """Exchange the weights of the language, the head's among them; the vocabulary may change its size.

        The tokenizer's part is ``tokenizer.set_target_lang(target_lang)``.

        Args:
            target_lang: such as ``"fra"`` or ``"azj-script_latin"``.
            force_load: load also what was loaded last.
            options: where to look, in place of how the model was loaded (see :class:`transept.source.Source`).

        Raises:
            InputError: a model without such layers or not from a checkpoint, or no name of a language.
            FileError: there is no file for the language.
            CheckpointError: its weights and the model do not fit; lists every name.
        """
        self._check_language(target_lang)
        if target_lang == self.target_lang and not force_load:
            return
        if self.source is None:
            what = "the model was not loaded from a checkpoint, beside which the files of languages are."
            raise InputError(what, hint="Use from_pretrained.")
        hub = take_source_options(options)
        for name in options:
            raise InputError(f"load_adapter has no option {name!r}.", hint=nearest(name, OPTIONS))
        store = TensorStore([_file(replace(self.source, **hub), target_lang)])
        names = self._matched(store)
        rows = store["lm_head.weight"].shape[0]
        if rows != self.lm_head.out_features:
            head = nn.Linear(self.lm_head.in_features, rows, device=self.device, dtype=self.dtype)
            self.lm_head = head.train(self.training)
            self.config.vocab_size = rows
        self.load_state_dict({name: store[stored] for stored, name in names.items()}, strict=False)
        self.target_lang = target_lang

    def init_adapter_layers(self) -> None:
        """Initialise the weights of the language anew."""
        self.initialize(self._adapted())

    def _adapted(self) -> list[str]:
        names = self.checkpoint_names()
        return [name for name in self.state_dict() if names.group(name) in ("lm_head", _LAYERS)]

    def _check_language(self, target_lang: object) -> None:
        names = self.checkpoint_names()
        if all(names.group(name) != _LAYERS for name in self.state_dict()):
            raise InputError(
                f"`target_lang` is {target_lang!r:.80}, but the model has no layers for languages.",
                hint="Its config sets `adapter_attn_dim` where there are some.",
            )
        if not isinstance(target_lang, str) or not _LANGUAGE.fullmatch(target_lang):
            raise InputError(f"`target_lang` must be the name of a language such as 'fra', but is {target_lang!r:.80}.")

    def _matched(self, store: TensorStore) -> dict[str, str]:
        """The names of a language's weights, stored -> ours, which must fit but for the head's number of rows."""
        own, keys = self.state_dict(), self.checkpoint_names().keys
        names = {keys.recipe(name).stored: name for name in self._adapted()}
        head = store.get("lm_head.weight")

        def fits(stored: str, name: str) -> bool:
            rows = (own[name] if head is None or not name.startswith("lm_head.") else head).shape[:1]
            return stored not in store or store[stored].shape == rows + own[name].shape[1:]

        wrong = {
            "missing": sorted(names.keys() - store.keys()),
            "unexpected": sorted(store.keys() - names.keys()),
            "mismatched": [stored for stored, name in names.items() if not fits(stored, name)],
        }
        if any(wrong.values()):
            said = "; ".join(f"{kind}: {', '.join(some)}" for kind, some in wrong.items() if some)
            what = f"does not hold the weights of a language for this {type(self).__name__} ({said})."
            missing, unexpected, mismatched = wrong.values()
            path = store.files[0]
            raise CheckpointError(what, path=path, missing=missing, unexpected=unexpected, mismatched=mismatched)
        return names


def _file(source: Source, target_lang: str) -> Path:
    name = f"adapter.{target_lang}.safetensors"
    if (path := source.find(name)) is not None:
        return path
    names = [] if source.directory is None else [path.name for path in source.directory.glob("adapter.*.safetensors")]
    hint = nearest(target_lang, (name.split(".")[1] for name in names)) if names else None
    raise source.missing(name, hint=hint)
