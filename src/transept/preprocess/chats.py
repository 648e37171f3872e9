"""Chats with pictures, videos and sounds: what their messages hold besides texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transept.errors import InputError
from transept.preprocess import placeholders
from transept.preprocess.features import BatchFeature, as_numpy

# The type of a part of a message -> what a call takes it as, and the keys that it can stand under.
_KINDS = {
    "image": ("images", ("image", "url", "path", "base64")),
    "video": ("videos", ("video", "url", "path")),
    "audio": ("audio", ("audio", "url", "path")),
}
Media = dict[str, list[list[Any]]]


def encode_chat(processor: Any, conversation: Any, images: list[Any], **options: Any) -> tuple[list[int], BatchFeature]:
    """The ids of a chat of somebody who is not trusted, and what a model reads of its pictures beside them, as tensors.

    They are those of the processor's :meth:`apply_chat_template`, but that control tokens in the texts of messages, such as
    placeholders of pictures, are plain text.

    Args:
        processor: of pictures and texts; the template is that of its tokenizer.
        conversation: messages, in which ``{"type": "image"}`` stands for each picture.
        images: the pictures, in their order.
        options: of the tokenizer's :meth:`apply_chat_template`.

    Raises:
        InputError: a chat that cannot be used, or a template that does not show each picture once.
    """
    tokenizer = processor.tokenizer
    ids = list(tokenizer.apply_chat_template(conversation, sanitize_control_tokens=True, return_dict=False, **options))
    if tokenizer.bos_token_id is None or ids[:1] != [tokenizer.bos_token_id]:
        ids = tokenizer.build_inputs_with_special_tokens(ids)
    tokens = {kind: tokenizer.convert_tokens_to_ids(token) for kind, token in processor.placeholders.items()}
    if (shown := ids.count(tokens["images"])) != len(images):
        raise InputError(f"the chat has {len(images)} images, but the model's chat template shows {shown}.")
    if not images:
        return ids, BatchFeature({})
    inputs = processor(images=images, return_tensors="pt")
    texts = processor.replacements("images", inputs, {})
    features = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
    ids = [each for index in ids for each in (next(features) if index == tokens["images"] else [index])]
    if processor.return_mm_token_type_ids:
        inputs["mm_token_type_ids"] = placeholders.type_ids([ids], tokens)
        inputs.convert_to_tensors("pt")
    return ids, inputs


def split_media(conversation: Any) -> tuple[Any, Media]:
    """A conversation or N of them as a template reads them, and their pictures, videos and sounds: one list a chat.

    A part such as ``{"type": "image", "image": source}`` may have its source under ``url``, ``path`` or ``base64`` too;
    ``{"type": "image_url", "image_url": {"url": source}}`` is the same. A part without a source is a placeholder alone.
    """
    found: Media = {kind: [] for kind, _ in _KINDS.values()}
    chats = getattr(conversation, "messages", conversation)
    batched = isinstance(chats, list | tuple) and bool(chats) and not isinstance(chats[0], Mapping)
    if not isinstance(chats, list | tuple) or (
        batched and not all(isinstance(_messages(chat), list | tuple) for chat in chats)
    ):
        return conversation, found  # for the renderer to refuse
    seen = []
    for number, chat in enumerate(chats if batched else [chats]):
        for rows in found.values():
            rows.append([])
        seen.append(
            [_message(message, f"message {place} of chat {number}", found) for place, message in enumerate(_messages(chat))]
        )
    return seen if batched else seen[0], found


def _messages(chat: Any) -> Any:
    return getattr(chat, "messages", chat)


def _message(message: Any, place: str, found: Media) -> Any:
    """A message with its sources taken out into the last row of each kind."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [_part(part, place, found) for part in content]}


def _part(part: Any, place: str, found: Media) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "image_url":
        address = part.get("image_url")
        part = {"type": "image", "url": address.get("url") if isinstance(address, Mapping) else address}
    name = part.get("type")
    if not isinstance(name, str) or name not in _KINDS:
        return part
    kind, keys = _KINDS[name]
    for key, source in _sources(part, keys):
        if key in ("url", "path", "base64") and not isinstance(source, str) and not hasattr(source, "__fspath__"):
            raise InputError(f"{place} has {source!r:.60} under {key!r}, which must be a text.")
        plain = key == "base64" and isinstance(source, str) and not source.startswith("data:")
        found[kind][-1].append(f"data:image;base64,{source}" if plain else source)
        break
    return part


def _sources(part: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        if (source := part.get(key)) is not None and (as_numpy(source) is not None or source != ""):
            yield key, source
