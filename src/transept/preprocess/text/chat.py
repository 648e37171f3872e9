"""Chats to a model's prompt and its answers back to messages: what a tokenizer does beyond texts and ids.

Control tokens in what users write can be kept from steering the model: two characters for private use stand around each while
a template is rendered, and what stands between them is encoded as plain text. What a template writes itself has no such marks.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from transept.errors import InputError, InputTypeError, TranseptWarning, UnsupportedError, nearest
from transept.preprocess.settings import need
from transept.preprocess.text.answers import Event, parse_answer, stream_answer
from transept.preprocess.text.encoder import Encoder
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.response_templates import ResponseTemplate
from transept.preprocess.text.tools import properties_of, schemas_of

Message = dict[str, Any]
Tools = Sequence[Mapping[str, Any] | Callable[..., Any]]
_ARGUMENTS = frozenset({"add_generation_prompt", "continue_final_message", "tokenize", "return_tensors", "padding", "tools"})
_GLOBALS = frozenset({"messages", "raise_exception", "strftime_now", "namespace", "range", "dict"})
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the names in messages; templates read the first or the second
_GENERATION = re.compile(r"\{%[-+]?\s{0,9}generation\b")
_MAX_DEPTH = 100
_OPEN = "CONTINUE_FINAL_MESSAGE_TAG "
_START, _END = "\U000f0000", "\U000f0001"
_MARKED = re.compile(f"{_START}([^{_START}{_END}]*){_END}|[{_START}{_END}]")


class ChatTokenizer(Encoder):
    """An encoder of conversations."""

    chat_template: str | dict[str, str] | None
    response_template: dict[str, Any] | None
    chat_control_tokens: list[str] | None
    __call__: Callable[..., BatchEncoding]
    pad: Callable[..., BatchEncoding]

    def get_chat_template(self, chat_template: str | None = None, tools: Tools | None = None) -> str:
        """The template that a chat is rendered by: one that is passed, itself or by name, or the tokenizer's.

        Where the tokenizer has several, any tools choose the one called ``tool_use``. ``InputError`` where there is none.
        """
        return self._named_template(chat_template, tools)[1]

    def _named_template(self, wanted: str | None, tools: Any) -> tuple[str, str]:
        held = self.chat_template
        need("tokenizer.chat_template", held, str | dict | None)
        need("chat_template", wanted, str | None)
        known = {"default": held} if isinstance(held, str) else held or {}
        if wanted is None:
            wanted = "tool_use" if tools is not None and "tool_use" in known else "default"
            if wanted not in known:
                what = "several chat templates, and none is the default" if known else "no chat template"
                hint = f"Pass chat_template=, one of {sorted(known)}." if known else "Pass chat_template=, or set it."
                raise InputError(f"the tokenizer has {what}.", hint=hint)
        if isinstance(held, dict) and wanted not in known and wanted.isidentifier():
            raise InputError(f"the tokenizer has no chat template {wanted!r}.", hint=nearest(wanted, known))
        return (wanted, known[wanted]) if wanted in known else ("chat_template", wanted)

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Tools | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        sanitize_control_tokens: bool = False,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """A conversation as the model was taught to read it.

        Args:
            conversation: messages such as ``{"role": "user", "content": "Hello"}``, or N lists of them.
            tools: functions, or their JSON schemas, that the model may call.
            documents: texts that the model may use, such as ``{"title": ..., "text": ...}``.
            chat_template: a template, or the name of one of the tokenizer's.
            add_generation_prompt: whether the beginning of an answer follows the last message.
            continue_final_message: whether the last message stays open, for the model to go on with it; a text names
                the part to go on with, such as ``reasoning_content``.
            tokenize: whether to return ids, or else the text.
            sanitize_control_tokens: whether control tokens in messages, tools, documents and ``kwargs`` are encoded as plain
                text, so that only the template's own steer the model.
            padding, truncation, max_length, return_tensors: as in a call of the tokenizer.
            return_dict: whether to return all columns, or else the ids alone.
            return_assistant_tokens_mask: whether to return ``assistant_masks`` (N, T) too: 1 for tokens of what stands in
                ``{% generation %}`` blocks.
            tokenizer_kwargs: other arguments of the call.
            kwargs: values that the template reads, such as ``enable_thinking``.

        Returns:
            A :class:`BatchEncoding`; with ``return_dict=False`` its ``input_ids``; with ``tokenize=False`` a text, or a
            list of N.

        Raises:
            InputError: a conversation or argument that cannot be used, or that the template refuses.
            FormatError: the template fails or goes beyond a limit; see :func:`transept.preprocess.text.sandbox.render`.
        """
        from transept.preprocess.text.sandbox import render, words_of

        goes_on, mask = continue_final_message, return_assistant_tokens_mask
        _check_flags(return_dict and tokenize, tokenize, add_generation_prompt, goes_on, mask, sanitize_control_tokens)
        need("tokenizer_kwargs", tokenizer_kwargs, Mapping | None)
        need("documents", documents, list | tuple | None, "a list of dicts")
        for place, document in enumerate(documents or ()):
            need(f"document {place}", document, Mapping, "a dict with a title and a text")
        name, template = self._named_template(chat_template, tools)
        chats, batched = _conversations(conversation)
        variables = _plain(self.special_tokens_map | kwargs | {"tools": schemas_of(tools), "documents": documents})
        names, literals = words_of(template, name=name)
        slips = [f"does not read {key!r}. {nearest(key, (names | _ARGUMENTS) - _GLOBALS)}" for key in kwargs.keys() - names]
        if mask and not _GENERATION.search(template):
            slips.append("has no {% generation %} block, so the mask of the assistant's tokens is 0 everywhere.")
        for slip in slips:
            warnings.warn(f"the chat template {name!r} {slip}", TranseptWarning, stacklevel=2)
        if sanitize_control_tokens:
            tokens = self._control_tokens(literals)
            chats, variables = _marked(chats, tokens), _marked(variables, tokens)
        variables["add_generation_prompt"] = add_generation_prompt
        rendered = []
        for chat in chats:
            end = _leave_open(chat, goes_on if isinstance(goes_on, str) else "content", template) if goes_on else ""
            text, spans = render(template, {"messages": chat} | variables, name=name)
            rendered.append((_cut_end(text, end) if goes_on else text, spans))
        texts: Any = [text for text, _ in rendered] if batched else rendered[0][0]
        if not tokenize:
            return texts
        limits = {"padding": padding, "truncation": truncation, "max_length": max_length, "return_tensors": return_tensors}
        usable = inspect.signature(type(self).__call__).parameters.keys() - {"self", "text", "add_special_tokens", *limits}
        for key in (tokenizer_kwargs or {}).keys() - usable:
            raise InputError(f"tokenizer_kwargs has {key!r}, which cannot be passed on.", hint=nearest(str(key), usable))
        encode = self._encode_marked if sanitize_control_tokens else partial(self, add_special_tokens=False)
        encoding = encode(texts, **limits, **(tokenizer_kwargs or {}))
        if mask:
            masks = _masks(encoding, rendered)
            encoding["assistant_masks"] = masks if batched or return_tensors else masks[0]
            encoding.convert_to_tensors(return_tensors)
        return encoding if return_dict else encoding["input_ids"]

    def encode_message_with_chat_template(
        self, message: Mapping[str, Any], conversation_history: Sequence[Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> list[int]:
        """The ids that one more message adds to a conversation: those from where the ids of the two begin to differ.

        ``kwargs`` are those of :meth:`apply_chat_template`, but for ``add_generation_prompt``.
        """
        for name in kwargs.keys() & {"add_generation_prompt", "return_dict", "return_tensors"}:
            raise InputError("a single message has no generation prompt, and its ids are a list.", hint=f"Leave {name} out.")
        need("conversation_history", conversation_history, list | tuple | None)
        history = list(conversation_history or ())
        whole: list[int] = self.apply_chat_template([*history, message], return_dict=False, **kwargs)
        if not history:
            return whole
        before = self.apply_chat_template(history, return_dict=False, **kwargs)
        return whole[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, whole))) :]

    def parse_response(
        self, response: Any, schema: Mapping[str, Any] | None = None, *, prefix: Any = None, tools: Tools | None = None
    ) -> Any:
        """What a model wrote, as a message: reasoning, content and tool calls apart.

        Args:
            response: the text or the ids (T,) that the model wrote, without the prompt; or a list of N texts, or ids (N, T).
            schema: a response template; by default the tokenizer's ``response_template``, and where that is ``None`` the
                formats that most models write: see :mod:`transept.preprocess.text.answers`.
            prefix: the prompt, or N of them, which may have begun the message, for example with ``<think>``.
            tools: the tools of the prompt, to cast arguments that the model wrote as texts to what the tool wants.

        Returns:
            A message with ``role``, ``content``, ``reasoning_content`` and ``tool_calls``, or what the template says; of a
            batch a list of N. A tool call that cannot be read stays in the content as it was written.

        Raises:
            FormatError: the response template is none.
            InputError: the prefixes are not as many as the answers, or a field that the response template wants is missing.
        """
        texts, batched = self._texts("the response", response)
        prefixes, several = self._texts("prefix", "" if prefix is None else prefix)
        starts = prefixes if several and prefixes else (prefixes or [""]) * len(texts)
        if len(starts) != len(texts):
            raise InputError(f"there are {len(texts)} answers, but {len(starts)} prefixes.")
        spec, known = self.response_template if schema is None else schema, properties_of(tools)
        usual: Callable[..., Any] = partial(parse_answer, ends=[self.eos_token or ""])
        parse = usual if spec is None else ResponseTemplate(spec).parse
        found = [parse(text, prefix=start, known=known) for text, start in zip(texts, starts)]
        return found if batched else found[0]

    def stream_response(self, pieces: Iterable[str], *, prefix: str = "", tools: Tools | None = None) -> Iterator[Event]:
        """What a model writes, as it writes it: text, reasoning and whole tool calls, in the formats that most models write.

        ``pieces`` are the texts of ``model.stream(..., skip_special_tokens=False)``; ``prefix`` and ``tools`` are as in
        :meth:`parse_response`. ``UnsupportedError`` where the tokenizer has a response template, which is for whole answers.
        """
        if self.response_template is not None:
            raise UnsupportedError("a response template is for whole answers.", hint="Use parse_response() at the end.")
        need("pieces", pieces, Iterable)
        need("prefix", prefix, str)
        return stream_answer(pieces, prefix=prefix, ends=[self.eos_token or ""], known=properties_of(tools))

    def _texts(self, name: str, value: Any) -> tuple[list[str], bool]:
        """Texts of a text, ids, or a batch of either, and whether it is a batch."""
        if isinstance(value, Mapping | set | bytes | bool | None):
            raise InputTypeError(f"{name} is {value!r:.80}, but must be a text, its ids, or a list of either.")
        if not isinstance(value, str) and not (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
            value = self.decode(value)
        return ([value], False) if isinstance(value, str) else (list(value), True)

    def _control_tokens(self, literals: Iterable[str]) -> list[str]:
        """The tokens that only a template may write, longest first: special and added ones that are stated, or in its texts."""
        stated = self.chat_control_tokens
        need("tokenizer.chat_control_tokens", stated, list | tuple | None, "a list of texts")
        shared = "\0".join(literals)
        added = [(token.content, token.special) for token in self.added_tokens_decoder.values() if token.content]
        used = [text for text, _ in added if not text.isspace() and text in shared] if stated is None else stated
        return sorted({text for text, special in added if special or text in used}, key=len, reverse=True)

    def _encode_marked(self, texts: Any, *, padding: Any, truncation: Any, max_length: Any, **options: Any) -> BatchEncoding:
        sizes = {name: options.pop(name, None) for name in ("pad_to_multiple_of", "padding_side", "return_tensors")}
        if options:
            raise InputError(f"sanitize_control_tokens=True cannot go with {', '.join(options)}.")
        _, cut = self._limits(padding, truncation, max_length, sizes["pad_to_multiple_of"], sizes["padding_side"])
        ids = list(map(self._marked_ids, [texts] if isinstance(texts, str) else texts))
        if cut is not None:
            ids = [row[: cut.max_length] if self.truncation_side == "right" else row[-cut.max_length :] for row in ids]
        single = isinstance(texts, str) and sizes["return_tensors"] is None
        columns = {self.model_input_names[0]: ids[0] if single else ids}
        return self.pad(columns, padding, max_length, verbose=False, **sizes)

    def _marked_ids(self, text: str) -> list[int]:
        """The ids of a rendered chat, of what is marked those of plain text. Marks that are torn apart divide the text."""
        added, ids = self.added_tokens_encoder, list[int]()
        newline = self._ids("\n", False)
        for place, piece in enumerate(_MARKED.split(text)):
            if not piece:
                continue
            harmless = place % 2 == 1 and piece in added
            found = self._ids("\n" + piece if place else piece, harmless)
            if place:  # after a newline, so that no space is put before the piece as before a text
                found = found[len(newline) :] if found[: len(newline)] == newline else self._ids(piece, harmless)
            if harmless and added[piece] in found:
                raise InputError(f"{piece!r} in a message cannot be made harmless: the vocabulary makes it out of plain text.")
            ids += found
        return ids

    def _ids(self, text: str, harmless: bool) -> list[int]:
        """The ids of a text; harmless ones by the parts of the backend, which as a whole would look for added tokens."""
        if not harmless:
            return self.encode_ids([text], add_special_tokens=False)[0]
        backend = self._backend
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        pieces = [text] if backend.pre_tokenizer is None else [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for piece in pieces for token in backend.model.tokenize(piece)]


def _check_flags(columns: bool, tokenize: bool, prompt: bool, goes_on: bool | str, mask: bool, sanitize: bool) -> None:
    """Raise if arguments of :meth:`ChatTokenizer.apply_chat_template` exclude each other."""
    mask_name, goes_on_name = "return_assistant_tokens_mask", "continue_final_message"
    for message, is_wrong in {
        f"{mask_name}=True needs return_dict=True and tokenize=True": mask and not columns,
        "sanitize_control_tokens=True needs tokenize=True": sanitize and not tokenize,
        f"{goes_on_name} and add_generation_prompt exclude each other": goes_on and prompt,
        f"{goes_on_name} and {mask_name} exclude each other": goes_on and mask,
        f"sanitize_control_tokens and {mask_name} exclude each other": sanitize and mask,
    }.items():
        if is_wrong:
            raise InputError(f"{message}.")


def _masks(encoding: BatchEncoding, rendered: list[Any]) -> list[list[int]]:
    """For each row 1 where a token has characters of what an assistant wrote, else 0."""
    written = [bytearray(len(text)) for text, _ in rendered]
    for marks, (_, spans) in zip(written, rendered):
        for first, last in spans:
            marks[first:last] = b"\1" * (last - first)
    rows = zip(encoding.encodings or (), encoding.get("overflow_to_sample_mapping", range(len(rendered))), strict=True)
    return [[int(1 in written[int(place)][first:last]) for first, last in row.offsets] for row, place in rows]


def _conversations(conversation: Any) -> tuple[list[list[Message]], bool]:
    """The conversations that a call passes, as plain messages without values of ``None``, and whether it passes a batch."""
    chats, hint = getattr(conversation, "messages", conversation), 'Pass [{"role": "user", "content": "..."}].'
    first = chats[0] if isinstance(chats, list | tuple) and chats else None
    batched = isinstance(first, list | tuple) or hasattr(first, "messages")
    batch: list[Any] = [getattr(chat, "messages", chat) for chat in chats] if batched else [chats]
    for place, chat in enumerate(batch):
        name, kinds = (
            f"conversation {place}" if batched else "the conversation",
            list | tuple if isinstance(chat, str) else Sequence,
        )
        need(name, chat, kinds, "a list of messages", hint)
    if not batch[0]:
        raise InputError("the conversation is empty.", hint="Pass at least one message.")
    return [[_message(message, place, hint) for place, message in enumerate(chat)] for chat in batch], batched


def _message(value: Any, place: int, hint: str) -> Message:
    message = _plain(value)
    need(f"message {place}", message, dict, hint=hint)
    message = {key: item for key, item in message.items() if item is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any, depth: int = 0) -> Any:
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(_plain(item, depth + 1) for item in value)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        return _plain(value.item(), depth + 1)
    dump = getattr(value, "model_dump", None)
    return _plain(dump(), depth + 1) if callable(dump) else f"<{type(value).__name__}>"


def _leave_open(chat: list[Message], key: str, template: str) -> str:
    """Put a mark at the end of the last message's part ``key``, and return the text that goes on.

    What a template writes after the mark can so be cut off.
    """
    asked, last = f"continue_final_message asks to go on with {key!r}, but", chat[-1] if chat else {}
    if (text := last.get(key)) is None:
        raise InputError(f"{asked} the last message has none.")
    keys = [name for name in _REASONING if last.get(name) == text] if key in _REASONING else [key]
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


def _cut_end(rendered: str, text: str) -> str:
    """What was rendered, up to the mark that :func:`_leave_open` put after ``text``."""
    place = rendered.rfind(_OPEN.strip())
    if place < 0 or text.strip() not in rendered:
        what = f"the chat template leaves out the end of the last message ({text.strip()[-80:]!r}), so it cannot be continued."
        raise InputError(what, hint="Use a template that writes whole messages.")
    # Where the template has stripped the message, the space before its end belongs to the message too.
    return rendered[:place] if rendered.startswith(_OPEN, place) else rendered[:place].rstrip()


def _marked(value: Any, tokens: Sequence[str]) -> Any:
    """``value`` with every control token in its texts marked; keys of dicts are left as they are."""
    if isinstance(value, str):
        text = value.replace(_START, "").replace(_END, "")
        present = [token for token in tokens if token in text]
        return re.sub("|".join(map(re.escape, present)), rf"{_START}\g<0>{_END}", text) if present else text
    if isinstance(value, dict):
        return {key: _marked(item, tokens) for key, item in value.items()}
    return [_marked(item, tokens) for item in value] if isinstance(value, list | tuple) else value
