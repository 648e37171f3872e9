"""Texts, or pairs of them, to classes: sentiments, topics, languages, or whether one text follows from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transept.core.auto import AutoModelForSequenceClassification
from transept.errors import InputError, TranseptError
from transept.pipelines.base import check_choice
from transept.pipelines.batching import Sample
from transept.pipelines.labels import ClassifyingPipeline, LabelOptions, labelled
from transept.pipelines.text import Text, TextOptions, TextPipeline, check_text, unexpected


@dataclass(frozen=True)
class TextClassificationOptions(TextOptions):
    """Options of ``text-classification``, beside those of :class:`transept.pipelines.text.TextOptions`.

    ``return_all_scores``, an older option of the reference, is ``top_k=None`` where true.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all. Answers are lists then; when absent, the best
            class alone.
        function_to_apply: see :class:`transept.pipelines.labels.LabelOptions`.
    """

    top_k: int | str | None = "best"
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.labels

    @property
    def labels(self) -> LabelOptions:
        most: Any = 1 if self.top_k == "best" else self.top_k
        return LabelOptions(top_k=most, function_to_apply=self.function_to_apply)


class TextClassificationPipeline(TextPipeline[TextClassificationOptions], ClassifyingPipeline):
    """For a text or a pair ``{"text": str, "text_pair": str}``, ``{"label": str, "score": float}``, or a list of these.

    As the reference does, a lone text is answered by a list of one answer, unless ``top_k`` is passed in the call.
    """

    task, auto, options_class = "text-classification", AutoModelForSequenceClassification, TextClassificationOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        lone = isinstance(inputs, str) and "top_k" not in options
        return [found] if lone and not isinstance(found, TranseptError) else found

    def with_options(self, given: Mapping[str, Any]) -> TextClassificationOptions:
        rest = dict(given)
        if (every := rest.pop("return_all_scores", None)) is not None:
            check_choice("return_all_scores", every, (True, False))
            rest.setdefault("top_k", None if every else "best")
        found: TextClassificationOptions = super().with_options(rest)
        return found

    def read(self, item: Any, options: TextClassificationOptions) -> list[Text]:
        if not isinstance(item, Mapping):
            if isinstance(item, list | tuple):
                raise unexpected("a text or a pair was", item, 'Pass a pair as {"text": ..., "text_pair": ...}.')
            return [(check_text(item), None)]
        if "text" not in item or not item.keys() <= {"text", "text_pair"}:
            keys = ", ".join(map(repr, item)) or "none"
            raise InputError(f"a pair needs the keys 'text' and 'text_pair', but has {keys}.")
        second = item.get("text_pair")
        return [(check_text(item["text"]), None if second is None else check_text(second))]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: TextClassificationOptions) -> Any:
        found = labelled(results[0], self.model.config, options.labels)
        return found[0] if options.top_k == "best" else found
