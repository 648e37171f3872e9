"""Passages sorted by how well they answer a query, by a model that reads both together (Nogueira and Cho 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModelForSequenceClassification
from transept.core.model import Model
from transept.errors import InputError, InputTypeError, nearest
from transept.files import load_object
from transept.layers.activation import activation
from transept.pipelines.base import check_choice, check_count, chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.parts import Parts
from transept.pipelines.sentence import PROMPTS, named_activation
from transept.pipelines.text import Text, TextPipeline, check_text
from transept.preprocess.text.auto import AutoTokenizer
from transept.source import Source

_FUNCTIONS = {"sigmoid": "sigmoid", "none": "linear"}


@dataclass(frozen=True)
class RankingOptions:
    """Options of ``text-ranking``.

    Args:
        top_k: how many passages to answer with; all when absent.
        sort: the best first; otherwise in the order in which they came.
        function_to_apply: what makes a score of the model's raw one: ``sigmoid`` or ``none``. When absent what the
            checkpoint names, else ``sigmoid`` for models with a single class and ``none`` for others.
        label: the class whose score counts, by name or number, for models with several.

    Raises:
        InputError: no number of passages, or another function.
    """

    top_k: int | None = None
    sort: bool = True
    function_to_apply: str | None = None
    label: str | int | None = None

    def __post_init__(self) -> None:
        check_count("top_k", self.top_k, optional=True)
        check_choice("function_to_apply", self.function_to_apply, (None, *_FUNCTIONS))


class TextRankingPipeline(TextPipeline[RankingOptions]):
    """For ``{"query": str, "passages": [str, ...]}``, a list of ``{"index", "score", "text"}``, the best passage first.

    Pairs that are too long are cut, the longer text first.

    Args:
        model: a classifier of pairs.
        tokenizer: of the same checkpoint.
        options, batching: see :class:`transept.pipelines.base.Pipeline`.
        act: name of the activation for scores; by the number of classes when absent.
    """

    task = "text-ranking"

    def __init__(
        self, model: Model, tokenizer: Any, options: RankingOptions | None = None, *, act: str | None = None, **batching: Any
    ) -> None:
        super().__init__(model, tokenizer, options or RankingOptions(), **batching)
        self.act = act or ("sigmoid" if model.config.num_labels == 1 else "linear")
        self.column(self.options)

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the classifier and its tokenizer, and read which activation it was trained for."""
        model = parts.model(AutoModelForSequenceClassification)
        tokenizer = parts.part("tokenizer", AutoTokenizer.from_pretrained)
        act = stored_activation(model, parts.source)
        return cls(model, tokenizer, chosen_options(RankingOptions(), options, cls.task), act=act, **batching)

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

    def with_options(self, given: Mapping[str, Any]) -> RankingOptions:
        """The options of one call, whose label the model must have."""
        options = super().with_options(given)
        self.column(options)
        return options

    def column(self, options: RankingOptions) -> int:
        """Which of the model's scores counts.

        Raises:
            InputError: it has several, and none or another one is named.
        """
        labels = {label: index for index, label in (self.model.config.id2label or {}).items()}
        count = self.model.config.num_labels
        if options.label is None and count == 1:
            return 0
        index = labels.get(options.label, options.label) if isinstance(options.label, str) else options.label
        if not isinstance(index, int) or not 0 <= index < count:
            wrong = "`label` names none of them" if options.label is not None else "`label` must name the one that counts"
            hint = nearest(str(options.label or ""), labels)
            raise InputError(f"the model has {count} classes, but {wrong}: {options.label!r}.", hint=hint)
        return index

    def read(self, item: Any, options: RankingOptions) -> list[Text]:
        """The query with each passage."""
        if not isinstance(item, Mapping) or item.keys() != {"query", "passages"}:
            raise InputTypeError(
                f"a query and passages were expected, but the input is {type(item).__name__}: {str(item)[:60]!r}.",
                hint='Pass {"query": ..., "passages": [...]}.',
            )
        if isinstance(item["passages"], str) or not isinstance(item["passages"], Iterable):
            raise InputTypeError(f"`passages` must be a list of texts, but is {type(item['passages']).__name__}.")
        query = check_text(item["query"])
        return [(query, check_text(passage)) for passage in item["passages"]]

    def forward(self, samples: Sequence[Sample], options: RankingOptions) -> Sequence[np.float32]:
        """The score of each row."""
        logits: Tensor = self.run(self.collate(samples)).logits[:, self.column(options)].float()
        act = self.act if options.function_to_apply is None else _FUNCTIONS[options.function_to_apply]
        scores: NDArray[np.float32] = to_numpy(activation(act)(logits))
        return list(scores)

    def answer(
        self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: RankingOptions
    ) -> list[dict[str, Any]]:
        """The passages with their scores."""
        found = [
            {"index": index, "score": float(score), "text": text}
            for index, (score, text) in enumerate(zip(results, item["passages"], strict=True))
        ]
        if options.sort:
            found.sort(key=lambda passage: -passage["score"])
        return found[: options.top_k]


def stored_activation(model: Model, source: Source | None) -> str | None:
    """The activation that a cross-encoder's checkpoint names, in one of three places; ``None`` where it names none.

    Raises:
        UnsupportedError: it names one that we do not have.
    """
    path = None if source is None else source.find(PROMPTS)
    stored = {} if path is None else load_object(path)
    nested = model.config.extra.get("sentence_transformers")
    places = (
        stored.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        model.config.extra.get("sbert_ce_default_activation_function"),
    )
    name = next((place for place in places if place), None)
    return None if name is None else named_activation(str(name), path)
