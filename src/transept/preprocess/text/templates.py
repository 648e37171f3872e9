"""What goes into a chat template: messages as plain values, and control tokens in them.

Control tokens in what users write can be kept from steering the model: two characters for private use stand around each while
a template is rendered, and what stands between them is encoded as plain text. What a template writes itself has no such marks.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transept.errors import InputError, InputTypeError
from transept.preprocess.settings import need

if TYPE_CHECKING:
    from transept.preprocess.text.encoder import Encoder

Message = dict[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names under which messages hold reasoning; templates read the first, and some the second."""
_HINT = 'Pass [{"role": "user", "content": "..."}].'
_MAX_DEPTH = 100
_OPEN = "CONTINUE_FINAL_MESSAGE_TAG "
_START, _END = "\U000f0000", "\U000f0001"
_MARKED = re.compile(f"{_START}([^{_START}{_END}]*){_END}|[{_START}{_END}]")


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` out of texts, numbers, truth values, ``None``, lists, tuples and dicts alone.

    Dataclasses and pydantic models become dicts. Pictures, arrays and other objects have methods that a template must not
    reach, so a text with the name of their type stands for them.
    """
    if depth > _MAX_DEPTH:
        raise InputError(f"a chat cannot nest its values deeper than {_MAX_DEPTH} levels.")
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):  # a subclass, which may have more methods
            return getattr(kind, f"__{kind.__name__}__")(value)
    if isinstance(value, Mapping):
        return {plain(key, depth + 1): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(plain(item, depth + 1) for item in value)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        return plain(value.item(), depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    return plain(dump(), depth + 1) if callable(dump) else f"<{type(value).__name__}>"


def conversations_of(conversation: Any) -> tuple[list[list[Message]], bool]:
    """The conversations that a call passes, as plain messages without values of ``None``, and whether it passes a batch."""
    chats = getattr(conversation, "messages", conversation)
    if not isinstance(chats, Sequence) or isinstance(chats, str | bytes):
        raise InputTypeError(f"a conversation is a list of messages, but {type(chats).__name__} was passed.", hint=_HINT)
    if not chats:
        raise InputError("the conversation is empty.", hint="Pass at least one message.")
    batched = isinstance(chats[0], list | tuple) or hasattr(chats[0], "messages")
    batch: list[Any] = [getattr(chat, "messages", chat) for chat in chats] if batched else [chats]
    for place, chat in enumerate(batch):
        if not isinstance(chat, Sequence) or isinstance(chat, str | bytes):
            raise InputTypeError(f"conversation {place} is {chat!r:.80}, but must be a list of messages.", hint=_HINT)
    return [[_message(message, place) for place, message in enumerate(chat)] for chat in batch], batched


def _message(value: Any, place: int) -> Message:
    message = plain(value)
    need(f"message {place}", message, dict, hint=_HINT)
    message = {key: item for key, item in message.items() if item is not None}
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def documents_of(documents: Any) -> Any:
    need("documents", documents, list | tuple | None, "a list of dicts")
    for place, document in enumerate(documents or ()):
        need(f"document {place}", document, Mapping, "a dict with a title and a text")
    return plain(documents)


def open_end(chat: list[Message], key: str, template: str) -> str:
    """Put a mark at the end of the last message's part ``key``, so that what a template writes after it can be cut off.

    Returns:
        The text that goes on.
    """
    asked = f"continue_final_message asks to go on with {key!r}, but"
    last = chat[-1] if chat else {}
    if (text := last.get(key)) is None:
        raise InputError(f"{asked} the last message has none.")
    keys = [name for name in REASONING if last.get(name) == text] if key in REASONING else [key]
    if not any(name in template for name in keys):
        raise InputError(f"{asked} the chat template does not use it.")
    if isinstance(text, list | tuple):
        parts = [part for part in text if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if not parts:
            raise InputError(f"{asked} it holds no text.")
        last, keys, text = parts[-1], ["text"], parts[-1]["text"]
    if not isinstance(text, str):
        raise InputTypeError(f"{asked} it is {type(text).__name__} and no text.")
    last.update(dict.fromkeys(keys, text + _OPEN))
    return text


def cut_end(rendered: str, text: str) -> str:
    """What was rendered, up to the mark that :func:`open_end` put after ``text``."""
    place = rendered.rfind(_OPEN.strip())
    if place < 0 or text.strip() not in rendered:
        what = f"the chat template leaves out the end of the last message ({text.strip()[-80:]!r}), so it cannot be continued."
        raise InputError(what, hint="Use a template that writes whole messages.")
    # Where the template has stripped the message, the space before its end belongs to the message too.
    return rendered[:place] if rendered.startswith(_OPEN, place) else rendered[:place].rstrip()


def control_tokens(tokenizer: Encoder, stated: Sequence[str] | None, literals: Iterable[str]) -> list[str]:
    """The tokens that only a template may write, longest first: special and added ones that are stated, or in its texts."""
    need("tokenizer.chat_control_tokens", stated, list | tuple | None, "a list of texts")
    found = set()
    for token in tokenizer.added_tokens_decoder.values():
        text = token.content
        used = text in stated if stated is not None else not text.isspace() and any(text in one for one in literals)
        if text and (token.special or used):
            found.add(text)
    return sorted(found, key=len, reverse=True)


def marked(value: Any, tokens: Sequence[str]) -> Any:
    """``value`` with every control token in its texts marked; keys of dicts are left as they are."""
    if isinstance(value, str):
        text = value.replace(_START, "").replace(_END, "")
        present = [token for token in tokens if token in text]
        return re.sub("|".join(map(re.escape, present)), lambda found: f"{_START}{found[0]}{_END}", text) if present else text
    if isinstance(value, dict):
        return {key: marked(item, tokens) for key, item in value.items()}
    return [marked(item, tokens) for item in value] if isinstance(value, list | tuple) else value


def encode_marked(tokenizer: Encoder, text: str) -> list[int]:
    """The ids of a rendered chat, of what is marked those of plain text. Marks that are torn apart divide the text."""
    added = tokenizer.added_tokens_encoder
    newline = tokenizer.encode_ids(["\n"], add_special_tokens=False)[0]
    ids: list[int] = []
    for place, piece in enumerate(_MARKED.split(text)):
        if not piece:
            continue
        encode = _plain_ids if place % 2 and piece in added else _ids
        found = encode(tokenizer, "\n" + piece if place else piece)
        if place:  # after a newline, so that no space is put before the piece as before a text
            found = found[len(newline) :] if found[: len(newline)] == newline else encode(tokenizer, piece)
        if encode is _plain_ids and added[piece] in found:
            raise InputError(f"{piece!r} in a message cannot be made harmless: the vocabulary makes it out of plain text.")
        ids += found
    return ids


def _ids(tokenizer: Encoder, text: str) -> list[int]:
    return tokenizer.encode_ids([text], add_special_tokens=False)[0]


def _plain_ids(tokenizer: Encoder, text: str) -> list[int]:
    """The ids of a text by the parts of the backend's pipeline, which as a whole would look for added tokens."""
    backend = tokenizer._backend
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    pieces = [text] if backend.pre_tokenizer is None else [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for piece in pieces for token in backend.model.tokenize(piece)]
