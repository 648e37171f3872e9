"""Texts in another language: ``pipeline("translation_en_to_de", model=path)(text)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transept.errors import InputError
from transept.pipelines.tasks.text2text_generation import Text2TextGenerationPipeline, Text2TextOptions


@dataclass(frozen=True)
class TranslationOptions(Text2TextOptions):
    """Options of ``translation``; see also :class:`Text2TextOptions`.

    Args:
        src_lang, tgt_lang: the languages, by the codes of the checkpoint (``en_XX``) where it knows several; those of the
            task's name (``translation_en_to_de``) when absent.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None


class TranslationPipeline(Text2TextGenerationPipeline):
    """``[{"translation_text": ...}]`` for a text; see :class:`Text2TextGenerationPipeline`."""

    task, names = "translation", ("translation_text", "translation_token_ids")
    options_class = TranslationOptions

    def name(self, options: Mapping[str, Any]) -> str:
        return f"translation_{options.get('src_lang')}_to_{options.get('tgt_lang')}"

    def check_options(self, options: Text2TextOptions) -> None:
        assert isinstance(options, TranslationOptions)
        for language in (options.src_lang, options.tgt_lang) if self.multilingual else ():
            if language is not None:
                self.code(language)

    def language(self, options: Text2TextOptions) -> str | None:
        assert isinstance(options, TranslationOptions)
        return options.src_lang if self.multilingual and options.src_lang != self.tokenizer.src_lang else None

    def settings(self, options: Text2TextOptions) -> dict[str, Any]:
        """With the target language as the first token, where the checkpoint knows several."""
        assert isinstance(options, TranslationOptions)
        found = super().settings(options)
        if self.multilingual and options.tgt_lang is not None:
            found["forced_bos_token_id"] = self.code(options.tgt_lang)
        return found

    @property
    def multilingual(self) -> bool:
        return hasattr(self.tokenizer, "src_lang")

    def code(self, language: str) -> int:
        """The token of a language.

        Raises:
            InputError: the checkpoint does not know it.
        """
        found = self.tokenizer.convert_tokens_to_ids(language)
        if found is None or found == self.tokenizer.unk_token_id:
            raise InputError(f"the model knows no language {language!r}.", hint="Use its own codes, such as 'en_XX'.")
        return int(found)
