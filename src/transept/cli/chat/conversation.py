"""A conversation that a pipeline writes: its messages, and a cache of keys and values that is kept from turn to turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transept.cli.generate import Show, Written, write
from transept.cli.terminal import complain
from transept.errors import FormatError, InputError, TranseptError
from transept.storage.files import load_json

# The share of the context that is kept free for an answer.
SHARE = 4


class Conversation:
    """Messages between a user and a model, by a pipeline that writes.

    ``sees`` is the processor of a model that reads pictures; ``images`` are the paths of those that go with the next message.
    ``read`` are the ids that the cache holds, with ``seen``, the pictures among them.
    """

    def __init__(self, pipe: Any, settings: dict[str, Any], system: str | None = None) -> None:
        from transept.pipelines.text import NO_LIMIT

        self.pipe, self.settings, self.system = pipe, settings, system
        self.sees = getattr(pipe, "processor", None)
        self.context: int | None = pipe.max_length if pipe.max_length < NO_LIMIT else None
        self.stats: Any = None
        self.begin()

    def begin(self, messages: list[dict[str, Any]] | None = None) -> None:
        """Go on from some messages, or begin anew with the system's text alone."""
        anew = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.messages = anew if messages is None else messages
        self.images: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self.cache: Any = None
        self.read: list[int] = []
        self.seen: list[str] = []

    def until_user(self) -> list[dict[str, Any]]:
        """The messages up to the last one of the user (``InputError``: there is none)."""
        for end in range(len(self.messages), 0, -1):
            if self.messages[end - 1]["role"] == "user":
                return self.messages[:end]
        raise InputError("nothing has been said yet.")

    def answer(self, text: str, show: Show | None) -> Written:
        """Answer a message; ``show`` gets the text as it comes. After an error the conversation is as it was."""
        before, images = list(self.messages), self.images
        pictures = [{"type": "image", "image": path} for path in images]
        content: Any = [*pictures, {"type": "text", "text": text}] if pictures else text
        self.messages.append({"role": "user", "content": content})
        try:
            made = self._written(*self._fitting(), show)
        except BaseException:  # of the cache nobody knows
            self.begin(before)
            self.images = images
            raise
        self.messages.append({"role": "assistant", "content": made.text})
        self.images = []
        return made

    def again(self, show: Show | None) -> Written:
        """Answer the last message of the user anew."""
        kept, (*before, last) = self.messages, self.until_user()
        self.messages, self.images = before, pictures_of([last])
        try:
            return self.answer(text_of(last), show)
        except BaseException:
            self.begin(kept)
            raise

    def load(self, path: Path) -> None:
        """Go on from the messages in a file, which the model's template must take."""
        from transept.pipelines.tasks.generation import is_chat

        found: Any = load_json(path)
        if not is_chat(found) or not all(self._is_message(each) for each in found):
            what = "the file holds no conversation: a list of messages with `role` and `content`, both texts."
            raise FormatError(what, path=path)
        try:
            self._batch([*found, {"role": "user", "content": "Go on."}])
        except TranseptError as error:
            raise FormatError(f"the conversation cannot be gone on with: {error}", path=path) from error
        self.begin(list(found))

    def _is_message(self, message: dict[str, Any]) -> bool:
        content = message.get("content")
        parts = content if isinstance(content, list) and self.sees is not None else [{"type": "text", "text": content}]
        known = [isinstance(part, dict) and isinstance(part.get(str(part.get("type"))), str) for part in parts]
        return isinstance(message.get("role"), str) and all(known)

    def _fitting(self) -> tuple[dict[str, Any], int]:
        """What the model reads, and how many tokens it may write.

        Where the messages leave no room, the oldest exchanges are dropped, and that is said.
        """
        limit, new, messages = int(self.pipe.max_length), self.settings["max_new_tokens"], self.messages
        room, before = limit - min(new, max(limit // SHARE, 1)), len(messages)
        first = int(messages[0]["role"] == "system")
        while (length := (batch := self._batch(messages))["input_ids"].shape[1]) > room:
            if len(messages) - first < 2:
                what = f"the message has {length} tokens, but {limit - room} for the answer leave room for {room}."
                raise InputError(what, hint="Shorten it, or lower max_new_tokens.")
            del messages[first : first + 2]
        if dropped := before - len(messages):
            complain(f"the conversation is too long for the model: its {dropped} oldest messages are forgotten.", "warning")
        return batch, min(new, limit - length)

    def _batch(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of one for the model: the ids of a conversation, and its pictures."""
        if self.sees is not None:
            said = [{**each, "content": parts_of(each)} for each in messages]
            found: dict[str, Any] = self.pipe.collate(self.pipe.read(said, self.pipe.options))
            return found
        plain = messages if self.pipe.tokenizer.chat_template else "\n".join(map(text_of, messages))
        return {"input_ids": self.pipe.tensor(list(self.pipe.row(plain).inputs["input_ids"]))}

    def _written(self, batch: dict[str, Any], most: int, show: Show | None) -> Written:
        """Write an answer. Where a step was broken off, the cache is begun anew."""
        ids: list[int] = batch["input_ids"][0].tolist()
        pictures = pictures_of(self.messages)
        self._recall(ids, pictures)
        settings = self.settings | {"past_key_values": self.cache, "max_new_tokens": most}
        made = write(self.pipe, batch, settings, show)
        self.stats, self.read, self.seen = made.stats, ids + made.ids, pictures
        if not made.whole:  # some layers may have read more than others
            self._forget()
        return made

    def _recall(self, ids: list[int], pictures: list[str]) -> None:
        """Let the cache hold what a prompt begins with, or nothing where it cannot forget what is different."""
        from transept.layers.caches.cache import DynamicCache
        from transept.pipelines.tasks.generation import common_prefix

        if pictures[: len(self.seen)] != self.seen:
            self._forget()
        try:
            if self.cache is not None:
                self.cache.crop(min(common_prefix(self.read, ids), len(ids) - 1))
        except InputError:  # states and windows cannot go back
            self.cache = None
        self.cache = DynamicCache() if self.cache is None else self.cache


def parts_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a message's content."""
    content = message["content"]
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content}]


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in parts_of(message) if part["type"] == "text")


def pictures_of(messages: list[dict[str, Any]]) -> list[str]:
    return [part["image"] for each in messages for part in parts_of(each) if part["type"] == "image"]
