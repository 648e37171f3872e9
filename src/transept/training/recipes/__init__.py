"""Recipes: what `transept train TASK` needs to know of each task, a file a task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from transept.errors import UnsupportedError, nearest

if TYPE_CHECKING:
    from transept.training.recipes.base import Recipe

# The file of each task.
FILES = {
    "text-classification": "text_classification",
    "token-classification": "token_classification",
    "question-answering": "question_answering",
    "multiple-choice": "multiple_choice",
    "masked-lm": "masked_lm",
    "causal-lm": "causal_lm",
    "seq2seq": "seq2seq",
    "sentence-embedding": "sentence_embedding",
    "preference": "preference",
    "image-classification": "image_classification",
    "object-detection": "object_detection",
    "ctc": "ctc",
    "speech-to-text": "speech_to_text",
}
ALIASES = {
    "translation": "seq2seq",
    "summarization": "seq2seq",
    "ner": "token-classification",
    "clm": "causal-lm",
    "mlm": "masked-lm",
    "dpo": "preference",
    "sentiment-analysis": "text-classification",
    "automatic-speech-recognition": "speech-to-text",
}


def recipe_named(task: str) -> type[Recipe]:
    """The recipe of a task (``UnsupportedError``: there is none)."""
    name = ALIASES.get(task, task)
    if name not in FILES:
        raise UnsupportedError(f"there is no recipe for {task!r}.", hint=nearest(task, [*FILES, *ALIASES]))
    module = importlib.import_module(f"{__name__}.{FILES[name]}")
    found: type[Recipe] = module.RECIPE
    return found
