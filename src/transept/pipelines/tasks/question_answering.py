"""Questions about a text, answered by a piece of it (Rajpurkar et al. 2016), or in the model's own words (Raffel et al. 2020).

A long text is read in windows that overlap. The answer is the span with the highest product of the probabilities that its
tokens begin and end it; those of the class token say that there is none (Rajpurkar et al. 2018).

Shapes: T tokens, R answers of all questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transept.errors import InputError, InputTypeError
from transept.generation.decoding import pick_rows
from transept.generation.prompt import end_tokens
from transept.metrics.base import softmax
from transept.pipelines.base import Options, TaskPipeline, count, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.tasks.generation import Text2TextGenerationPipeline, Text2TextOptions
from transept.pipelines.text import Text, TextPipeline, check_text, unexpected, unpadded, windows


class QuestionOptions(Options):
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
    """

    top_k: int = count(1)
    doc_stride: int | None = count(least=0)
    max_answer_len: int = count(15)
    max_seq_len: int | None = count()
    max_question_len: int | None = count()
    handle_impossible_answer: bool = False
    align_to_words: bool = True
    padding: bool | str | None = None


class GenerativeQuestionOptions(Text2TextOptions):
    """Options of ``question-answering`` with a model that generates.

    Args:
        top_k: how many answers to give, the most likely first; for more than one, as many beams are searched at least.
        max_answer_len: tokens of an answer at most.
    """

    top_k: int = count(1)
    max_answer_len: int | None = count()


class QuestionPipeline(TaskPipeline[Any]):
    """A task that answers ``{"question": str, "context": str}``.

    As the reference does, a list of one question is answered as that question alone is.
    """

    def __call__(self, inputs: Any = None, context: Any = None, *, question: Any = None, **options: Any) -> Any:
        """As of every pipeline; ``inputs`` may also be a question with its context behind it, or both go by name.

        There may be several questions, with one context for all or one for each.
        """
        if context is not None:
            inputs = paired(inputs if question is None else question, context)
        elif inputs is None or question is not None:
            raise InputError("a question needs a context.", hint="Call it with question=... and context=....")
        found = super().__call__(inputs, **options)
        return found[0] if isinstance(inputs, list | tuple) and len(inputs) == 1 else found


def paired(question: Any, context: Any) -> Any:
    """Questions and contexts given apart, as one input or a list of them; an ``InputError`` where they do not match."""
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    one = isinstance(question, str | Mapping) or not isinstance(question, Iterable)
    if one or not isinstance(context, str | list | tuple):
        kinds = f"{type(question).__name__} and {type(context).__name__}"
        raise InputTypeError(f"`question` and `context` must be texts or lists of texts, but are {kinds}.")
    questions = list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else context
    if len(contexts) != len(questions):
        raise InputError(f"there are {len(questions)} questions, but {len(contexts)} contexts.")
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]


def read_question(item: Any) -> tuple[str, str]:
    """The question and the context of an input; an ``InputError`` where it has none, or they are empty."""
    if not isinstance(item, Mapping) or not {"question", "context"} <= item.keys():
        raise unexpected("a question and a context were", item, 'Pass {"question": ..., "context": ...}.')
    question, context = check_text(item["question"]), check_text(item["context"])
    if not question or not context:
        raise InputError(f"the {'context' if question else 'question'} is empty.")
    return question, context


