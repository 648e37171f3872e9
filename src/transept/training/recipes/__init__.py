"""Recipes: what `transept train TASK` needs to know of each task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from transept.errors import UnsupportedError, nearest

if TYPE_CHECKING:
    from transept.training.recipes.base import Recipe

# The file and the class of each task.
RECIPES = {
    "text-classification": "classification.TextClassification",
    "token-classification": "classification.TokenClassification",
    "question-answering": "pairs.QuestionAnswering",
    "multiple-choice": "classification.MultipleChoice",
    "masked-lm": "language.MaskedLM",
    "causal-lm": "language.CausalLM",
    "seq2seq": "pairs.Seq2Seq",
    "translation": "pairs.Translation",
    "summarization": "pairs.Summarization",
    "sentence-embedding": "pairs.SentenceEmbedding",
    "preference": "pairs.Preference",
    "self-training": "classification.SelfTraining",
    "autoencoder": "media.Reconstruction",
    "image-classification": "media.ImageClassification",
    "object-detection": "media.ObjectDetection",
    "ctc": "media.CTC",
    "speech-to-text": "media.SpeechToText",
}
ALIASES = {
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
    if name not in RECIPES:
        raise UnsupportedError(f"there is no recipe for {task!r}.", hint=nearest(task, [*RECIPES, *ALIASES]))
    file, _, recipe = RECIPES[name].partition(".")
    kind: type[Recipe] = getattr(importlib.import_module(f"{__name__}.{file}"), recipe)
    return kind
