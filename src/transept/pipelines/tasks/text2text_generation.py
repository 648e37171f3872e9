"""Texts from texts, by encoder–decoders: ``pipeline("translation_en_to_de", model=path)(text)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.errors import InputError
from transept.pipelines.batching import Sample
from transept.pipelines.generation import GenerationOptions, GenerationPipeline
from transept.pipelines.text import Text, check_text


class Text2TextOptions(GenerationOptions):
    """Options of tasks from text to text; see also :class:`GenerationOptions`, whose ``max_length`` is that of the answer.

    Args:
        truncation: cut texts that are longer than the model reads, which are an error otherwise.
        prefix: put before each text, as checkpoints of several tasks need it; the checkpoint's own when absent.
    """

    truncation: bool = False
    prefix: str | None = None


class TranslationOptions(Text2TextOptions):
    """Options of ``translation``; see also :class:`Text2TextOptions`.

    Args:
        src_lang, tgt_lang: the languages, by the codes of the checkpoint (``en_XX``) where it knows several; those of the
            task's name (``translation_en_to_de``) when absent.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None


class Text2TextGenerationPipeline(GenerationPipeline):
    """``[{"generated_text": ...}]`` for a text, one entry a returned sequence, by an encoder–decoder."""

    task, auto, options_class = "text2text-generation", AutoModelForSeq2SeqLM, Text2TextOptions
    noun: ClassVar[str] = "generated"  # what answers are called

    def check_model(self) -> None:
        super().check_model()
        self.need(self.model.config.is_encoder_decoder, "has an encoder and a decoder")

    def checkpoint_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What ``task_specific_params`` say of the task."""
        known = self.model.config.extra.get("task_specific_params")
        found = known.get(self.name(given)) if isinstance(known, Mapping) else None
        knows, options = self.generator.generation_config.knows, found if isinstance(found, Mapping) else {}
        return {name: value for name, value in options.items() if name == "prefix" or knows(name)}

    def name(self, options: Mapping[str, Any]) -> str:
        """What ``task_specific_params`` call the task."""
        return self.task

    def read(self, item: Any, options: Any) -> list[Text]:
        return [((options.prefix or "") + check_text(item), None)]

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        return self.generate(self.collate(samples), options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        if options.return_tensors:
            return [{f"{self.noun}_token_ids": ids} for ids in results[0]]
        return [{f"{self.noun}_text": self.text(ids, options)} for ids in results[0]]


class SummarizationPipeline(Text2TextGenerationPipeline):
    """``[{"summary_text": ...}]`` for a text; see :class:`Text2TextGenerationPipeline`."""

    task, noun = "summarization", "summary"


class TranslationPipeline(Text2TextGenerationPipeline):
    """``[{"translation_text": ...}]`` for a text; see :class:`Text2TextGenerationPipeline`."""

    task, noun, options_class = "translation", "translation", TranslationOptions

    def name(self, options: Mapping[str, Any]) -> str:
        return f"translation_{options.get('src_lang')}_to_{options.get('tgt_lang')}"

    def check_options(self, options: Any) -> None:
        for language in (options.src_lang, options.tgt_lang) if self.multilingual else ():
            if language is not None:
                self.code(language)

    def language(self, options: Any) -> str | None:
        return options.src_lang if self.multilingual and options.src_lang != self.tokenizer.src_lang else None

    def settings(self, options: Any) -> dict[str, Any]:
        forced = self.multilingual and options.tgt_lang is not None
        return super().settings(options) | ({"forced_bos_token_id": self.code(options.tgt_lang)} if forced else {})

    @property
    def multilingual(self) -> bool:
        return hasattr(self.tokenizer, "src_lang")

    def code(self, language: str) -> int:
        """The token of a language; an ``InputError`` where the checkpoint does not know it."""
        found = self.tokenizer.convert_tokens_to_ids(language)
        if found is None or found == self.tokenizer.unk_token_id:
            raise InputError(f"the model knows no language {language!r}.", hint="Use its own codes, such as 'en_XX'.")
        return int(found)
