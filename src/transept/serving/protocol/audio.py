"""Speech to text, asked by a form with a file."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import PlainTextResponse

from transept.errors import InputError
from transept.pipelines.transcription import TranscriptionPipeline
from transept.serving.errors import FieldError
from transept.serving.protocol.base import Name, Reading
from transept.serving.protocol.media import Media
from transept.serving.tasks import TaskModel

MAX_FIELDS, MAX_FIELD = 16, 4096
CHUNK = 30.0  # seconds that a model without windows reads at once


class TranscriptionRequest(Reading):
    """A recording, and how it is to be answered."""

    file: Annotated[bytes, Field(min_length=1)]
    model: Name
    response_format: Literal["json", "text", "verbose_json"] = "json"
    temperature: Literal["0", "0.0"] = "0"
    language: Annotated[str, Field(pattern=r"^[A-Za-z-]{2,32}$")] | None = None

    @property
    def items(self) -> list[bytes]:
        return [self.file]

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        return await model.in_thread(lambda: self._answer(model, task)), 0

    def _answer(self, model: TaskModel, task: str) -> Any:
        pipeline, whole = model.doing(task), self.response_format == "verbose_json"
        sound = Media().sound(self.file, "file", pipeline.feature_extractor.sampling_rate)
        found = pipeline(sound, **self._options(pipeline, whole))
        if self.response_format == "text":
            return PlainTextResponse(found["text"])
        if not whole:
            return {"text": found["text"]}
        duration, chunks = len(sound["array"]) / sound["sampling_rate"], found.get("chunks", [])
        told: dict[str, Any] = {"text": found["text"], "duration": duration}
        if language := self.language or next((chunk["language"] for chunk in chunks if chunk.get("language")), None):
            told["language"] = language
        if chunks:
            told["segments"] = segments = list[dict[str, Any]]()
        for number, chunk in enumerate(chunks):
            start, end = chunk["timestamp"]
            if start is None:  # the model has not said when
                start = segments[-1]["end"] if segments else 0.0
            segments.append({"id": number, "start": start, "end": duration if end is None else end, "text": chunk["text"]})
        return told

    def _options(self, pipeline: Any, whole: bool) -> dict[str, Any]:
        """Options of the pipeline; models without windows read long recordings in chunks, as far as they can."""
        if not isinstance(pipeline, TranscriptionPipeline):
            if self.language is not None:
                raise FieldError("language", "this model has one language, so that none can be chosen.", hint="Leave it out.")
            return {} if pipeline.model.body.adapted else {"chunk_length_s": CHUNK}
        options: dict[str, Any] = {}
        if whole and pipeline.in_windows:
            options |= {"return_timestamps": True, "return_language": True}
        return options if self.language is None else options | {"generate_kwargs": {"language": self.language}}


logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it tells of bytes of bodies that are no forms


class _Parser(MultiPartParser):
    """Reads a form into memory, where its body is already."""

    spool_max_size = 2**62


async def read_form(request: Request) -> TranscriptionRequest:
    """The request that a form holds; names and types of files are not looked at.

    Raises:
        InputError: the body is no form.
        RequestValidationError: its fields are none of such a request.
    """
    limits: dict[str, Any] = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD}
    try:
        form = await _Parser(request.headers, request.stream(), **limits).parse()
    except MultiPartException as error:
        raise InputError(f"the body is no form that is read here. {error.message}") from error
    fields = {name: value if isinstance(value, str) else await value.read() for name, value in form.items()}
    await form.close()
    for name in fields:
        if len(form.getlist(name)) > 1:
            raise FieldError(name[:80], f"the form has the field {name!r:.80} twice.")
    try:
        return TranscriptionRequest.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False, include_context=False), body=fields) from error
