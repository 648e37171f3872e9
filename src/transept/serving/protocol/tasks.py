"""Any task: what the pipeline of that name answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from starlette.responses import Response

from transept.batch.encode import encode
from transept.errors import InputError, TranseptError, nearest
from transept.pipelines import ALIASES
from transept.pipelines.tasks.generation import WritingPipeline
from transept.serving.errors import FieldError
from transept.serving.protocol.base import Reading
from transept.serving.protocol.media import Media
from transept.serving.tasks import TaskModel

# What strings of inputs are: texts; pictures; sounds; or pictures and texts by their keys.
TEXTS = {"text-classification", "zero-shot-classification", "token-classification", "fill-mask", "question-answering"}
TEXTS |= {"text-embedding", "text-similarity", "text-ranking", "feature-extraction"}
TEXTS |= {"text2text-generation", "summarization", "translation"}
PICTURES = {"image-classification", "object-detection", "image-segmentation", "depth-estimation", "image-to-text"}
PICTURES |= {"image-embedding", "image-feature-extraction", "zero-shot-image-classification"}
SOUNDS = {"audio-classification", "audio-embedding", "automatic-speech-recognition"}
ASKED = {"visual-question-answering", "document-question-answering"}
# Options that reach beyond an answer, or have no effect over a wire.
_REFUSED = {"generation", "ignore_warning", "image_processor_kwargs", "lang", "padding", "processor_kwargs", "return_tensors"}
_REFUSED |= {"sampling_rate", "streamer", "tesseract_config", "timeout", "tokenizer_kwargs"}
# Settings of writing that a client may choose.
_WRITING = {"max_new_tokens", "min_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty"}
_WRITING |= {"no_repeat_ngram_size", "length_penalty"}
_SPEAKING = _WRITING | {"language", "task"}  # in `generate_kwargs`, of speech
_MOST = 1024  # of tokens that are written, and of texts in a parameter
_LARGEST = 2**53  # of numbers
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


class TaskRequest(Reading):
    """Inputs of a pipeline, and its options."""

    inputs: Any
    parameters: Annotated[dict[str, Any], Field(max_length=64)] = {}

    @property
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        return await model.in_thread(lambda: self._answer(model, task)), 0

    def _answer(self, model: TaskModel, task: str) -> Any:
        task, pipeline = ALIASES.get(task, task), model.doing(task)
        self._check_parameters(task, pipeline)
        inputs = opened(task, self.inputs, getattr(getattr(pipeline, "feature_extractor", None), "sampling_rate", 0))
        found = pipeline(inputs, on_error="return", progress=False, **self.parameters)
        answers = found if isinstance(found, list) else [found]
        for position, answer in enumerate(answers):
            if isinstance(answer, InputError):
                raise InputError(f"input {position}: {answer.message}", hint=answer.hint)
            if isinstance(answer, TranseptError):
                raise answer
        return Response(encode(found), media_type="application/json")

    def _check_parameters(self, task: str, pipeline: Any) -> None:
        types = get_type_hints(pipeline.options_class)
        known = {option.name for option in fields(pipeline.options_class)} - _REFUSED
        known |= _WRITING if isinstance(pipeline, WritingPipeline) else set()
        for name, value in self.parameters.items():
            check_parameter(task, name, value, known)
            if name == "generate_kwargs" and isinstance(value, Mapping):
                for inner, each in value.items():
                    check_parameter(task, inner, each, _SPEAKING)
            try:
                TypeAdapter(types.get(name, Any), config=_STRICT).validate_python(value)
            except ValidationError as error:
                what = f"the parameter {name!r} of {task} cannot be {value!r:.80}: {error.errors()[0]['msg']}."
                raise FieldError(f"parameters.{name}", what) from error


def check_parameter(task: str, name: str, value: Any, known: Collection[str]) -> None:
    """Refuse a parameter that is not known, or is larger than a client may ask for (``FieldError``)."""
    param = f"parameters.{name:.80}"
    if name not in known:
        raise FieldError(param, f"{task} takes no parameter {name!r:.80} here.", hint=nearest(name, known))
    if isinstance(value, list) and len(value) > _MOST:
        raise FieldError(param, f"the parameter {name!r} has {len(value)} entries, but {_MOST} are the most.")
    if isinstance(value, int | float) and abs(value) > _LARGEST:
        raise FieldError(param, f"`{name}` must be a number from {-_LARGEST} to {_LARGEST}.")
    if name in ("max_new_tokens", "num_beams") and not (isinstance(value, int) and 1 <= value <= _MOST):
        raise FieldError(param, f"`{name}` must be a whole number from 1 to {_MOST}, but is {value!r:.80}.")


def opened(task: str, inputs: Any, rate: int) -> Any:
    """Inputs as the pipeline reads them: texts are texts, and pictures and sounds come as ``data:`` URLs (``InputError``).

    ``rate`` is that of sounds, where the task is about some.
    """
    if isinstance(inputs, list) and not inputs:
        raise InputError("`inputs` is empty.")
    if task in TEXTS:
        return inputs
    media, places = Media(), isinstance(inputs, list)
    found = [
        _opened(task, item, media, f"inputs.{place}" if places else "inputs", rate)
        for place, item in enumerate(inputs if places else [inputs])
    ]
    return found if places else found[0]


def _opened(task: str, item: Any, media: Media, param: str, rate: int) -> Any:
    if task in SOUNDS:
        return media.sound(item, param, rate)
    if task in PICTURES:
        return media.picture(item, param)
    if task in ASKED:
        more = {"word_boxes"} if task == "document-question-answering" else set()
        if not isinstance(item, Mapping) or item.keys() - more != {"image", "question"}:
            raise FieldError(param, f"an input of {task} must be an object with `image` and `question`.")
        return {**item, "image": media.picture(item["image"], f"{param}.image")}
    if not isinstance(item, Mapping) or item.keys() != {"table", "query"} or isinstance(item["table"], str):
        raise FieldError(param, f"an input of {task} must be an object with `query` and `table`, which holds the cells.")
    return item
