"""Completions: texts that go on from prompts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr, model_validator

from transept.errors import InputError
from transept.preprocess.text.answers import TextDelta
from transept.preprocess.text.vocabulary import TokenBytes
from transept.serving.answering import Piece, Prompt
from transept.serving.engine.logprobs import Offsets, of_completion
from transept.serving.errors import FieldError
from transept.serving.models import WritingModel
from transept.serving.protocol.base import Text, Token, Writing

DEFAULT_TOKENS = 16  # as the API has it
MAX_PROMPTS = 128

Ids = Annotated[list[Token], Field(min_length=1, max_length=2**22)]


class CompletionRequest(Writing):
    """A prompt, or several: texts or ids."""

    reads, names = "prompt", ("text_completion", "text_completion", "cmpl")

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=16)] | None = None

    @model_validator(mode="after")
    def _check_counts(self) -> CompletionRequest:
        if self.best_of not in (None, self.n or 1):
            raise FieldError("best_of", "`best_of` is served only where it equals `n`.")
        if self.max_tokens == 0 and not self.echo:
            raise FieldError("max_tokens", "`max_tokens` may be 0 only with `echo`.")
        return self

    def prompts(self, model: WritingModel) -> list[Prompt]:
        """What the engine reads, which the tokenizer makes (``InputError`` where that cannot be)."""
        given: Any = self.prompt
        listed = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        if len(listed) * (self.n or 1) > MAX_PROMPTS:
            raise InputError(
                f"{len(listed)} prompts times `n` are more than the {MAX_PROMPTS} answers that a request may have."
            )
        self._bytes = model.token_bytes
        rows = [model.tokenizer(each).input_ids if isinstance(each, str) else each for each in listed]
        new = DEFAULT_TOKENS if self.max_tokens is None else max(self.max_tokens, 1)
        settings = self.settings(model.model.generation_config, new, model.vocabulary)
        found = [Prompt(ids, settings, self.stop or (), logprobs=self.logprobs, writes=self.max_tokens != 0) for ids in rows]
        for prompt, each in zip(found, listed, strict=True):
            if self.echo:
                prompt.echo = each if isinstance(each, str) else model.tokenizer.decode(each, skip_special_tokens=True)
        return found

    def choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """What is told of an answer, or of a piece of it."""
        text = "".join(event.text for piece in pieces for event in piece.events if isinstance(event, TextDelta))
        told = None
        if self.logprobs is not None:
            tokens = [token for piece in pieces for token in piece.tokens]
            told = of_completion(tokens, self._bytes, self._offsets.setdefault(index, Offsets()))
        return {"index": index, "text": text, "logprobs": told, "finish_reason": pieces[-1].finish}

    _bytes: TokenBytes = PrivateAttr()
    _offsets: dict[int, Offsets] = PrivateAttr(default_factory=dict)
