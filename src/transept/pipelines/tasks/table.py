"""Questions about tables, answered by cells, or by what is made of them (Herzig et al. 2020)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from transept.core.auto import AutoModelForTableQuestionAnswering
from transept.errors import InputError, TranseptError
from transept.heads.table import COLUMN, KINDS, ROW
from transept.pipelines.base import Options, TaskPipeline, to_numpy
from transept.pipelines.batching import Sample, attempt
from transept.pipelines.text import check_text, padded, unexpected
from transept.preprocess.table import TextTable, read_table
from transept.tables.files import load_dataset_file

_HINT = 'Pass pipe(table, "question") or pipe({"table": {"name": [cells], ...}, "query": "question"}).'
_ANSWERED = 3  # the kind of token types that tells of earlier answers


class TableQuestionOptions(Options):
    """Options of ``table-question-answering``.

    Args:
        sequential: whether questions about a table follow one another, as in a conversation: each reads the answers to the one
            before it.
        truncation: ``"drop_rows_to_fit"``, as where it is absent, or ``False`` to refuse tables that are too long.
        padding: taken for the reference's sake; it has no effect.
    """

    sequential: bool = False
    truncation: bool | str | None = None
    padding: bool | str | None = None


class TableQuestionAnsweringPipeline(TaskPipeline[Any]):
    """For ``{"table", "query"}`` an answer ``{"answer", "coordinates", "cells"}``; for several queries a list of them.

    A table is ``{"name": [cells], ...}``, a list of rows ``{"name": cell, ...}``, a DataFrame of pandas, or the path of a file
    of rows, such as a CSV file. ``coordinates`` are pairs of a row and a column, from 0 on without the header. Where the model
    aggregates cells, ``aggregator`` says how, and the answer begins with it.
    """

    task, auto, options_class = "table-question-answering", AutoModelForTableQuestionAnswering, TableQuestionOptions
    components: ClassVar[tuple[str, ...]] = ("tokenizer",)
    asked: ClassVar[Mapping[str, Any]] = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
    first = "table"
    tokenizer: Any

    def check_model(self) -> None:
        self.need(hasattr(self.model, "find_cells"), "answers with the cells of tables")

    def __call__(self, table: Any = None, query: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """As of every pipeline; the table and the query, or several, may also be passed one by one."""
        return super().__call__(table if query is None else {"table": table, "query": query}, **options)

    def prepare(self, items: Sequence[Any], options: Any) -> list[list[Sample] | TranseptError]:
        return [attempt(self.read, item, options) for item in items]

    def read(self, item: Any, options: Any) -> list[Sample]:
        """The questions about a table: a row each, or all in one where they follow one another."""
        if not isinstance(item, Mapping) or "table" not in item or "query" not in item:
            raise unexpected("a table and a query were", item, _HINT)
        table, queries = item["table"], item["query"]
        table = read_table(list(load_dataset_file(table)) if isinstance(table, str | os.PathLike) else table)
        queries = list(map(check_text, queries if isinstance(queries, list | tuple) else [queries]))
        if not (table.rows and table.columns) or not queries or not all(queries):
            raise InputError("the table or the query is empty.", hint=_HINT)
        encoded = self.tokenizer(table, queries, truncation=options.truncation in (None, True, "drop_rows_to_fit"))
        rows = list(zip(encoded["input_ids"], encoded["token_type_ids"], strict=True))
        turns = [rows] if options.sequential else [[row] for row in rows]
        return [Sample({"turns": turn, "table": table}, max(len(ids) for ids, _ in turn)) for turn in turns]

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        return self.batch([sample.inputs["turns"][0] for sample in samples])

    def batch(self, rows: Sequence[tuple[list[int], list[Any]]]) -> dict[str, Tensor]:
        """Ids and token types, padded."""
        device, pad = self.model.device, self.model.config.pad_token_id or 0
        ids = padded([ids for ids, _ in rows], pad, device)
        return {
            "input_ids": ids,
            "attention_mask": padded([[1] * len(ids) for ids, _ in rows], 0, device),
            "token_type_ids": padded([types for _, types in rows], [0] * KINDS, device),  # type: ignore[arg-type]
        }

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[list[tuple[Any, int | None]]]:
        """For each row the coordinates of its answers, and how they are aggregated, turn by turn."""
        found: list[list[tuple[Any, int | None]]] = [[] for _ in samples]
        for turn in range(max(len(sample.inputs["turns"]) for sample in samples)):
            chosen = [place for place, sample in enumerate(samples) if turn < len(sample.inputs["turns"])]
            rows = [samples[place].inputs["turns"][turn] for place in chosen]
            if turn:
                rows = [(ids, _marked(types, found[place][-1][0])) for place, (ids, types) in zip(chosen, rows, strict=True)]
            for place, answer in zip(chosen, self.find(self.batch(rows)), strict=True):
                found[place].append(answer)
        return found

    def find(self, batch: dict[str, Tensor]) -> list[tuple[Any, int | None]]:
        output = self.run(batch)
        to_numpy(output.logits)  # which are to be finite
        ways = output.get("logits_aggregation") if self.model.config.aggregation_labels else None
        given = {name: values.cpu().numpy() for name, values in batch.items()}
        more = () if ways is None else (to_numpy(ways),)
        cells, *aggregated = self.tokenizer.convert_logits_to_predictions(given, to_numpy(output.logits), *more)
        return list(zip(cells, aggregated[0] if aggregated else [None] * len(cells), strict=True))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        found = [self.shown(samples[0].inputs["table"], *each) for result in results for each in result]
        return found if len(found) > 1 else found[0]

    def shown(self, table: TextTable, coordinates: list[tuple[int, int]], way: int | None) -> dict[str, Any]:
        """An answer with its cells, and behind the name of what is made of them."""
        c, cells = self.model.config, [table.rows[row][column] for row, column in coordinates]
        name = "" if way is None else c.aggregation_labels[way]
        prefix = f"{name} > " if way is not None and way != c.no_aggregation_label_index else ""
        found = {"answer": prefix + ", ".join(cells), "coordinates": coordinates, "cells": cells}
        return found | ({"aggregator": name} if name else {})


def _marked(types: list[Any], answers: list[tuple[int, int]]) -> list[Any]:
    """Token types that say which cells were answers."""
    marked = np.array(types)
    marked[:, _ANSWERED] = [(row - 1, column - 1) in answers for row, column in marked[:, [ROW, COLUMN]].tolist()]
    return marked.tolist()  # type: ignore[no-any-return]
