"""The tokenizer of a reader of passages: a question with the title and the text of each, and the best spans among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from transept.errors import InputError
from transept.preprocess.text.classes.wordpiece import BertTokenizer
from transept.preprocess.text.encoding import BatchEncoding


class DPRSpanPrediction(NamedTuple):
    """A span of a passage: its score, its passage's, the number of that, the first and the last token, and the text."""

    span_score: Any
    relevance_score: Any
    doc_id: int
    start_index: int
    end_index: int
    text: str


class DPRReaderTokenizer(BertTokenizer, inputs=("input_ids", "attention_mask")):
    """BERT's, of questions with titles and texts of passages: ``[CLS] question [SEP] title [SEP] text``."""

    def __call__(  # type: ignore[override]  # the names are the reference's
        self,
        questions: Any = None,
        titles: Any = None,
        texts: Any = None,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_attention_mask: bool | None = None,
        **options: Any,
    ) -> BatchEncoding:
        """Encode a question with N passages, or a question for each; with titles or texts alone, or neither, as BERT's does.

        ``padding``, ``truncation``, ``max_length`` and the others are as for :class:`Tokenizer`; a row is cut at its end.

        Raises:
            InputError: titles, texts and questions that are not as many.
        """
        given: dict[str, Any] = {"padding": padding, "max_length": max_length, "return_tensors": return_tensors}
        if titles is None or texts is None:
            given |= {"truncation": truncation, "return_attention_mask": return_attention_mask}
            return super().__call__(questions, texts if titles is None else titles, **given, **options)
        titles, texts = ([each] if isinstance(each, str) else list(each) for each in (titles, texts))
        questions = [questions] * len(titles) if isinstance(questions, str) else list(questions)
        if not len(titles) == len(texts) == len(questions):
            raise InputError(f"there are {len(questions)} questions for {len(titles)} titles and {len(texts)} texts.")
        first = super().__call__(questions, titles)["input_ids"]
        second = super().__call__(texts, add_special_tokens=False, verbose=False)["input_ids"]
        cut = max_length if truncation else None
        rows = {"input_ids": [(one + two)[:cut] for one, two in zip(first, second, strict=True)]}
        return self.pad(rows, return_attention_mask=return_attention_mask, **given)

    def decode_best_spans(
        self,
        reader_input: Any,
        reader_output: Any,
        num_spans: int = 16,
        max_answer_length: int = 64,
        num_spans_per_passage: int = 4,
    ) -> list[DPRSpanPrediction]:
        """The likeliest spans of the likeliest passages, in this order.

        Args:
            reader_input: what a call gave.
            reader_output: start logits, end logits (N, T) and relevance logits (N), as ``DPRReader`` gives them.
            num_spans: how many at most.
            max_answer_length: T of the longest.
            num_spans_per_passage: how many of one passage, of which none lies in another.
        """
        start, end, relevance = reader_output[:3]
        sep: Any = self.sep_token_id
        pad: Any = self.pad_token_id
        found: list[DPRSpanPrediction] = []
        for number in sorted(range(len(relevance)), reverse=True, key=relevance.__getitem__):
            row = [int(index) for index in reader_input["input_ids"][number]]
            first = row.index(sep, 2) + 1  # behind the question and the title
            stop = row.index(pad) if row[-1] == pad else len(row)
            spans = _best(start[number][first:stop], end[number][first:stop], max_answer_length, num_spans_per_passage)
            for one, last in ((one + first, last + first) for one, last in spans):
                score, text = start[number][one] + end[number][last], self.decode(row[one : last + 1])
                found.append(DPRSpanPrediction(score, relevance[number], number, one, last, text))
            if len(found) >= num_spans:
                break
        return found[:num_spans]


def _best(start: Sequence[Any], end: Sequence[Any], longest: int, most: int) -> list[tuple[int, int]]:
    """The first and last places of the spans with the largest sums of scores, none of which lies in another."""
    spans = [(one, last) for one in range(len(start)) for last in range(one, min(one + longest, len(end)))]
    chosen: list[tuple[int, int]] = []
    for one, last in sorted(spans, key=lambda span: start[span[0]] + end[span[1]], reverse=True):
        if len(chosen) == most:
            break
        if not any(one <= a <= b <= last or a <= one <= last <= b for a, b in chosen):
            chosen.append((one, last))
    return chosen


DPRReaderTokenizerFast = DPRReaderTokenizer
