"""What the ways to answer questions about a text share: how they are asked, and how what is asked is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transept.errors import InputError, InputTypeError
from transept.pipelines.base import Pipeline
from transept.pipelines.text import check_text


class Questions(Pipeline[Any]):
    """A task that answers ``{"question": str, "context": str}``. As the reference does, a list of one question is answered as
    that question alone is.
    """

    def __call__(self, inputs: Any = None, context: Any = None, *, question: Any = None, **options: Any) -> Any:
        """Answer questions.

        Args:
            inputs: a mapping with ``question`` and ``context``, or several of them; or a question, with its context behind
                it.
            question, context: in place of ``inputs``: one question or several, and one context for all or one for each.
            options: see :class:`QuestionOptions` and ``Pipeline.__call__``.
        """
        if context is not None:
            inputs = paired(inputs if question is None else question, context)
        elif inputs is None or question is not None:
            raise InputError("a question needs a context.", hint="Call it with question=... and context=....")
        found = super().__call__(inputs, **options)
        return found[0] if isinstance(inputs, list | tuple) and len(inputs) == 1 else found


def read_question(item: Any) -> tuple[str, str]:
    """The question and the context of an input.

    Raises:
        InputError, InputTypeError: it has none, or they are empty.
    """
    if not isinstance(item, Mapping) or not {"question", "context"} <= item.keys():
        raise InputTypeError(
            f"a question and a context were expected, but the input is {type(item).__name__}: {str(item)[:60]!r}.",
            hint='Pass {"question": ..., "context": ...}.',
        )
    question, context = check_text(item["question"]), check_text(item["context"])
    for name, text in (("question", question), ("context", context)):
        if not text:
            raise InputError(f"the {name} is empty.")
    return question, context


def paired(question: Any, context: Any) -> Any:
    """Questions and contexts given apart, as one input or a list of them.

    Raises:
        InputError: numbers that do not match, or something else than texts.
    """
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    several = isinstance(question, Iterable) and not isinstance(question, str | Mapping)
    questions = list(question) if several else None
    if questions is None or not isinstance(context, str | list | tuple):
        raise InputTypeError(
            f"`question` and `context` must be texts or lists of texts, but are {type(question).__name__} and "
            f"{type(context).__name__}."
        )
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    if len(contexts) != len(questions):
        raise InputError(f"there are {len(questions)} questions, but {len(contexts)} contexts.")
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]
