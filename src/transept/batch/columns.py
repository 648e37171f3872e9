"""Tasks as functions of columns, for libraries that own the rows: Ray Data's ``map_batches`` and ``map`` of ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transept.errors import InputError, TranseptError, nearest


class _Columns:
    """A task's pipeline, made at the first call in each process; it pickles as its settings."""

    task: ClassVar[str]
    always: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, model: str | None = None, *, column: str = "text", **options: Any) -> None:
        self.model, self.column, self.options = model, column, options
        self._pipe: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipe": None}

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """All columns, and those of the answers; ``error`` says what is wrong with a row, and is ``None`` in the others.

        Raises:
            InputError: the column lacks.
        """
        if self.column not in columns:
            raise InputError(f"there is no column {self.column!r}.", hint=nearest(self.column, [*columns]))
        if self._pipe is None:
            from transept.pipelines import pipeline

            self._pipe = pipeline(self.task, model=self.model, **{**self.always, **self.options})
        values = columns[self.column]
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        answers = list(self._pipe.answers(values, self._pipe.options))
        errors = [str(answer) if isinstance(answer, TranseptError) else None for answer in answers]
        return {
            **columns,
            **self._columns([None if error else answer for error, answer in zip(errors, answers)]),
            "error": errors,
        }

    def _columns(self, answers: list[Any]) -> dict[str, Any]:
        raise NotImplementedError


class Embed(_Columns):
    """Texts to vectors: the column ``embedding`` of float32 (rows, size), with NaN in rows that failed.

    Args:
        model: directory or repository; the task's own by default.
        column: the column that is read.
        options: of ``pipeline`` and the task ``text-embedding``, such as ``normalize`` and ``device``.

    Example:
        ``dataset.map(Embed(column="body"), batched=True)``,
        ``ds.map_batches(Embed, fn_constructor_kwargs={"column": "body"}, concurrency=4)``.
    """

    task = "text-embedding"

    def _columns(self, answers: list[Any]) -> dict[str, Any]:
        import numpy as np

        vectors = np.full((len(answers), self._pipe.size), np.nan, np.float32)
        for vector, answer in zip(vectors, answers, strict=True):
            if answer is not None:
                vector[:] = answer
        return {"embedding": vectors}


class Generate(_Columns):
    """Prompts to what a model writes behind them: the column ``generated_text``; see :class:`Embed`.

    ``options`` are those of ``pipeline`` and the task ``text-generation``, such as ``max_new_tokens``.
    """

    task, always = "text-generation", {"return_full_text": False}

    def _columns(self, answers: list[Any]) -> dict[str, Any]:
        return {"generated_text": [None if answer is None else answer[0]["generated_text"] for answer in answers]}


class Classify(_Columns):
    """Texts to the most likely class: the columns ``label`` and ``score``; see :class:`Embed`.

    ``options`` are those of ``pipeline`` and the task ``text-classification``.
    """

    task = "text-classification"

    def _columns(self, answers: list[Any]) -> dict[str, Any]:
        return {name: [None if answer is None else answer[name] for answer in answers] for name in ("label", "score")}
