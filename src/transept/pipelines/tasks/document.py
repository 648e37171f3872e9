"""Questions about a page, answered by words that stand on it (Huang et al. 2022).

A page of many words is read in windows that overlap, each beside the whole picture. The answer is the span with the highest
product of the probabilities that its tokens begin and end it; those of the class token say that there is none.

Shapes: T tokens of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModelForDocumentQuestionAnswering
from transept.errors import InputError, TranseptError
from transept.metrics.base import softmax
from transept.pipelines.base import Options, TaskPipeline, count, to_numpy
from transept.pipelines.batching import Sample, attempt
from transept.pipelines.media import MOST_BYTES, MOST_ITEMS
from transept.pipelines.tasks.question_answering import best_spans
from transept.pipelines.text import NO_LIMIT, check_text, padded, unexpected, unpadded, windows
from transept.preprocess.media import open_image
from transept.preprocess.ocr import read_words
from transept.preprocess.page import read_word_boxes
from transept.preprocess.workers import in_order

_NOWHERE = [0, 0, 0, 0]
_MOST_SHARED = 256  # tokens that two windows share where nothing else is asked for


class DocumentQuestionOptions(Options):
    """Options of ``document-question-answering``.

    Args:
        top_k: how many answers to give, the best first; fewer where the page does not have as many.
        doc_stride: tokens that two windows of a page share; 256, or half of a window, when absent.
        max_answer_len: tokens of an answer at most.
        max_seq_len: tokens of a window at most, question included; what tokenizer and model take, when absent.
        max_question_len: tokens of a question at most; words beyond are left out. Questions are read whole when absent.
        handle_impossible_answer: also answer with ``""``, at the probability that the page holds no answer.
        lang, tesseract_config: the language, and more flags, for reading the words of pages that come without them; by default
            those of the image processor.
        padding: taken for the reference's sake; it has no effect.
    """

    top_k: int = count(1)
    doc_stride: int | None = count(least=0)
    max_answer_len: int = count(15)
    max_seq_len: int | None = count()
    max_question_len: int | None = count()
    handle_impossible_answer: bool = False
    lang: str | None = None
    tesseract_config: str | None = None
    padding: bool | str | None = None


class DocumentQuestionAnsweringPipeline(TaskPipeline[Any]):
    """For ``{"image", "question", "word_boxes"}`` a list of ``{"score", "answer", "start", "end"}``, the best answer first.

    ``word_boxes`` are the page's words, each with its left, top, right and bottom from 0 to 1000; without them they are read
    off the picture by Tesseract, and with them the picture may be left out. ``start`` and ``end`` are the numbers of the first
    and the last word of the answer.
    """

    task, auto, options_class = "document-question-answering", AutoModelForDocumentQuestionAnswering, DocumentQuestionOptions
    components = ("tokenizer", "image_processor")
    asked = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
    most_items, most_bytes = MOST_ITEMS, MOST_BYTES
    drawable = True
    tokenizer: Any
    image_processor: Any

    def check_model(self) -> None:
        self.need("bbox" in self.model.body.reads, "reads words with their boxes")

    def __call__(  # type: ignore[override]
        self, image: Any = None, question: Any = None, word_boxes: Any = None, **options: Any
    ) -> Any:
        """As of every pipeline; the parts of an input may also be passed one by one, with one question or several."""
        if question is None:
            return super().__call__(image, **options)
        page = {"image": image, "word_boxes": word_boxes}
        if isinstance(question, list | tuple):
            return super().__call__([{**page, "question": one} for one in question], **options)
        return super().__call__({**page, "question": question}, **options)

    @property
    def max_length(self) -> int:
        """Tokens of a window at most: what the tokenizer and the model both were made for."""
        return int(min(self.tokenizer.model_max_length, self.model.body.trained_positions or NO_LIMIT))

    def prepare(self, items: Sequence[Any], options: Any) -> list[list[Sample] | TranseptError]:
        pictures = [item.get("image") for item in items if isinstance(item, Mapping)]
        distinct = len(set(map(id, pictures))) == len(pictures)  # no two threads may decode one object
        return in_order(lambda item: attempt(self.read, item, options), items, "page", parallel=distinct)

    def read(self, item: Any, options: Any) -> list[Sample]:
        """The windows of a page."""
        if not isinstance(item, Mapping) or "question" not in item:
            hint = 'Pass {"image": ..., "question": ...}, or both by name.'
            raise unexpected("a page and a question were", item, hint)
        question, picture, known = check_text(item["question"]).split(), item.get("image"), item.get("word_boxes")
        if not question:
            raise InputError("the question is empty.")
        if picture is None and known is None:
            raise InputError("the page has neither a picture nor words.", hint="Pass `image`, `word_boxes`, or both.")
        pixels = None
        if picture is not None:
            picture = open_image(picture, input_data_format=getattr(self.image_processor, "input_data_format", None))
            how = {"apply_ocr": False} if hasattr(self.image_processor, "apply_ocr") else {}
            pixels = self.image_processor(picture, **how)["pixel_values"][0]
        words, boxes = self.words_of(picture, options) if known is None else read_word_boxes(known)
        rows = self.rows(self.shorten(question, options.max_question_len), words, boxes, options)
        for row in rows:
            row.inputs |= {"page": words} if pixels is None else {"page": words, "pixel_values": pixels}
            row.group = None if pixels is None else pixels.shape
        return rows

    def words_of(self, picture: Any, options: Any) -> tuple[list[str], list[list[int]]]:
        """The words of a picture, and their boxes."""
        language, flags = (getattr(self.image_processor, name, None) for name in ("ocr_lang", "tesseract_config"))
        return read_words(picture, options.lang or language, options.tesseract_config or flags or "")

    def shorten(self, question: list[str], most: int | None) -> list[str]:
        """The first words of a question, of so many tokens at most, and one at least."""
        if most is None:
            return question
        encoded = self.tokenizer(question, boxes=[_NOWHERE] * len(question), add_special_tokens=False)
        beyond = [word for word in encoded.word_ids()[most:] if word is not None]
        return question[: max(1, beyond[0])] if beyond else question

    def rows(self, question: list[str], words: list[str], boxes: list[Any], options: Any) -> list[Sample]:
        """Windows over the words, each behind the question."""
        limit = self.max_length if options.max_seq_len is None else min(options.max_seq_len, self.max_length)
        stride = min(limit // 2, _MOST_SHARED) if options.doc_stride is None else options.doc_stride
        encoded = self.tokenizer([" ".join(question)], [words], boxes=[boxes], verbose=False)
        columns = {name: encoded[name][0] for name in ("input_ids", "bbox")}
        row = Sample.of(**columns, sequences=encoded.sequence_ids(), words=encoded.word_ids())
        return windows(row, 1, limit, stride)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        device, pad = self.model.device, self.model.config.pad_token_id or 0
        rows: dict[str, list[Any]] = {name: [sample.inputs[name] for sample in samples] for name in ("input_ids", "bbox")}
        rows["attention_mask"] = [[1] * sample.length for sample in samples]
        fills: dict[str, Any] = {"input_ids": pad, "bbox": _NOWHERE, "attention_mask": 0}
        batch = {name: padded(some, fills[name], device) for name, some in rows.items()}
        if "pixel_values" in samples[0].inputs:
            pixels = np.stack([sample.inputs["pixel_values"] for sample in samples])
            batch["pixel_values"] = torch.from_numpy(pixels).to(device)
        return batch

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        """Logits (2, T) of each window, for the first and for the last token of the answer; those of the picture are none."""
        output = self.run(self.collate(samples))
        ends = (unpadded(to_numpy(values), samples) for values in (output.start_logits, output.end_logits))
        return [np.stack(both) for both in zip(*ends, strict=True)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        impossible = np.inf
        for sample, logits in zip(samples, results, strict=True):
            row, words = sample.inputs, sample.inputs["words"]
            inside = np.array([text == 1 for text in row["sequences"]])
            # Only tokens of the page and class tokens share the probability.
            shares = inside | (np.array(row["input_ids"]) == self.tokenizer.cls_token_id)
            start, end = softmax(np.where(shares, logits, np.float32(-10000)))
            impossible = min(impossible, float(start[0] * end[0]))
            for score, first, last in best_spans(start * inside, end * inside, options.max_answer_len, options.top_k):
                begin, final = words[first], words[last]
                text = " ".join(row["page"][begin : final + 1])
                found.append({"score": score, "answer": text, "start": begin, "end": final})
        if options.handle_impossible_answer:
            found.append({"score": impossible, "answer": "", "start": 0, "end": 0})
        return sorted(found, key=lambda answer: -answer["score"])[: options.top_k]
