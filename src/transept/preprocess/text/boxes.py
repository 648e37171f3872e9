"""Tokenizers of words that stand on a page: each token has its word's box, and its word's label where there are some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Encoding

from transept.errors import InputError
from transept.preprocess.page import BOX_HINT, check_box
from transept.preprocess.settings import need
from transept.preprocess.text.encoder import Request
from transept.preprocess.text.encoding import BatchEncoding, Padding
from transept.preprocess.text.loading import Parts
from transept.preprocess.text.tokenizer import Tokenizer

_NOWHERE = (0, 0, 0, 0)
BOX_OPTIONS = {f"{token}_token_box": list(_NOWHERE) for token in ("cls", "sep", "pad")}
BOX_OPTIONS |= {"pad_token_label": -100, "only_label_first_subword": True}  # type: ignore[dict-item]


@dataclass(frozen=True)
class Pages:
    """What the words of each page have beside: boxes, and labels or ``None``; ``paired`` where questions come before them."""

    boxes: list[list[list[int]]]
    labels: list[list[int]] | None
    paired: bool


def _rows(values: Any, several: bool, words: Sequence[Any], what: str) -> list[Any]:
    """What there is for the words of each page, as many as there are words; ``InputError`` where there are more or fewer."""
    values = values.tolist() if hasattr(values, "tolist") else values
    need(f"`{what}`", values, list | tuple, "a list with one entry a word, or for several pages a list of such lists")
    rows = list(values) if several else [values]
    if len(rows) != len(words):
        raise InputError(f"there are {len(words)} pages of words, but `{what}` has {len(rows)}.")
    for page, (row, own) in enumerate(zip(rows, words, strict=True)):
        row = row.tolist() if hasattr(row, "tolist") else row
        need(f"page {page} of `{what}`", row, list | tuple, "a list with one entry a word")
        if len(row) != len(own):
            raise InputError(f"page {page} has {len(own)} words, but `{what}` has {len(row)} for it.")
    return [row.tolist() if hasattr(row, "tolist") else row for row in rows]


def _option(name: str) -> Any:
    """A setting that is an attribute too."""

    def put(tokenizer: BoxTokenizer, value: Any) -> None:
        tokenizer._options[name] = _checked(name, value)

    return property(lambda tokenizer: tokenizer._options[name], put)


def _checked(name: str, value: Any) -> Any:
    if name.endswith("_box"):
        return check_box(value, f"`{name}`")
    need(f"`{name}`", value, bool if name == "only_label_first_subword" else int)
    return value


class BoxTokenizer(Tokenizer):
    """A tokenizer of the words of pages.

    Options: ``cls_token_box``, ``sep_token_box`` and ``pad_token_box``, the boxes of special tokens (a question's words have
    that of padding); ``pad_token_label``, the label of tokens that have none; ``only_label_first_subword``, whether of a word's
    tokens the first alone has its label.
    """

    maps = True
    _pages: Pages | None = None
    cls_token_box, sep_token_box, pad_token_box = map(_option, ("cls_token_box", "sep_token_box", "pad_token_box"))
    pad_token_label, only_label_first_subword = map(_option, ("pad_token_label", "only_label_first_subword"))

    def _take(self, parts: Parts) -> None:
        super()._take(parts)
        for name, default in BOX_OPTIONS.items():
            given = self._options.get(name)
            self._options[name] = _checked(name, default if given is None else given)

    def __call__(  # type: ignore[override]
        self, text: Any = None, text_pair: Any = None, boxes: Any = None, word_labels: Any = None, **options: Any
    ) -> BatchEncoding:
        """Encode the words of a page, or of several, alone or behind questions about them.

        Args:
            text: the words of a page or a list of N such lists; with ``text_pair`` a question or a list of N questions.
            text_pair: the words, where there is a question.
            boxes: for each word its left, top, right and bottom, whole numbers from 0 to 1000.
            word_labels: for each word a class, which becomes ``labels``.
            options: arguments of every tokenizer's call, such as ``truncation`` and ``return_overflowing_tokens``.

        Returns:
            The usual columns, ``bbox`` (N, T, 4), and ``labels`` (N, T) where there are any.

        Raises:
            InputTypeError, InputError: no words or no boxes, another number of them, a box that is not on the page.
        """
        words = text if text_pair is None else text_pair
        need("the words of a page", words, list | tuple, "a list of words, or a list of such lists")
        if boxes is None:
            raise InputError("words come without their `boxes`.", hint=BOX_HINT)
        several = isinstance(words[0] if text_pair is None and words else text, list | tuple) and bool(words)
        if text_pair is not None:
            text = [_split(one) for one in text] if several else _split(text)
        rows = list(words) if several else [words]
        for page, row in enumerate(rows):
            need(f"page {page}", row, list | tuple, "a list of words")
        found = [
            [check_box(box, f"word {place} of page {page}") for place, box in enumerate(row)]
            for page, row in enumerate(_rows(boxes, several, rows, "boxes"))
        ]
        labels = None if word_labels is None else _rows(word_labels, several, rows, "word_labels")
        twin = self._with(_pages=Pages(found, labels, text_pair is not None))
        options.pop("is_split_into_words", None)
        return Tokenizer.__call__(twin, text, text_pair, is_split_into_words=True, **options)

    def tokenize(self, text: Any, pair: Any = None, add_special_tokens: bool = False, **kwargs: Any) -> list[str]:
        kwargs = {"verbose": False} | kwargs | {"return_offsets_mapping": True}
        return Tokenizer.__call__(self, text, pair, add_special_tokens=add_special_tokens, **kwargs).tokens()

    def _limits(self, *given: Any, **more: Any) -> Any:
        rows, cut = super()._limits(*given, **more)
        if isinstance(rows, Padding):
            rows.fill.update(bbox=self.pad_token_box, labels=self.pad_token_label)
        return rows, cut

    def _columns(self, encodings: Sequence[Encoding], samples: Sequence[int], request: Request) -> dict[str, Any]:
        columns, pages, padding = super()._columns(encodings, samples, request), self._pages, request.padding
        if pages is None:
            return columns
        found: dict[str, Any] = {"bbox": [list(self._boxes(one, i)) for one, i in zip(encodings, samples, strict=True)]}
        if pages.labels is not None:
            found["labels"] = [list(self._labels(one, i)) for one, i in zip(encodings, samples, strict=True)]
        if padding is not None:
            width = padding.width(list(map(len, encodings)))
            found = {name: padding.rows(rows, width, padding.fill[name]) for name, rows in found.items()}
        return columns | found

    def _words(self, encoding: Encoding) -> Iterator[int | None]:
        """For each token the number of its word on the page; ``None`` for those of questions, and special ones."""
        pages = self._pages
        for word, text in zip(encoding.word_ids, encoding.sequence_ids, strict=True):
            yield None if pages is not None and pages.paired and text == 0 else word

    def _boxes(self, encoding: Encoding, page: int) -> Iterator[list[int]]:
        assert self._pages is not None
        boxes = self._pages.boxes[page]
        special = {self.sep_token_id: self.sep_token_box, self.cls_token_id: self.cls_token_box}
        for index, text, word in zip(encoding.ids, encoding.sequence_ids, self._words(encoding), strict=True):
            if word is not None:
                yield boxes[word]
            else:
                yield self.pad_token_box if text is not None else special.get(index, self.sep_token_box)

    def _labels(self, encoding: Encoding, page: int) -> Iterator[int]:
        assert self._pages is not None
        assert self._pages.labels is not None
        labels, before = self._pages.labels[page], None
        for word in self._words(encoding):
            shown = word is not None and (word != before or not self.only_label_first_subword)
            yield labels[word] if shown and word is not None else self.pad_token_label
            before = word


def _split(question: Any) -> Any:
    return question.split() if isinstance(question, str) else question
