"""Any task: what the pipeline of that name answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from transept.errors import InputError, TranseptError, nearest
from transept.pipelines import ALIASES
from transept.pipelines.tasks.generation import WritingPipeline
from transept.serving.protocol.base import Body, Name
from transept.serving.tasks import TaskModel

# What strings of inputs are: texts; media; or both by their keys.
TEXTS = {"text-classification", "zero-shot-classification", "token-classification", "fill-mask", "question-answering"}
TEXTS |= {"text-embedding", "text-similarity", "text-ranking", "feature-extraction"}
TEXTS |= {"text2text-generation", "summarization", "translation"}
MEDIA = {"image-classification", "object-detection", "image-segmentation", "depth-estimation", "image-to-text"}
MEDIA |= {"image-embedding", "image-feature-extraction", "zero-shot-image-classification"}
MEDIA |= {"audio-classification", "audio-embedding", "automatic-speech-recognition"}
ASKED = {"visual-question-answering", "document-question-answering"}
# Options that reach beyond an answer, or have no effect over a wire.
_REFUSED = {"generation", "ignore_warning", "image_processor_kwargs", "lang", "padding", "processor_kwargs", "return_tensors"}
_REFUSED |= {"streamer", "tesseract_config", "timeout", "tokenizer_kwargs"}
# Settings of writing that a client may choose.
_WRITING = {"max_new_tokens", "min_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty"}
_WRITING |= {"no_repeat_ngram_size", "length_penalty"}
_MOST = 1024  # of tokens that are written, and of texts in a parameter


class TaskRequest(Body):
    """Inputs of a pipeline, and its options."""

    model: Name | None = None
    inputs: Any
    parameters: Annotated[dict[str, Any], Field(max_length=64)] = {}

    @property
    def items(self) -> list[Any]:
        """What is read."""
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer; tokens are not counted.

        Raises:
            InputError: inputs or parameters that the task does not have.
        """
        task, pipeline = ALIASES.get(task, task), model.doing(task)
        self._check_parameters(task, pipeline)
        check_inputs(task, self.inputs)
        found = pipeline(self.inputs, on_error="return", progress=False, **self.parameters)
        answers = found if isinstance(found, list) else [found]
        for position, answer in enumerate(answers):
            if isinstance(answer, InputError):
                raise InputError(f"input {position}: {answer.message}", hint=answer.hint)
            if isinstance(answer, TranseptError):
                raise answer
        return told(found), 0

    def _check_parameters(self, task: str, pipeline: Any) -> None:
        known = {option.name for option in fields(pipeline.options_class)} - _REFUSED
        known |= _WRITING if isinstance(pipeline, WritingPipeline) else set()
        for name, value in self.parameters.items():
            if name not in known:
                raise InputError(f"{task} takes no parameter {name!r:.80} here.", hint=nearest(name, known))
            if isinstance(value, list) and len(value) > _MOST:
                raise InputError(f"the parameter {name!r} has {len(value)} entries, but {_MOST} are the most.")
            if name in ("max_new_tokens", "num_beams") and not (isinstance(value, int) and 1 <= value <= _MOST):
                raise InputError(f"`{name}` must be a whole number from 1 to {_MOST}, but is {value!r:.80}.")


def check_inputs(task: str, inputs: Any) -> None:
    """Refuse inputs that name a file or an address: texts are texts, and media are ``data:`` URLs (``InputError``)."""
    if isinstance(inputs, list) and not inputs:
        raise InputError("`inputs` is empty.")
    if task in TEXTS:
        return
    for item in inputs if isinstance(inputs, list) else [inputs]:
        if task in MEDIA:
            _check_medium(item)
        elif task in ASKED:
            if not isinstance(item, Mapping) or item.keys() != {"image", "question"}:
                raise InputError(f"an input of {task} must be an object with `image` and `question`.")
            _check_medium(item["image"])
        elif task != "table-question-answering" or not isinstance(item, Mapping) or isinstance(item.get("table"), str):
            raise InputError(f"this server takes no such input of {task}.", hint="See the docs of `transept serve`.")


def _check_medium(item: Any) -> None:
    if not isinstance(item, str) or not item.startswith("data:"):
        raise InputError("pictures and sounds must be `data:` URLs: no path or address is opened.")


def told(value: Any) -> Any:
    """An answer as JSON has it: arrays as lists, pictures as ``data:`` URLs."""
    if isinstance(value, Mapping):
        return {str(key): told(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return told(asdict(value))
    if hasattr(value, "save") and hasattr(value, "mode"):
        buffer = io.BytesIO()
        value.save(buffer, format="PNG")
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return value
