"""Completions: texts that go on from prompts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from transept.preprocess.text.answers import TextDelta
from transept.serving.answering import Answers, Piece, Prompt
from transept.serving.models import WritingModel
from transept.serving.protocol.base import Count, Text, Token, Writing, head

DEFAULT_TOKENS = 16  # as the API has it
MAX_PROMPTS = 128

Ids = Annotated[list[Token], Field(min_length=1, max_length=2**22)]


class CompletionRequest(Writing):
    """A prompt, or several: texts or ids."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    max_tokens: Count | None = None

    def prompts(self, model: WritingModel) -> list[Prompt]:
        """What the engine reads, which the tokenizer makes (``InputError`` where that cannot be)."""
        given: Any = self.prompt
        listed = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        rows = [model.tokenizer(each).input_ids if isinstance(each, str) else each for each in listed]
        settings = self.settings(model.model.generation_config, self.max_tokens or DEFAULT_TOKENS, model.vocabulary)
        return [Prompt(ids, settings, self.stop or ()) for ids in rows]

    def head(self) -> dict[str, Any]:
        """What the answer begins with."""
        return head("text_completion", "cmpl", self.model)

    def opening(self, answers: Answers) -> list[dict[str, Any]]:
        """The choices that begin a stream: none."""
        return []

    def choice(self, piece: Piece) -> list[dict[str, Any]]:
        """What a chunk tells of a piece."""
        text = "".join(event.text for event in piece.events if isinstance(event, TextDelta))
        return [{"index": piece.choice, "text": text, "logprobs": None, "finish_reason": piece.finish}]

    def whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """An answer that is not streamed."""
        text = "".join(event.text for piece in pieces for event in piece.events if isinstance(event, TextDelta))
        return {"index": index, "text": text, "logprobs": None, "finish_reason": pieces[-1].finish}
