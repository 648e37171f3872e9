"""Texts from texts, by encoder–decoders: ``pipeline("text2text-generation", model=path)("question: ...")``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.errors import InputTypeError
from transept.pipelines.batching import Sample
from transept.pipelines.parts import Parts
from transept.pipelines.text import Text, check_text
from transept.pipelines.writing import WritingOptions, WritingPipeline
from transept.preprocess.text.auto import AutoTokenizer


@dataclass(frozen=True)
class Text2TextOptions(WritingOptions):
    """Options of tasks from text to text; see also :class:`WritingOptions`, whose ``max_length`` is that of the answer.

    Args:
        truncation: cut texts that are longer than the model reads, which are an error otherwise.
        prefix: put before each text, as checkpoints of several tasks need it; the checkpoint's own when absent.
    """

    truncation: bool = False
    prefix: str | None = None


class Text2TextGenerationPipeline(WritingPipeline[Text2TextOptions]):
    """``[{"generated_text": ...}]`` for a text, one entry a returned sequence.

    Args:
        model: an encoder–decoder with a head over the vocabulary.
        tokenizer: of the same checkpoint.
        options, batching: see :class:`transept.pipelines.base.Pipeline`.
    """

    task = "text2text-generation"
    # What answers are called: this, and with `return_tensors` the second.
    names: ClassVar[tuple[str, str]] = ("generated_text", "generated_token_ids")
    options_class: ClassVar[type[Text2TextOptions]] = Text2TextOptions

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the model and its tokenizer, and take the checkpoint's settings for the task."""
        model, tokenizer = parts.model(AutoModelForSeq2SeqLM), parts.part("tokenizer", AutoTokenizer.from_pretrained)
        if not model.config.is_encoder_decoder:
            kind = type(model).__name__
            raise InputTypeError(f"the task {cls.task!r} needs an encoder–decoder, but the model is a {kind}.")
        pipe = cls(model, tokenizer, cls.options_class(), **batching)
        pipe.options = pipe.with_options(pipe.specific(options))
        return pipe

    def specific(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The caller's options, laid over what the checkpoint's ``task_specific_params`` say of the task."""
        known = self.model.config.extra.get("task_specific_params")
        found = known.get(self.name(options)) if isinstance(known, Mapping) else None
        if not isinstance(found, Mapping):
            return dict(options)
        settings = self.writer.generation_config
        return {name: value for name, value in found.items() if name == "prefix" or settings.knows(name)} | dict(options)

    def name(self, options: Mapping[str, Any]) -> str:
        """What ``task_specific_params`` call the task."""
        return self.task

    def cutting(self, options: Text2TextOptions) -> tuple[str | None, int]:
        """Texts are cut at what the model reads, where that is asked for."""
        return ("longest_first" if options.truncation else None), self.max_length

    def read(self, item: Any, options: Text2TextOptions) -> list[Text]:
        """The text behind its prefix."""
        return [((options.prefix or "") + check_text(item), None)]

    def forward(self, samples: Sequence[Sample], options: Text2TextOptions) -> Sequence[Any]:
        """For each row, the ids of each of its returned sequences."""
        return self.write(self.collate(samples), options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Text2TextOptions) -> Any:
        """The texts, or their ids."""
        if options.return_tensors:
            return [{self.names[1]: ids} for ids in results[0]]
        return [{self.names[0]: self.text(ids, options)} for ids in results[0]]