class QuestionAnsweringPipeline(QuestionPipeline, TextPipeline):
    """For ``{"question": str, "context": str}``, ``{"score", "start", "end", "answer"}``, or a list where there are several.

    ``start`` and ``end`` are characters of the context. The scores of answers that read alike are added up.
    """

    task, auto, options_class = "question-answering", AutoModelForQuestionAnswering, QuestionOptions

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        generates = any(name.endswith(AutoModelForSeq2SeqLM.tasks) for name in parts.architectures)
        return GenerativeQuestionAnsweringPipeline.build(parts, **given) if generates else super().build(parts, **given)

    @property
    def context_place(self) -> int:
        """Whether the context is the second text (1), or the first one (0), as models that pad on the left are trained."""
        return int(self.tokenizer.padding_side == "right")

    def read(self, item: Any, options: Any) -> list[Text]:
        question, context = read_question(item)
        if (most := options.max_question_len) is not None:
            offsets = self.tokens([question], add_special_tokens=False)[0].inputs["offset_mapping"]
            question = question[: offsets[most - 1][1]] if len(offsets) > most else question
        return [(question, context) if self.context_place else (context, question)]

    def cutting(self, options: Any) -> tuple[str | None, int]:
        return None, min(self.max_length, 384) if options.max_seq_len is None else options.max_seq_len

    def encode(self, texts: Sequence[Any], options: Any) -> Sequence[Sample]:
        return self.tokens(*map(list, zip(*texts, strict=True)))

    def rows(self, encoded: Any, options: Any) -> list[Sample]:
        limit = self.cutting(options)[1]
        stride = min(limit // 2, 128) if options.doc_stride is None else options.doc_stride
        return windows(encoded, self.context_place, limit, stride)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        """Logits (2, T) of each row, for the first and for the last token of the answer."""
        output = self.run(self.collate(samples))
        ends = (unpadded(to_numpy(values), samples) for values in (output.start_logits, output.end_logits))
        return [np.stack(both) for both in zip(*ends, strict=True)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        found: list[tuple[float, int, int, str]] = []
        impossible = np.inf
        most = 2 * options.top_k + 10 if options.align_to_words else options.top_k  # words fall together
        for sample, logits in zip(samples, results, strict=True):
            row = sample.inputs
            words, offsets = list(zip(row["sequences"], row["words"], strict=True)), row["offset_mapping"]
            inside = np.array(row["sequences"]) == self.context_place
            # Only tokens of the context and class tokens share the probability.
            shares = inside | (np.array(row["input_ids"]) == self.tokenizer.cls_token_id)
            start, end = softmax(np.where(shares, logits, np.float32(-10000)))
            impossible = min(impossible, float(start[0] * end[0]))
            for score, first, last in best_spans(start * inside, end * inside, options.max_answer_len, most):
                first, last = widened(words, first, last) if options.align_to_words else (first, last)
                begin, behind = offsets[first][0], offsets[last][1]
                found.append((score, begin, behind, item["context"][begin:behind]))
        answers = joined(found)
        if options.handle_impossible_answer:
            answers.append({"score": impossible, "start": 0, "end": 0, "answer": ""})
            answers.sort(key=lambda answer: -answer["score"])
        return answers[0] if len(answers[: options.top_k]) == 1 else answers[: options.top_k]


def widened(words: Sequence[tuple[int | None, int | None]], first: int, last: int) -> tuple[int, int]:
    """A span of tokens widened to the words that it touches."""
    if words[first][1] is not None and words[last][1] is not None:
        while first > 0 and words[first - 1] == words[first]:
            first -= 1
        while last + 1 < len(words) and words[last] == words[last + 1]:
            last += 1
    return first, last


def best_spans(start: NDArray[np.float32], end: NDArray[np.float32], longest: int, most: int) -> list[tuple[float, int, int]]:
    """At most so many (score, first token, last token), the best first, with the highest products of ``start`` and ``end``.

    These are probabilities (T), 0 for tokens that cannot be in an answer; a span has ``longest`` tokens at most.
    """
    products = np.tril(np.triu(np.outer(start, end)), longest - 1).ravel()
    chosen = np.argpartition(-products, most)[:most] if len(products) > most else np.arange(len(products))
    chosen = chosen[np.argsort(-products[chosen], kind="stable")]
    return [(float(products[i]), int(i // len(end)), int(i % len(end))) for i in chosen if products[i] > 0]


def joined(found: Iterable[tuple[float, int | None, int | None, str]]) -> list[dict[str, Any]]:
    """Answers (score, start, end, text), the likeliest first; the scores of those that read alike are added up."""
    answers: dict[str, dict[str, Any]] = {}
    for score, start, end, text in found:
        known = answers.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
        known["score"] += score
    return sorted(answers.values(), key=lambda answer: -answer["score"])


class GenerativeQuestionAnsweringPipeline(QuestionPipeline, Text2TextGenerationPipeline):
    """The same by an encoder–decoder that answers in its own words.

    The score is the probability of the answer and its end. ``start`` and ``end`` are the characters of the context where it
    first stands, and ``None`` where it does not.
    """

    task, options_class = "question-answering", GenerativeQuestionOptions

    def cutting(self, options: Any) -> tuple[str | None, int]:
        return ("only_second" if options.truncation else None), self.max_length

    def read(self, item: Any, options: Any) -> list[Text]:
        question, context = read_question(item)
        prefix, layout = options.prefix or "", getattr(self.model.body, "question_layout", None)
        return [(prefix + question, context) if layout is None else (prefix + layout.format(question, context), None)]

    def settings(self, options: Any) -> dict[str, Any]:
        most = options.top_k
        length = {} if options.max_answer_len is None else {"max_new_tokens": options.max_answer_len}
        beams = {"num_return_sequences": most, "num_beams": max(self.resolved(options).num_beams or 1, most)}
        return super().settings(options) | length | (beams if most > 1 else {})

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        """For each row, the ids of each of its answers and how likely that is."""
        batch = self.collate(samples)
        mask = {name: batch[name] for name in batch if name == "attention_mask"}
        given = {"encoder_outputs": self.model.get_encoder()(**batch, return_dict=True), **mask}
        generated = self.generate({"input_ids": batch["input_ids"], **given}, options)
        device = self.model.device
        rows = torch.arange(len(generated), device=device).repeat_interleave(len(generated[0]))
        given = {name: pick_rows(value, rows) for name, value in given.items()}
        flat = torch.tensor([ids for answers in generated for ids in answers], device=device)
        chances = iter(self.chances(given, flat, end_tokens(self.resolved(options))))
        return [[(ids, next(chances)) for ids in answers] for answers in generated]

    def chances(self, given: dict[str, Any], ids: Tensor, ends: list[int]) -> list[float]:
        """How likely answers (R, T) are, with the tokens that end them."""
        logits = self.model(**given, decoder_input_ids=ids[:, :-1], use_cache=False, return_dict=True).logits
        ids = ids[:, 1:]
        each = logits.float().log_softmax(dim=-1).gather(2, ids[:, :, None])[:, :, 0]
        end = torch.isin(ids, ids.new_tensor(ends))
        text = ~torch.isin(ids, ids.new_tensor(self.tokenizer.all_special_ids)) | end
        counts = text & (end.cumsum(dim=1) - end.long() == 0)
        return list(each.masked_fill(~counts, 0).sum(dim=1).exp().tolist())

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        texts = [(chance, self.text(ids, options).strip()) for ids, chance in results[0]]
        answers = joined((chance, *(locate(text, item["context"]) or (None, None)), text) for chance, text in texts)
        return answers[0] if len(answers) == 1 else answers


def locate(answer: str, context: str) -> tuple[int, int] | None:
    """Where a text first stands in another, in whatever case and spacing, ``None`` where it does not; no text is at (0, 0)."""
    found = re.search(r"\s+".join(map(re.escape, answer.split())), context, re.IGNORECASE)
    return found and found.span()
