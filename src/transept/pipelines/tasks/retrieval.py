"""What search, clustering and retrieval start from: vectors of texts and their cosines (Reimers and Gurevych 2019), and
passages sorted by how well they answer a query, by a model that reads both together (Nogueira and Cho 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModel, AutoModelForSequenceClassification
from transept.errors import InputError, InputTypeError, nearest
from transept.layers.mlp import activation
from transept.pipelines.base import Options, TaskPipeline, choice, count, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.components import EMBEDDING_MODEL, Components
from transept.pipelines.sentence import PROMPTS, PromptSettings, SentenceHead, named_activation, read_sentence_head, settings_of
from transept.pipelines.text import NO_LIMIT, Text, TextPipeline, check_text, unexpected

_FUNCTIONS = {"sigmoid": "sigmoid", "none": "linear"}
_KEYS = (("text", "text_pair"), ("source_sentence", "sentences"))


class EmbeddingOptions(Options):
    """Options of ``text-embedding``.

    Args:
        normalize: scale vectors to length one also where the checkpoint does not.
        prompt_name: one of the checkpoint's prompts to put before each text, such as ``query``; its default one, where it
            has one, when absent.
    """

    normalize: bool = False
    prompt_name: str | None = None


class TextEmbeddingPipeline(TextPipeline):
    """One float32 vector (E) for a text, an array (N, E) for N of them. Texts that are too long are cut.

    Args:
        head: how states become vectors; the mean of all tokens when absent.
    """

    task, auto, options_class = "text-embedding", AutoModel, EmbeddingOptions
    default_model = EMBEDDING_MODEL

    def __init__(self, model: Any, tokenizer: Any = None, *, head: SentenceHead | None = None, **given: Any) -> None:
        self.head = head or SentenceHead()
        super().__init__(model, tokenizer, **given)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        head = SentenceHead() if parts.source is None else read_sentence_head(parts.source, parts.target)
        return super().build(parts.below(head.folder) if head.folder else parts, head=head, **given)

    def check_model(self) -> None:
        super().check_model()
        self.size = self.head.size(self.model.body.dim)

    @property
    def max_length(self) -> int:
        return min(super().max_length, self.head.max_length or NO_LIMIT)

    def check_options(self, options: Any) -> None:
        self.head.prompt(options.prompt_name)

    def encode(self, texts: Sequence[Any], options: Any) -> Sequence[Any]:
        prompt = self.head.prompt(options.prompt_name)
        whole = [prompt + text for text, _ in texts]
        return super().encode([(text.lower() if self.head.lower else text, None) for text in whole], options)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        batch, prompt = self.collate(samples), self.head.prompt(options.prompt_name)
        hidden = self.run(batch, self.model.body).last_hidden_state
        skip = 0
        if prompt and not self.head.pools_prompt:
            ids = self.tokenizer.encode_ids([prompt])[0]
            skip = len(ids) - (ids[-1] in self.tokenizer.all_special_ids)
        vectors = to_numpy(self.head(hidden, batch.get("attention_mask"), skip, batch.get("lengths")))
        return list(normalized(vectors) if options.normalize else vectors)

    def gather(self, answers: list[Any]) -> Any:
        return np.stack(answers) if answers else np.empty((0, self.size), np.float32)


class TextSimilarityPipeline(TextEmbeddingPipeline):
    """The cosine of two texts, or (N) cosines of one text and N others, between -1 and 1.

    An input is ``(text, text)`` or ``(text, [text, ...])``, or the same as a mapping, ``{"text", "text_pair"}`` or
    ``{"source_sentence", "sentences"}``. Options are those of ``text-embedding``; all texts get the same prompt.
    """

    task = "text-similarity"

    def __call__(self, inputs: Any = None, others: Any = None, **options: Any) -> Any:
        """As of every pipeline; a text or several, to compare the text ``inputs`` to, may stand behind it."""
        return super().__call__(inputs if others is None else (inputs, others), **options)

    def is_one(self, inputs: Any) -> bool:
        return (isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], str)) or super().is_one(inputs)

    def read(self, item: Any, options: Any) -> list[Text]:
        one, others = _sides(item)
        return [(check_text(text), None) for text in (one, *([others] if isinstance(others, str) else others))]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        vectors = normalized(np.stack(results))
        cosines = vectors[1:] @ vectors[0]
        return float(cosines[0]) if isinstance(_sides(item)[1], str) else cosines

    def gather(self, answers: list[Any]) -> Any:
        """(N) for N pairs; a list of arrays where texts are compared to several."""
        return np.array(answers, np.float32) if all(isinstance(answer, float) for answer in answers) else answers


def normalized(vectors: NDArray[np.float32]) -> Any:
    """Vectors (N, E) of length one."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _sides(item: Any) -> tuple[Any, Any]:
    """A text, and one text or several to compare it to; an ``InputError`` for anything else."""
    if isinstance(item, Mapping):
        keys = next((keys for keys in _KEYS if item.keys() == set(keys)), None)
        item = item if keys is None else (item[keys[0]], item[keys[1]])
    if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[1], str | list | tuple):
        return item[0], item[1]
    hint = 'Pass ("text", "other"), ("text", ["other", ...]) or {"text": ..., "text_pair": ...}.'
    raise InputError(f"a text and what it is compared to were expected, but the input is {str(item)[:60]!r}.", hint=hint)


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
        act: name of the activation for scores; by the number of classes when absent.
    """

    task, auto, options_class = "text-ranking", AutoModelForSequenceClassification, RankingOptions

    def __init__(self, model: Any, tokenizer: Any = None, *, act: str | None = None, **given: Any) -> None:
        self.act = act
        super().__init__(model, tokenizer, **given)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        """With the activation that a cross-encoder's checkpoint names, in one of three places."""
        stored, path = (PromptSettings(), None) if parts.source is None else settings_of(parts.source, PROMPTS, PromptSettings)
        nested = parts.config.extra.get("sentence_transformers")
        name = stored.activation_fn or (nested.get("activation_fn") if isinstance(nested, dict) else None)
        name = name or parts.config.extra.get("sbert_ce_default_activation_function")
        return super().build(parts, act=named_activation(str(name), path) if name else None, **given)

    def check_model(self) -> None:
        super().check_model()
        self.act = self.act or ("sigmoid" if self.model.config.num_labels == 1 else "linear")

    def check_options(self, options: Any) -> None:
        self.column(options)

    def __call__(self, inputs: Any = None, passages: Any = None, *, query: Any = None, **options: Any) -> Any:
        """As of every pipeline; ``inputs`` may also be a query with its passages behind it, or both go by name."""
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

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        logits = self.run(self.collate(samples)).logits[:, self.column(options)].float()
        act = self.act if options.function_to_apply is None else _FUNCTIONS[options.function_to_apply]
        return list(to_numpy(activation(act or "linear")(logits)))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        pairs = enumerate(zip(results, item["passages"], strict=True))
        found = [{"index": index, "score": float(score), "text": text} for index, (score, text) in pairs]
        if options.sort:
            found.sort(key=lambda passage: -passage["score"])
        return found[: options.top_k]
