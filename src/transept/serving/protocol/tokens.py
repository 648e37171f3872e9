"""Tokens of texts, and texts of tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from transept.errors import InputError
from transept.serving.models import WritingModel
from transept.serving.protocol.base import Name, Text, Token, Using
from transept.serving.protocol.chat import Message, read_chat
from transept.serving.tasks import TaskModel


class TokenizeRequest(Using):
    """A text, or messages that the model's template makes a text of."""

    model: Name
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    return_token_strs: bool = False

    def answer(self, model: WritingModel | TaskModel) -> dict[str, Any]:
        """The answer (``InputError`` where the model has no tokenizer or no template)."""
        if (self.prompt is None) == (self.messages is None):
            raise InputError("either `prompt` or `messages` must be there.")
        tokenizer = model.tokenizer
        if self.messages is None:
            if self.add_generation_prompt is not None:
                raise InputError("`add_generation_prompt` is for `messages`.")
            ids = tokenizer.encode_ids([self.prompt], add_special_tokens=self.add_special_tokens)[0]
        else:
            ids = read_chat(model, self.messages, add_generation_prompt=self.add_generation_prompt is not False)[0]
        found = {"tokens": ids, "count": len(ids), "max_model_len": model.context}
        return found | ({"token_strs": tokenizer.convert_ids_to_tokens(ids)} if self.return_token_strs else {})


class DetokenizeRequest(Using):
    """Tokens of a model."""

    model: Name
    tokens: Annotated[list[Token], Field(max_length=2**22)]

    def answer(self, model: WritingModel | TaskModel) -> dict[str, Any]:
        """The answer (``InputError`` for a token that there is not)."""
        most = model.vocabulary - 1
        if (wrong := next((token for token in self.tokens if token > most), None)) is not None:
            raise InputError(f"the id {wrong} is no token: there are those from 0 to {most}.")
        return {"prompt": model.tokenizer.decode(self.tokens)}
