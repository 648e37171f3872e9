"""The tokenizer of questions about tables, which says of each token where it stands, and how cells compare.

Shapes: N questions about one table, T tokens.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transept.errors import InputError, TranseptWarning, refuse
from transept.preprocess.features import check_tensor_type, choice
from transept.preprocess.settings import need
from transept.preprocess.table import TextTable, column_values, comparable, read_table, values_of
from transept.preprocess.text.classes.wordpiece import BertTokenizer, word_list
from transept.preprocess.text.encoding import BatchEncoding, Padding, pad_batch

_NO_WORDS, _NAMELESS = re.compile(r"[^\w\d]+"), {"n/a", "?", "nan"}
_FIT = "drop_rows_to_fit"
_TRUNCATIONS = {False: None, None: None, "do_not_truncate": None, True: _FIT, _FIT: _FIT}
_NONE = [0] * 7
Place = tuple[int, int]  # a row and a column, counted from 0, without the header


def _is_empty(text: str) -> bool:
    text = text.lower().strip()
    return text in _NAMELESS or not _NO_WORDS.sub(" ", text).replace("_", " ").strip()


@dataclass(frozen=True)
class _Token:
    """A token of a table: its id, its column from 1 on, its row (0 for the header), and the place of its word in its cell."""

    id: int
    column: int
    row: int
    word: int


@dataclass(frozen=True)
class _Table:
    """A table that is encoded: its tokens, and for each column the values of rows."""

    text: TextTable
    tokens: list[_Token]
    values: list[dict[int, Any]]

    def costs(self, rows: int) -> list[list[int]]:
        """How many tokens there are in the header and 0, 1, ... rows, of cells that are cut after 1, 2, ... tokens."""
        import numpy as np  # not at the top: other tokenizers need none of it

        counts = np.zeros((rows + 1, max((token.word for token in self.tokens), default=0) + 1), int)
        for token in self.tokens:
            if token.row <= rows:
                counts[token.row, token.word] += 1
        found: list[list[int]] = counts.cumsum(0).cumsum(1).tolist()
        return found


class TapasTokenizer(
    BertTokenizer,
    options=dict(BertTokenizer.family.options)
    | {"do_basic_tokenize": True, "never_split": None, "empty_token": "[EMPTY]", "cell_trim_length": -1}
    | dict.fromkeys(("max_column_id", "max_row_id", "min_question_length", "max_question_length"))
    | {"strip_column_names": False, "update_answer_coordinates": False},
    extra_tokens=lambda options: (str(options.get("empty_token") or "[EMPTY]"),),
    max_length=512,
    applied=True,
    portable=False,
    model_types=("tapas",),
):
    """TAPAS's: ``[CLS] question [SEP] table``, with seven token types for each token.

    Options: ``empty_token`` stands for cells without words; cells are cut after ``cell_trim_length`` tokens, unless that is
    negative; tables have fewer columns and rows than ``max_column_id`` and ``max_row_id`` (``model_max_length`` by default);
    questions that are not of ``min_question_length`` to ``max_question_length`` tokens are left out;
    ``strip_column_names`` leaves the header out.
    """

    def __call__(  # type: ignore[override]  # the names are the reference's
        self,
        table: Any = None,
        queries: Any = None,
        answer_coordinates: Any = None,
        answer_text: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = False,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_special_tokens_mask: bool = False,
        return_length: bool = False,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Encode a question about a table, or several.

        Args:
            table: ``{"name": [cells], ...}``, rows ``[{"name": cell, ...}, ...]``, or a DataFrame; without ``queries`` one or
                several texts, which come without a table.
            queries: a question or a list of N questions. Each knows what the answers to the one before it were.
            answer_coordinates: for each question the cells that answer it, pairs of a row and a column, from 0 on without the
                header; they become ``labels`` with the numbers that a loss needs.
            answer_text: the texts of these cells.
            truncation: ``True`` or ``"drop_rows_to_fit"``: cells are cut, and then rows left out, until the table fits.

        The other arguments are as for :class:`Tokenizer`.

        Returns:
            ``input_ids``, ``attention_mask`` (N, T) and ``token_type_ids`` (N, T, 7); with answers ``labels``,
            ``numeric_values`` and ``numeric_values_scale`` (N, T). Without N for one question, unless tensors are asked for.

        Raises:
            InputTypeError, InputError: what is no table or question, a question and a header that do not fit, an answer that is
                not in the table.
        """
        check_tensor_type(return_tensors)
        if queries is None:
            table, queries = {}, table
        need("`queries`", queries, str | list | tuple, "a text or a list of texts")
        single, names = isinstance(queries, str), self.model_input_names
        asked, held = [queries] if single else list(queries), self.read(table)
        given = answer_coordinates is not None and answer_text is not None
        what = "`answer_coordinates` and `answer_text` come together, for each question a list of pairs and of texts."
        refuse((answer_coordinates is None) != (answer_text is None), what)
        answers: list[Any] = ([answer_coordinates] if single else list(answer_coordinates)) if given else [None] * len(asked)
        refuse(len(answers) != len(asked), f"there are {len(asked)} questions, but answers to {len(answers)}.")
        cut = choice("truncation", truncation, _TRUNCATIONS) is not None
        columns: dict[str, list[Any]] = {}
        for query, answer, before in zip(asked, answers, [None, *answers], strict=False):
            for name, row in self.row(query, held, answer, before, (cut, max_length, add_special_tokens)).items():
                columns.setdefault(name, []).append(row)
        if not return_special_tokens_mask:
            columns.pop("special_tokens_mask", None)
        if not ("token_type_ids" in names if return_token_type_ids is None else return_token_type_ids):
            columns.pop("token_type_ids", None)
        if return_length:
            columns["length"] = [len(row) for row in columns["input_ids"]]
        rows = self._limits(padding, False, max_length, pad_to_multiple_of, padding_side, verbose=False)[0]
        if isinstance(rows, Padding):
            rows.fill.update(token_type_ids=_NONE, labels=0, numeric_values=float("nan"), numeric_values_scale=1.0)
        mask = "attention_mask" in names if return_attention_mask is None else return_attention_mask
        found = dict(pad_batch(columns, "input_ids", rows, mask, None)) if asked else {"input_ids": []}
        if single:
            found = {name: rows[0] for name, rows in found.items()}
        return BatchEncoding(found, tensor_type=return_tensors, prepend_batch_axis=single)

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:  # type: ignore[override]
        """The tokens of a text, as the vocabulary writes them; ``empty_token`` for one without words."""
        return self.convert_ids_to_tokens(self.pieces([text])[0])  # type: ignore[return-value]

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; that of ``empty_token`` for one without words."""
        rows = super().__call__(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        empty: Any = self.convert_tokens_to_ids(self.empty_token)
        return [[empty] if text and _is_empty(text) else row for text, row in zip(texts, rows, strict=True)]

    def read(self, table: Any) -> _Table:
        """A table with its tokens and its numbers."""
        text = read_table(table)
        header = [""] * len(text.columns) if self.strip_column_names else text.columns
        found, most = list[_Token](), self.max_column_id or self.model_max_length
        what = f"the table has {len(header)} columns, but the model takes fewer than {most}."
        refuse(len(header) >= most, what, "Pass fewer.")
        ids = iter(self.pieces([cell for row in (header, *text.rows) for cell in row]))
        inner = {index for token, index in self.get_vocab().items() if token.startswith("##")}
        for row in range(len(text.rows) + 1):
            for column in range(len(header)):
                word = 0
                for place, index in enumerate(next(ids)):
                    word = word if index in inner else place
                    found.append(_Token(index, column + 1, row, word))
        return _Table(text, found, [column_values([row[column] for row in text.rows]) for column in range(len(header))])

    def _files(self) -> dict[str, str | bytes]:
        """With the vocabulary alone, which the reference reads."""
        return super()._files() | {"vocab.txt": word_list(self._backend)}

    def question(self, query: Any) -> tuple[str, list[int]]:
        need("a question", query, str, "a text")
        ids = self.pieces([query])[0]
        least, most = self.min_question_length or 0, self.max_question_length
        if least <= len(ids) and (most is None or len(ids) <= most):
            return query, ids
        what = f"a question of {len(ids)} tokens is left out, by the tokenizer's options."
        warnings.warn(what, TranseptWarning, stacklevel=4)
        return "", []

    def fitting(self, table: _Table, question: int, cut: bool, length: int | None) -> list[_Token]:
        """The tokens of a table that go behind a question of so many tokens."""
        rows, most = len(table.text.rows), self.max_row_id or self.model_max_length
        what = f"the table has {rows} rows, but the model takes fewer than {most}."
        refuse(rows >= most and not cut, what, "Pass truncation=True.")
        if not cut:
            return table.tokens
        rows, room = min(rows, most - 1), (self.model_max_length if length is None else length) - question - 2
        width, trim = max((token.word for token in table.tokens), default=-1) + 1, self.cell_trim_length
        goal, costs = min(width, trim) if trim >= 0 else width, table.costs(rows)
        while True:
            cost = costs[rows]
            size = next((size for size in range(goal + 1) if cost[min(size, len(cost) - 1)] > room), goal)
            if size == goal or (trim < 0 and size > 0):
                break
            rows -= 1
            if rows < 1:
                size = 0
                break
        return [token for token in table.tokens if token.row <= rows and token.word < max(size, 1)]

    def row(self, query: Any, table: _Table, answer: Any, before: Any, how: tuple[bool, int | None, bool]) -> dict[str, Any]:
        """The columns of one question."""
        import numpy as np  # not at the top: other tokenizers need none of it

        cut, length, special = how
        query, ids = self.question(query)
        cells = self.fitting(table, len(ids), cut, length)
        ends: list[Any] = [self.cls_token_id, self.sep_token_id] if special else []
        row = [*ends[:1], *ids, *ends[1:], *(token.id for token in cells)]
        what = f"the question and the header of the table are {len(row)} tokens, but `max_length` is {length}."
        refuse(length is not None and len(row) > length, what, "Pass truncation=True, or a larger max_length.")
        start, at = len(ids) + len(ends), dict[Place, list[int]]()
        for place, token in enumerate(cells, start):
            at.setdefault((token.row - 1, token.column - 1), []).append(place)
        kinds = np.zeros((7, start + len(cells)), int)
        kinds[0, start:] = 1
        kinds[1, start:], kinds[2, start:] = [token.column for token in cells], [token.row for token in cells]
        self.compare(kinds, values_of(query), table, at)
        found: dict[str, Any] = {"input_ids": row}
        if before is not None:
            self.mark(kinds[3], before, at)
        if answer is not None:
            labels, values, scale = np.zeros(kinds.shape[1], int), np.full(kinds.shape[1], np.nan), np.ones(kinds.shape[1])
            self.mark(labels, answer, at)
            for (line, column), places in at.items():
                value = table.values[column].get(line)
                values[places] = value if isinstance(value, float) else np.nan
                scale[places] = len(places) if line >= 0 else 1
            found |= {"labels": labels.tolist(), "numeric_values": values.tolist(), "numeric_values_scale": scale.tolist()}
        masked = [1] * bool(special) + [0] * len(ids) + [1] * bool(special) + [0] * len(cells)
        return found | {"token_type_ids": kinds.T.tolist(), "special_tokens_mask": masked}

    def mark(self, row: Any, answer: Any, at: Mapping[Place, list[int]]) -> None:
        """Put 1 where the cells of an answer stand."""
        refuse(self.update_answer_coordinates, "answers are found by their coordinates; set update_answer_coordinates=False.")
        for place in answer:
            if tuple(place) not in at:
                what = f"the answer {tuple(place)} is not in the table, or was cut off."
                raise InputError(what, hint="Pass (row, column), from 0 on.")
            row[at[tuple(place)]] = 1

    def compare(self, kinds: Any, asked: Sequence[Any], table: _Table, at: Mapping[Place, list[int]]) -> None:
        """Put the ranks of cells in their columns, from both ends, and how they compare with what is asked."""
        for column, values in enumerate(table.values):
            if values and (keys := comparable(list(values.values()))) is not None:
                order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
                for line, key in zip(values, keys, strict=True):
                    places = at.get((line, column), [])
                    kinds[4, places], kinds[5, places] = order[key] + 1, len(order) - order[key]
            for value in asked if values else ():
                if (keys := comparable([*values.values(), value])) is not None:
                    for line, key in zip(values, keys, strict=False):
                        relation = 1 if keys[-1] == key else 2 if keys[-1] < key else 4
                        kinds[6, at.get((line, column), [])] |= relation

    def convert_logits_to_predictions(
        self, data: Mapping[str, Any], logits: Any, logits_agg: Any = None, cell_classification_threshold: float = 0.5
    ) -> tuple[Any, ...]:
        """For each question its answers, (row, column) from 0 on, and with ``logits_agg`` (N, A) how they are aggregated.

        Args:
            data: what a call gave, as tensors or arrays.
            logits: (N, T), of tokens.
            cell_classification_threshold: how likely, on average over its tokens, a cell is that answers.
        """
        import numpy as np  # not at the top: other tokenizers need none of it

        shares = 1 / (1 + np.exp(-np.clip(np.asarray(logits), -88.7, None))) * np.asarray(data["attention_mask"])
        found = []
        for row, kinds in zip(shares, np.asarray(data["token_type_ids"]), strict=True):
            if not kinds[:, 1:3].any():
                continue
            cells: dict[Place, list[float]] = {}
            for share, (segment, column, line) in zip(row.tolist(), kinds[:, :3].tolist(), strict=True):
                if segment == 1 and column > 0 and line > 0:
                    cells.setdefault((line - 1, column - 1), []).append(share)
            found.append(sorted(place for place, each in cells.items() if np.mean(each) > cell_classification_threshold))
        return (found,) if logits_agg is None else (found, np.asarray(logits_agg).argmax(axis=-1).tolist())


TapasTokenizerFast = TapasTokenizer
