"""Questions about a text, answered by a piece of it (Rajpurkar et al. 2016).

A long text is read in windows that overlap. Each window gives every token a probability to begin the answer and one to end
it; the answer is the span with the highest product. A model that knows impossible questions (Rajpurkar et al. 2018) puts
those on the class token.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transept.errors import TranseptError
from transept.pipelines.base import Pipeline, apart, attempt, check_count, chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.overlap import Tokens, cut
from transept.pipelines.parts import Parts
from transept.pipelines.questions import Questions, read_question
from transept.pipelines.text import TextPipeline
from transept.pipelines.written_answer import WrittenAnswerPipeline
from transept.preprocess.text.auto import AutoTokenizer

Span = tuple[int, int]


@dataclass(frozen=True)
class QuestionOptions:
    """Options of ``question-answering``.

    Args:
        top_k: how many answers to give, the best first; fewer where the text does not have as many.
        doc_stride: tokens that two windows of a long text share; 128, or half of a window, when absent.
        max_answer_len: tokens of an answer at most.
        max_seq_len: tokens of a window at most, question included; 384, or what the model takes, when absent.
        max_question_len: tokens of a question at most, beyond which it is cut; questions are read whole when absent.
        handle_impossible_answer: also answer with ``""``, at the probability that the text holds no answer.
        align_to_words: widen answers to whole words; turn it off for scripts without spaces.
        padding: taken for the reference's sake; it has no effect.

    Raises:
        InputError: a number that cannot be.
    """

    top_k: int = 1
    doc_stride: int | None = None
    max_answer_len: int = 15
    max_seq_len: int | None = None
    max_question_len: int | None = None
    handle_impossible_answer: bool = False
    align_to_words: bool = True
    padding: bool | str | None = None

    def __post_init__(self) -> None:
        check_count("top_k", self.top_k)
        check_count("max_answer_len", self.max_answer_len)
        check_count("doc_stride", self.doc_stride, optional=True, least=0)
        check_count("max_seq_len", self.max_seq_len, optional=True)
        check_count("max_question_len", self.max_question_len, optional=True)


class QuestionAnsweringPipeline(Questions, TextPipeline[QuestionOptions]):
    """For ``{"question": str, "context": str}``, ``{"score", "start", "end", "answer"}``, or a list where there are several.

    ``start`` and ``end`` are characters of the context. The scores of answers that read alike are added up. An encoder–decoder
    whose config names a class that writes answers in its own words: see
    :class:`transept.pipelines.written_answer.WrittenAnswerPipeline`.
    """

    task = "question-answering"

    @classmethod
    def suited(cls, parts: Parts) -> type[Pipeline[Any]]:
        """Models that write have another way."""
        writes = any(name.endswith(AutoModelForSeq2SeqLM.tasks) for name in parts.architectures)
        return WrittenAnswerPipeline if writes else cls

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the model and its tokenizer."""
        model = parts.model(AutoModelForQuestionAnswering)
        tokenizer = parts.part("tokenizer", AutoTokenizer.from_pretrained)
        return cls(model, tokenizer, chosen_options(QuestionOptions(), options, cls.task), **batching)

    def prepare(self, items: Sequence[Any], options: QuestionOptions) -> list[list[Sample] | TranseptError]:
        """The windows over each context, each with the question."""
        read = [attempt(lambda item: self._read(item, options), item) for item in items]
        pairs = [pair for pair in read if not isinstance(pair, TranseptError)]
        limit = min(self.max_length, 384) if options.max_seq_len is None else options.max_seq_len
        stride = min(limit // 2, 128) if options.doc_stride is None else options.doc_stride
        made = apart(self._tokenized_pairs, pairs)
        rows = iter(
            [row if isinstance(row, TranseptError) else attempt(lambda r: self._windows(r, limit, stride), row) for row in made]
        )
        return [pair if isinstance(pair, TranseptError) else next(rows) for pair in read]

    def _tokenized_pairs(self, pairs: list[tuple[str, str]]) -> list[Tokens]:
        questions, contexts = map(list, zip(*pairs, strict=True))
        return self.tokens(questions, contexts) if self._question_first else self.tokens(contexts, questions)

    @property
    def _question_first(self) -> bool:
        """Models whose tokenizers pad on the left are trained with the question behind the context."""
        return bool(self.tokenizer.padding_side == "right")

    def _read(self, item: Any, options: QuestionOptions) -> tuple[str, str]:
        question, context = read_question(item)
        most = options.max_question_len
        if most is not None:
            offsets = self.tokens([question], add_special_tokens=False)[0].offsets
            question = question[: offsets[most - 1][1]] if len(offsets) > most else question
        return question, context

    def _windows(self, row: Tokens, limit: int, stride: int) -> list[Sample]:
        found = cut(row, int(self._question_first), limit, stride)
        return [Sample({**row.inputs(window), "tokens": row, "window": window}, len(window)) for window in found]

    def forward(self, samples: Sequence[Sample], options: QuestionOptions) -> Sequence[NDArray[np.float32]]:
        """Logits (2, T) of each row, for the first and for the last token of the answer."""
        output = self.run(self.collate(samples))
        start, end = to_numpy(output.start_logits), to_numpy(output.end_logits)
        return [np.stack((s[: row.length], e[: row.length])) for s, e, row in zip(start, end, samples, strict=True)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: QuestionOptions) -> Any:
        """The best spans of all windows."""
        found: dict[str, dict[str, Any]] = {}
        impossible = np.inf
        for sample, logits in zip(samples, results, strict=True):
            start, end, inside = self.probabilities(sample, logits)
            impossible = min(impossible, float(start[0] * end[0]))
            most = 2 * options.top_k + 10 if options.align_to_words else options.top_k  # words fall together
            for score, first, last in best_spans(start * inside, end * inside, options.max_answer_len, most):
                begin, behind = self.place(sample, first, last, options.align_to_words)
                text = item["context"][begin:behind]
                known = found.setdefault(text.lower(), {"score": 0.0, "start": begin, "end": behind, "answer": text})
                known["score"] += score
        answers = list(found.values())
        if options.handle_impossible_answer:
            answers.append({"score": impossible, "start": 0, "end": 0, "answer": ""})
        answers.sort(key=lambda answer: -answer["score"])
        return answers[0] if len(answers[: options.top_k]) == 1 else answers[: options.top_k]

    def probabilities(self, sample: Sample, logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Of one window: (T) for the first token, (T) for the last one, and (T) 1 for tokens of the context.

        Only tokens of the context and class tokens share the probability.
        """
        row: Tokens = sample.inputs["tokens"]
        context = int(self._question_first)
        inside = np.array([row.sequences[i] == context for i in sample.inputs["window"]])
        shares = inside | (np.array(sample.inputs["input_ids"]) == self.tokenizer.cls_token_id)
        values = np.where(shares, logits, np.float32(-10000))
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        start, end = powers / powers.sum(axis=-1, keepdims=True)
        return start, end, inside.astype(np.float32)

    def place(self, sample: Sample, first: int, last: int, align: bool) -> Span:
        """The characters of a span of tokens, or of the words that it touches."""
        row, window = sample.inputs["tokens"], sample.inputs["window"]
        if align and row.words[window[first]] is not None and row.words[window[last]] is not None:
            while first > 0 and _one_word(row, window[first - 1], window[first]):
                first -= 1
            while last + 1 < len(window) and _one_word(row, window[last], window[last + 1]):
                last += 1
        return row.offsets[window[first]][0], row.offsets[window[last]][1]


def _one_word(row: Tokens, left: int, right: int) -> bool:
    """Whether two tokens are of one word."""
    return (row.sequences[left], row.words[left]) == (row.sequences[right], row.words[right])


def best_spans(start: NDArray[np.float32], end: NDArray[np.float32], longest: int, most: int) -> list[tuple[float, int, int]]:
    """The spans with the highest products of probabilities, as (score, first token, last token), the best first.

    Args:
        start, end: (T), 0 for tokens that cannot be in an answer.
        longest: tokens of a span at most.
        most: how many spans; those of score 0 are none.
    """
    products = np.tril(np.triu(np.outer(start, end)), longest - 1).ravel()
    chosen = np.argpartition(-products, most)[:most] if len(products) > most else np.arange(len(products))
    chosen = chosen[np.argsort(-products[chosen], kind="stable")]
    return [(float(products[i]), int(i // len(end)), int(i % len(end))) for i in chosen if products[i] > 0]
