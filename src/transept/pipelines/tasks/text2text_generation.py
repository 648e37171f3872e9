"""Texts from texts, by encoder–decoders: ``pipeline("text2text-generation", model=path)("question: ...")``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.errors import InputTypeError
from transept.pipelines.batching import Sample
from transept.pipelines.generation import GenerationOptions, GenerationPipeline
from transept.pipelines.text import Text, check_text


@dataclass(frozen=True)
class Text2TextOptions(GenerationOptions):
    """Options of tasks from text to text; see also :class:`GenerationOptions`, whose ``max_length`` is that of the answer.

    Args:
        truncation: cut texts that are longer than the model reads, which are an error otherwise.
        prefix: put before each text, as checkpoints of several tasks need it; the checkpoint's own when absent.
    """

    truncation: bool = False
    prefix: str | None = None


class Text2TextGenerationPipeline(GenerationPipeline[Text2TextOptions]):
    """``[{"generated_text": ...}]`` for a text, one entry a returned sequence, by an encoder–decoder."""

    task, auto = "text2text-generation", AutoModelForSeq2SeqLM
    # What answers are called: this, and with `return_tensors` the second.
    names: ClassVar[tuple[str, str]] = ("generated_text", "generated_token_ids")
    options_class: ClassVar[type[Text2TextOptions]] = Text2TextOptions

    def check_model(self) -> None:
        super().check_model()
        if not self.model.config.is_encoder_decoder:
            kind = type(self.model).__name__
            raise InputTypeError(f"the task {self.task!r} needs an encoder–decoder, but the model is a {kind}.")

    def checkpoint_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What ``task_specific_params`` say of the task."""
        known = self.model.config.extra.get("task_specific_params")
        found = known.get(self.name(given)) if isinstance(known, Mapping) else None
        settings = self.generator.generation_config
        options = found if isinstance(found, Mapping) else {}
        return {name: value for name, value in options.items() if name == "prefix" or settings.knows(name)}

    def name(self, options: Mapping[str, Any]) -> str:
        """What ``task_specific_params`` call the task."""
        return self.task

    def cutting(self, options: Text2TextOptions) -> tuple[str | None, int]:
        return ("longest_first" if options.truncation else None), self.max_length

    def read(self, item: Any, options: Text2TextOptions) -> list[Text]:
        return [((options.prefix or "") + check_text(item), None)]

    def forward(self, samples: Sequence[Sample], options: Text2TextOptions) -> Sequence[Any]:
        """For each row, the ids of each of its returned sequences."""
        return self.generate(self.collate(samples), options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Text2TextOptions) -> Any:
        if options.return_tensors:
            return [{self.names[1]: ids} for ids in results[0]]
        return [{self.names[0]: self.text(ids, options)} for ids in results[0]]
