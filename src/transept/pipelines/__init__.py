"""Tasks from raw inputs to answers: ``pipeline("text-classification", model=path)("I love this")``."""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, Any

from transept.errors import InputError, UnsupportedError, nearest
from transept.source import take_source_options

if TYPE_CHECKING:
    import torch

    from transept.core.model import Model
    from transept.pipelines.base import Pipeline

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
    "tokens": ("feature-extraction", "image-feature-extraction", "fill-mask", "token-classification"),
    "vision": ("object-detection", "image-segmentation", "depth-estimation"),
}
TASKS = {task: file for file, tasks in FILES.items() for task in tasks}
ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification", "vqa": "visual-question-answering"}
_LANGUAGES = re.compile(r"translation_(\w+?)_to_(\w+)")


def task_names() -> list[str]:
    """The names of all tasks."""
    return sorted(TASKS)


def task_class(task: str) -> type[Pipeline[Any]]:
    """The class of a task; an ``UnsupportedError`` where there is none of that name."""
    name = ALIASES.get(task, task)
    if name not in TASKS:
        raise UnsupportedError(f"there is no task {task!r}.", hint=nearest(task, [*TASKS, *ALIASES]))
    module = importlib.import_module(f"{__name__}.tasks.{TASKS[name]}")
    wanted = f"{name.replace('-', '')}pipeline"
    found: type[Pipeline[Any]] = next(value for key, value in vars(module).items() if key.lower() == wanted)
    return found


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        return importlib.import_module(f"{__name__}.base").Pipeline
    for task in (*TASKS, *ALIASES):
        if name.lower() == f"{task.replace('-', '')}pipeline":
            return task_class(task)
    from transept.compat.names import installed

    return installed().get(name, __name__, ("compat.pipelines",))


def pipeline(
    task: str | None = None,
    model: str | os.PathLike[str] | Model | None = None,
    *,
    device: str | int | torch.device | None = None,
    dtype: Any = None,
    batch_size: int | None = None,
    budget: int | None = None,
    packed: bool = True,
    **more: Any,
) -> Any:
    """Make the pipeline of a task.

    Args:
        task: its name, such as ``text-classification``; when absent, told from the class that the model was saved from.
        model: a directory, a repository, or a loaded model (then its tokenizer or processor must be passed too).
        device: ``"cpu"``, ``"cuda:0"``, or a GPU's number; a GPU where there is one when absent.
        dtype: type of the weights: the checkpoint's when absent; ``"auto"`` for the device's fastest exact enough one;
            ``"int8"`` for linear layers of eight bits on the CPU, which answer a little differently.
        batch_size, budget: rows, and positions (padding included), of a batch at most; the latter by device and
            padding when absent.
        packed: put weights into the processor's own layout, for models loaded here on the CPU.
        more: ``tokenizer``, ``image_processor``, ``feature_extractor`` or ``processor``; ``config`` and ``model_kwargs`` of the
            model; where to look (``revision``, ``token``, ``cache_dir``, ...); and the task's own options.

    Raises:
        UnsupportedError, InputError: no such task, one that cannot be told, or an option that it does not have.
        FileError, FormatError, CheckpointError: the checkpoint cannot be found or used.
    """
    from transept.pipelines.components import Components, take_components

    if task is not None and (pair := _LANGUAGES.fullmatch(task)) is not None:
        task, more = "translation", {"src_lang": pair[1], "tgt_lang": pair[2]} | more
    cls = None if task is None else task_class(task)
    device, dtype = more.pop("device_map", device), more.pop("torch_dtype", dtype)
    name = cls.default_model if model is None and cls is not None else model
    if name is None:
        what = f"the task {task!r} has no default model" if task else "`task` and `model` are both absent"
        call = f"pipeline({task!r}, model=PATH)" if task else "pipeline(model=PATH)"
        raise InputError(f"{what}.", hint=f"Pass `model`: a directory or a repository that was trained for the task: {call}.")
    hub = take_source_options(more)
    parts = Components(name, take_components(more), hub, device, dtype, packed, more.pop("model_kwargs", None) or {})
    cls = cls or task_class(parts.task(task_names()))
    return cls.build(parts, batch_size=batch_size, budget=budget, **more)
