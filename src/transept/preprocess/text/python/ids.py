"""Ids that were made one by one, by ``tokenize`` and ``convert_tokens_to_ids``, cut and put together as a model reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from transept.errors import InputError
from transept.preprocess.features import check_tensor_type, choice
from transept.preprocess.text.chat import ChatTokenizer
from transept.preprocess.text.encoder import TRUNCATIONS, Request, columns_of
from transept.preprocess.text.encoding import BatchEncoding

CUT = ("overflowing_tokens", "num_truncated_tokens")


@dataclass
class Row:
    """The ids of a text or a pair with special tokens around them, under the names of the library's own encodings.

    ``overflowing_tokens`` are the ids that were cut off, behind the ``stride`` ids before them.
    """

    ids: list[int]
    type_ids: list[int]
    special_tokens_mask: list[int]
    overflowing_tokens: list[int] = field(default_factory=list)
    num_truncated_tokens: int = 0

    def __len__(self) -> int:
        return len(self.ids)


class IdsTokenizer(ChatTokenizer):
    """An encoder of ids beside texts."""

    model_input_names: list[str]
    _as_target = False

    @contextmanager
    def as_target_tokenizer(self) -> Iterator[None]:
        """Let calls within a ``with`` encode what the model is to give, as ``text_target`` of a call does."""
        self._as_target = True
        try:
            yield
        finally:
            self._as_target = False

    def prepare_for_model(
        self,
        ids: list[int],
        pair_ids: list[int] | None = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = False,
        max_length: int | None = None,
        stride: int = 0,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        prepend_batch_axis: bool = False,
    ) -> BatchEncoding:
        """A model's inputs of the ids of a text, or of a pair; the arguments are those of a call.

        What is cut off stands in ``overflowing_tokens``, and how many ids that are in ``num_truncated_tokens``.
        ``prepend_batch_axis`` gives tensors an axis for one row.
        """
        check_tensor_type(return_tensors)
        rows, cut = self._limits(padding, truncation, max_length, pad_to_multiple_of, padding_side, stride, verbose)
        wanted = {
            "input_ids": True,
            "token_type_ids": return_token_type_ids,
            "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
            "length": return_length,
        }
        columns = [name for name, want in wanted.items() if (name in self.model_input_names if want is None else want)]
        columns += CUT if return_overflowing_tokens else ()
        request = Request(columns, rows, cut, add_special_tokens, tensors=return_tensors)
        row = self._row(list(ids), None if pair_ids is None else list(pair_ids), request)
        if verbose and cut is None:
            self._warn_of_length([row])
        values = {name: value[0] for name, value in row_columns([row], request).items()}
        return BatchEncoding(values, tensor_type=return_tensors, prepend_batch_axis=prepend_batch_axis)

    def truncate_sequences(
        self,
        ids: list[int],
        pair_ids: list[int] | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: str = "longest_first",
        stride: int = 0,
    ) -> tuple[list[int], list[int] | None, list[int]]:
        """The ids without so many of them at ``truncation_side``, and those cut off behind the ``stride`` ids before them.

        ``longest_first`` cuts the longer of a pair, down to the other's length first, and tells nothing of what it cuts.
        """
        way = choice("truncation_strategy", truncation_strategy, TRUNCATIONS)
        left, count = self.truncation_side == "left", num_tokens_to_remove

        def without(row: list[int], number: int) -> list[int]:
            return row[number:] if left else row[: max(0, len(row) - number)]

        if count <= 0 or way is None:
            return ids, pair_ids, []
        if way == "longest_first" and pair_ids is not None:
            gap = min(abs(len(ids) - len(pair_ids)), count)
            rest, longer = count - gap, len(ids) > len(pair_ids)
            from_ids = rest // 2 + (gap if longer else 0)
            return without(ids, from_ids), without(pair_ids, count - from_ids), []
        row = pair_ids if way == "only_second" else ids
        if row is None:
            raise InputError("truncation_strategy is 'only_second', but there is one text alone.", hint='Pass "only_first".')
        window = min(len(row), stride + count)
        over, kept = (row[:window] if left else row[len(row) - window :]), without(row, count)
        return (ids, kept, over) if way == "only_second" else (kept, pair_ids, over)

    def _row(self, first: list[int], second: list[int] | None, request: Request) -> Row:
        """Ids cut as a request asks, with special tokens around them."""
        cut, over, special = request.truncation, list[int](), 0
        if request.add_special_tokens:
            special = self.num_special_tokens_to_add(pair=second is not None)
        excess = 0 if cut is None else max(0, len(first) + len(second or ()) + special - cut.max_length)
        if cut is not None and excess:
            if CUT[0] in request.columns and cut.strategy == "longest_first" and second is not None:
                hint = 'Pass truncation="only_first" or "only_second".'
                raise InputError("what longest_first cuts off a pair is not told.", hint=hint)
            first, second, over = self.truncate_sequences(first, second, excess, cut.strategy, cut.stride)
        if not request.add_special_tokens:
            ids = first + (second or [])
            return Row(ids, [0] * len(ids), [0] * len(ids), over, excess)
        ids = self.build_inputs_with_special_tokens(first, second)
        types = self.create_token_type_ids_from_sequences(first, second) if "token_type_ids" in request.columns else []
        mask = self.get_special_tokens_mask(first, second) if "special_tokens_mask" in request.columns else []
        return Row(ids, types, mask, over, excess)


def row_columns(rows: Sequence[Any], request: Request) -> dict[str, Any]:
    """The columns that a request wants of rows; of what is cut off only where anything is, and never as tensors."""
    cut = [name for name in request.columns if name in CUT]
    columns = columns_of(rows, replace(request, columns=[name for name in request.columns if name not in cut]))
    if request.tensors is None and any(row.overflowing_tokens for row in rows):
        columns |= {name: [getattr(row, name) for row in rows] for name in cut}
    return columns
