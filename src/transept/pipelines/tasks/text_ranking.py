"""Passages sorted by how well they answer a query, by a model that reads both together (Nogueira and Cho 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from transept.core.auto import AutoModelForSequenceClassification
from transept.core.model import Model
from transept.errors import InputError, InputTypeError, nearest
from transept.layers.activation import activation
from transept.pipelines.base import Options, choice, count, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.sentence import PROMPTS, named_activation, settings_of
from transept.pipelines.text import Text, TextPipeline, check_text, unexpected

_FUNCTIONS = {"sigmoid": "sigmoid", "none": "linear"}


@dataclass(frozen=True)
class RankingOptions(Options):
    """Options of ``text-ranking``.

    Args:
        top_k: how many passages to answer with; all when absent.
        sort: the best first; otherwise in the order in which they came.
        function_to_apply: what makes a score of the model's raw one: ``sigmoid`` or ``none``. When absent what the
            checkpoint names, else ``sigmoid`` for models with a single class and ``none`` for others.
        label: the class whose score counts, by name or number, for models with several.
    """

    top_k: int | None = count()
    sort: bool = True
    function_to_apply: str | None = choice(None, *_FUNCTIONS)
    label: str | int | None = None


class TextRankingPipeline(TextPipeline):
    """For ``{"query": str, "passages": [str, ...]}``, a list of ``{"index", "score", "text"}``, the best passage first.

    Pairs that are too long are cut, the longer text first.

    Args:
        model: a classifier of pairs.
        tokenizer: of the same checkpoint.
        act: name of the activation for scores; by the number of classes when absent.
        given: see :class:`transept.pipelines.base.Pipeline`.
    """

    task, auto, options_class = "text-ranking", AutoModelForSequenceClassification, RankingOptions

    def __init__(self, model: Model, tokenizer: Any = None, *, act: str | None = None, **given: Any) -> None:
        self.act = act
        super().__init__(model, tokenizer, **given)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> Self:
        return super().build(parts, act=stored_activation(parts), **given)

    def check_model(self) -> None:
        super().check_model()
        self.act = self.act or ("sigmoid" if self.model.config.num_labels == 1 else "linear")

    def check_options(self, options: Any) -> None:
        self.column(options)

    def __call__(self, inputs: Any = None, passages: Any = None, *, query: Any = None, **options: Any) -> Any:
        """Rank passages.

        Args:
            inputs: a mapping with ``query`` and ``passages``, or several of them; or a query, with its passages behind it.
            passages, query: in place of ``inputs``.
            options: see :class:`RankingOptions` and ``Pipeline.__call__``.
        """
        if passages is not None:
            inputs = {"query": inputs if query is None else query, "passages": passages}
        elif inputs is None or query is not None:
            raise InputError("a query needs passages.", hint="Call it with query=... and passages=[...].")
        return super().__call__(inputs, **options)

    def column(self, options: Any) -> int:
        """Which of the model's scores counts; an ``InputError`` where it has several, and none or another one is named."""
        labels = {label: index for index, label in (self.model.config.id2label or {}).items()}
        count, asked = self.model.config.num_labels, options.label
        index = 0 if asked is None and count == 1 else labels.get(asked, asked) if isinstance(asked, str) else asked
        if not isinstance(index, int) or not 0 <= index < count:
            wrong = "`label` names none of them" if asked is not None else "`label` must name the one that counts"
            raise InputError(f"the model has {count} classes, but {wrong}: {asked!r}.", hint=nearest(str(asked or ""), labels))
        return index

    def read(self, item: Any, options: Any) -> list[Text]:
        if not isinstance(item, Mapping) or item.keys() != {"query", "passages"}:
            raise unexpected("a query and passages were", item, 'Pass {"query": ..., "passages": [...]}.')
        if isinstance(item["passages"], str) or not isinstance(item["passages"], Iterable):
            raise InputTypeError(f"`passages` must be a list of texts, but is {type(item['passages']).__name__}.")
        query = check_text(item["query"])
        return [(query, check_text(passage)) for passage in item["passages"]]

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[np.float32]:
        logits = self.logits(samples)[:, self.column(options)].float()
        act = self.act if options.function_to_apply is None else _FUNCTIONS[options.function_to_apply]
        return list(to_numpy(activation(act or "linear")(logits)))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        pairs = enumerate(zip(results, item["passages"], strict=True))
        found = [{"index": index, "score": float(score), "text": text} for index, (score, text) in pairs]
        if options.sort:
            found.sort(key=lambda passage: -passage["score"])
        return found[: options.top_k]


def stored_activation(parts: Components) -> str | None:
    """The activation that a cross-encoder's checkpoint names, in one of three places; ``None`` where it names none."""
    stored, path = ({}, None) if parts.source is None else settings_of(parts.source, PROMPTS)
    extra = parts.config.extra
    nested = extra.get("sentence_transformers")
    name = stored.get("activation_fn") or (nested.get("activation_fn") if isinstance(nested, dict) else None)
    name = name or extra.get("sbert_ce_default_activation_function")
    return named_activation(str(name), path) if name else None
