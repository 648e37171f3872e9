"""Tasks from raw inputs to answers: ``pipeline("text-classification", model=path)("I love this")``."""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, Any

from transept.errors import InputError, InputTypeError
from transept.pipelines.registry import ALIASES, FILES, PIPELINE_REGISTRY, TASKS
from transept.storage.source import take_source_options

if TYPE_CHECKING:
    import torch

    from transept.core.model import Model

__all__ = ["ALIASES", "FILES", "PIPELINE_REGISTRY", "TASKS", "pipeline", "task_class", "task_names"]
_LANGUAGES = re.compile(r"translation_(\w+?)_to_(\w+)")


def task_names() -> list[str]:
    """The names of all tasks."""
    return sorted(TASKS)


def task_class(task: str) -> type[Any]:
    """The class of a task; an ``UnsupportedError`` where there is none of that name."""
    if (registered := PIPELINE_REGISTRY.find(task)) is not None:
        return registered.pipeline_class
    name = ALIASES.get(task, task)
    module = importlib.import_module(f"{__name__}.tasks.{TASKS[name]}")
    wanted = f"{name.replace('-', '')}pipeline"
    found: type[Any] = next(value for key, value in vars(module).items() if key.lower() == wanted)
    return found


def __getattr__(name: str) -> Any:
    if name in ("ChunkPipeline", "Pipeline"):
        return getattr(importlib.import_module(f"{__name__}.steps"), name)
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
    pipeline_class: Any = None,
    **more: Any,
) -> Any:
    """Make the pipeline of a task.

    Args:
        task: its name, such as ``text-classification``; when absent, told from the class that the model was saved from.
        model: a directory, a repository, or a loaded model (then its tokenizer or processor must be passed too).
        device: ``"cpu"``, ``"cuda:0"``, or a GPU's number; a GPU where there is one when absent.
        dtype: type of the weights: the checkpoint's when absent; ``"auto"`` for the device's fastest exact enough one;
            ``"int8"`` or ``"int4"`` for linear layers of so many bits on the CPU, which answer a little differently.
        batch_size, budget: rows, and positions (padding included), of a batch at most; the latter by device and
            padding when absent.
        packed: put weights into the processor's own layout, for models loaded here on the CPU.
        pipeline_class: a class of one's own (see :class:`Pipeline`), in place of the task's.
        more: ``tokenizer``, ``image_processor``, ``feature_extractor`` or ``processor``; ``config`` and ``model_kwargs`` of the
            model; where to look (``revision``, ``token``, ``cache_dir``, ...); and the task's own options. ``use_fast`` and
            ``trust_remote_code`` choose nothing.

    Raises:
        UnsupportedError, InputError: no such task, one that cannot be told, or an option that it does not have.
        FileError, FormatError, CheckpointError: the checkpoint cannot be found or used.
    """
    from transept.pipelines.components import Components, take_components

    if task is not None and (pair := _LANGUAGES.fullmatch(task)) is not None:
        task, more = "translation", {"src_lang": pair[1], "tgt_lang": pair[2]} | more
    registered = None if task is None or pipeline_class is not None else PIPELINE_REGISTRY.find(task)
    if pipeline_class is not None and not hasattr(pipeline_class, "_sanitize_parameters"):
        raise InputTypeError(f"{pipeline_class!r:.80} is no class of pipelines.", hint="Subclass transept.Pipeline.")
    cls = pipeline_class or (None if task is None else task_class(task))
    if model is None and registered is not None and registered.model is not None:
        model, more = registered.model, {"revision": registered.revision} | more
    device, dtype = more.pop("device_map", device), more.pop("torch_dtype", dtype)
    name = getattr(cls, "default_model", None) if model is None else model
    if name is None:
        what = f"the task {task!r} has no default model" if task else "`task` and `model` are both absent"
        call = f"pipeline({task!r}, model=PATH)" if task else "pipeline(model=PATH)"
        raise InputError(f"{what}.", hint=f"Pass `model`: a directory or a repository that was trained for the task: {call}.")
    more.pop("use_fast", None)  # there is one implementation of each tokenizer and processor
    hub = take_source_options(more)
    parts = Components(name, take_components(more), hub, device, dtype, packed, more.pop("model_kwargs", None) or {})
    cls = cls or task_class(parts.task(task_names()))
    batching = {name: value for name, value in (("batch_size", batch_size), ("budget", budget)) if value is not None}
    named = {} if hasattr(cls, "options_class") or task is None else {"task": task}  # a class of ours has its own
    return cls.build(parts, **batching, **named, **more)
