"""The tasks of pipelines by name: this library's, and those of users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transept.errors import InputError, InputTypeError, UnsupportedError, nearest

# The tasks of each file in ``tasks/``.
FILES = {
    "automatic_speech_recognition": ("automatic-speech-recognition",),
    "classification": ("text-classification", "image-classification", "audio-classification", "zero-shot-classification"),
    "document": ("document-question-answering",),
    "describe": ("image-to-text", "visual-question-answering"),
    "dual": ("zero-shot-image-classification",),
    "embedding": ("image-embedding", "audio-embedding"),
    "generation": ("text-generation", "text2text-generation", "summarization", "translation"),
    "image_text": ("image-text-to-text",),
    "question_answering": ("question-answering",),
    "retrieval": ("text-embedding", "text-similarity", "text-ranking"),
    "table": ("table-question-answering",),
    "tokens": ("feature-extraction", "image-feature-extraction", "fill-mask", "token-classification"),
    "vision": ("object-detection", "image-segmentation", "depth-estimation"),
}
TASKS = {task: file for file, tasks in FILES.items() for task in tasks}
ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification", "vqa": "visual-question-answering"}


@dataclass(frozen=True)
class Registered:
    """A task of a user: its class, and the model and the revision that it has where none is passed."""

    pipeline_class: type[Any]
    model: str | None = None
    revision: str | None = None


class PipelineRegistry:
    """The tasks that :func:`transept.pipeline` makes, with those that users add."""

    def __init__(self) -> None:
        self.registered: dict[str, Registered] = {}

    def get_supported_tasks(self) -> list[str]:
        """The names of all tasks."""
        return sorted({*TASKS, *ALIASES, *self.registered})

    def register_pipeline(
        self,
        task: str,
        pipeline_class: type[Any],
        pt_model: Any = None,
        default: Any = None,
        type: str | None = None,
    ) -> None:
        """Add a task, or replace one of a user.

        Args:
            task: its name.
            pipeline_class: a subclass of :class:`transept.Pipeline`.
            pt_model: the class that loads its model, or a tuple of which the first does; the checkpoint's own when absent.
            default: the model that it has where none is passed, ``(name, revision)`` under ``"pt"``.
            type: taken for the reference's sake; the class says what it loads.

        Raises:
            InputTypeError, InputError: what is no class of pipelines, or the name of a task of this library.
        """
        if not (hasattr(pipeline_class, "_sanitize_parameters")):
            raise InputTypeError(f"{pipeline_class!r:.80} is no class of pipelines.", hint="Subclass transept.Pipeline.")
        if task in TASKS or task in ALIASES:
            hint = "Take another name, or pass pipeline(pipeline_class=...)."
            raise InputError(f"the task {task!r} is one of this library.", hint=hint)
        models = pt_model if isinstance(pt_model, tuple) else (pt_model,)
        if models and models[0] is not None:
            pipeline_class.auto = models[0]
        stated = default.get("model", default) if isinstance(default, dict) else {"pt": default}
        name, revision = stated["pt"] if isinstance(stated.get("pt"), tuple | list) else (stated.get("pt"), None)
        self.registered[task] = Registered(pipeline_class, name, revision)

    def find(self, task: str) -> Registered | None:
        """A task of a user; ``None`` for this library's, and an ``UnsupportedError`` for a name that is none."""
        if task in self.registered or ALIASES.get(task, task) in TASKS:
            return self.registered.get(task)
        raise UnsupportedError(f"there is no task {task!r}.", hint=nearest(task, self.get_supported_tasks()))


PIPELINE_REGISTRY = PipelineRegistry()
