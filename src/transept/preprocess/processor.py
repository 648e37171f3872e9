"""Processors: several preprocessors as one, for models that take pictures, sounds and texts. Imports no torch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from transept.config.fields import specs
from transept.config.settings import Settings
from transept.errors import FormatError, InputError, InputTypeError, UnsupportedError, nearest
from transept.preprocess import auto, placeholders
from transept.preprocess.chats import split_media
from transept.preprocess.features import BatchFeature
from transept.preprocess.settings import PREPROCESSOR_NAME, PROCESSOR_NAME, need
from transept.storage.directory import replace_directory
from transept.storage.files import dump_json, load_object, write_text
from transept.storage.source import Source, model_argument, model_name, take_source_options

INPUTS = {"image_processor": "images", "video_processor": "videos", "feature_extractor": "audio", "tokenizer": "text"}
"""A part's attribute -> the argument of a call that it takes; the part's own options can be passed as ``<argument>_kwargs``."""
TEMPLATE_JSON = "chat_template.json"
_IGNORED = frozenset({"use_fast", "backend"})  # there is one implementation of each part


class Processor(Settings):
    """Several preprocessors as one: a call hands pictures, videos, sounds and texts, and every option, to the part for it.

    A family's class says which ``model_types`` it is for, what its parts are, in the order of the constructor's arguments, and
    which classes each may be of: ``parts = {"image_processor": (), "tokenizer": ("CLIPTokenizer",)}``; the empty tuple stands
    for any class. Fields are settings of its own, in ``processor_config.json``. A field or attribute ``image_token``
    (``video_token``, ``audio_token``) makes placeholders of that text in prompts, which :meth:`replacements` expands.

    Args:
        parts: the parts, in order or by name.
        chat_template: a chat template, or several by name; by default the tokenizer's.
        settings: values of the class's fields.

    Raises:
        InputTypeError: a part that is missing, or of another class.
        InputError, ConfigError: a setting that is none, or out of range.
    """

    noun = "processor"
    file_name = PROCESSOR_NAME
    unread = frozenset({"auto_map", "trust_remote_code", "processor_class", *INPUTS})
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """An argument of a call (``"text"``) -> options for its part that hold where the call says nothing."""
    return_mm_token_type_ids: ClassVar[bool] = False
    """Whether a call with texts tells text from placeholders, where it does not say so itself."""

    def __init__(self, *parts: Any, chat_template: str | dict[str, str] | None = None, **settings: Any) -> None:
        if len(parts) > len(self.parts):
            raise InputError(f"{type(self).__name__} has the parts {', '.join(self.parts)}, but got {len(parts)} values.")
        given = dict(zip(self.parts, parts, strict=False))
        if both := given.keys() & settings.keys():
            raise InputError(f"{type(self).__name__} got two values for {min(both)!r}.")
        for name in self.parts:
            self._put(name, given.get(name, settings.pop(name, None)))
        self.chat_template = chat_template
        super().__init__(**settings)

    def _put(self, name: str, part: Any) -> None:
        kinds = auto.classes_of(name, self.parts[name])
        if not isinstance(part, kinds):
            names, what = " or ".join(kind.__name__ for kind in kinds), "nothing" if part is None else type(part).__name__
            raise InputTypeError(
                f"{names} is needed, but {what} was passed.", hint=f"It is the {name} of {type(self).__name__}."
            )
        self.__dict__[name] = part

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.parts:
            self._put(name, value)
        else:
            super().__setattr__(name, value)

    def need_known(self, name: str) -> None:
        if not self.knows(name):
            raise InputError(f"{type(self).__name__} has no setting {name!r}.", hint=nearest(name, specs(type(self))))

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The template of chats, or several by name: the processor's own, else the tokenizer's."""
        own = self.__dict__.get("_chat_template")
        return own if own is not None else getattr(self.__dict__.get("tokenizer"), "chat_template", None)

    @chat_template.setter
    def chat_template(self, template: str | dict[str, str] | None) -> None:
        self.__dict__["_chat_template"] = template

    @property
    def model_input_names(self) -> list[str]:
        """Names of what a call can return."""
        return list(dict.fromkeys(name for part in self.parts for name in getattr(self, part).model_input_names))

    # Calls

    def __call__(
        self, images: Any = None, text: Any = None, videos: Any = None, audio: Any = None, **options: Any
    ) -> BatchFeature:
        """Prepare pictures, texts, videos, sounds, or several of these.

        Where the processor has placeholders, each one in the texts stands for the next picture (video, sound) and becomes as
        many tokens as the model has features for it. Pictures can be one list a text. A single text is a batch of one there.

        Args:
            images, text, videos, audio: see the parts that take them.
            options: arguments of the parts' calls; those that several have go to each. ``images_kwargs``, ``text_kwargs``,
                ``videos_kwargs`` and ``audio_kwargs`` are mappings for one part alone, and go before the others;
                ``common_kwargs`` goes after them. ``return_mm_token_type_ids``, where there are placeholders, adds
                ``mm_token_type_ids`` (N, T): 0 for text, 1 for pictures, 2 for videos, 3 for sounds.

        Raises:
            InputError: nothing to prepare, no part for it, an unknown option, other numbers of placeholders and pictures in a
                text, or truncation that would cut placeholders.
        """
        given = {"images": images, "videos": videos, "audio": audio, "text": text}
        given = {kind: value for kind, value in given.items() if value is not None}
        takes = {INPUTS[name]: name for name in self.parts}
        if not given:
            raise InputError(f"neither {' nor '.join(takes)} was passed.")
        for kind in given.keys() - takes.keys():
            raise InputError(f"{type(self).__name__} takes no {kind}, but {' and '.join(takes)}.")
        with_types = options.pop("return_mm_token_type_ids", self.return_mm_token_type_ids)
        split = self._split(options)
        found = {kind: getattr(self, takes[kind])(value, **split[kind]) for kind, value in given.items() if kind != "text"}
        if text is not None:
            expand = self._expanded if self.placeholders else lambda text, *_: self.tokenizer(text, **split["text"])
            found["text"] = expand(text, given, found, split, with_types)
        return self.joined(found)

    def joined(self, found: Mapping[str, Any]) -> BatchFeature:
        """What the parts made of each argument of a call, as one."""
        order = [kind for kind in ("text", "images", "videos", "audio") if kind in found]
        return BatchFeature({name: value for kind in order for name, value in found[kind].items()})

    def _split(self, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The options of each part."""
        known = {INPUTS[name]: _options_of(type(getattr(self, name))) for name in self.parts}
        common = options.pop("common_kwargs", None) or {}
        alone = {kind: options.pop(f"{kind}_kwargs", None) or {} for kind in known}
        need("common_kwargs", common, Mapping)
        every = frozenset().union(*known.values())
        for name in (*common, *options):
            if name not in every:
                raise InputError(f"{type(self).__name__} has no option {name!r}.", hint=nearest(str(name), every))
        for kind, values in alone.items():
            need(f"{kind}_kwargs", values, Mapping)
            for name in values:
                if name not in known[kind]:
                    raise InputError(f"{kind}_kwargs has no option {name!r}.", hint=nearest(str(name), known[kind]))
        values = {kind: {**self.defaults.get(kind, {}), **common, **options} for kind in known}
        return {k: {n: v for n, v in values[k].items() if n in known[k]} | dict(alone[k]) for k in known}

    # Placeholders

    @property
    def placeholders(self) -> dict[str, str]:
        """What a call takes (``"images"``) -> the placeholder for it in texts, where there is one."""
        found = {kind: getattr(self, name, None) for kind, name in placeholders.TOKENS.items()}
        return {kind: str(token) for kind, token in found.items() if token is not None}

    def replacements(self, kind: str, inputs: BatchFeature, options: Mapping[str, Any]) -> list[str]:
        """For each picture (``kind`` is ``"images"``), video or sound of a call the text that takes its placeholder's place.

        A class with placeholders says how: most often the placeholder as many times as the model has features for it.

        Args:
            kind: what the call takes.
            inputs: what the part made of all pictures.
            options: the part's options in this call.
        """
        raise UnsupportedError(f"{type(self).__name__} does not say what {kind} become in a text.")

    def _expanded(self, text: Any, given: Any, found: Any, split: Any, with_types: bool) -> Any:
        """Texts with their placeholders expanded, encoded, and checked to have all of them."""
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
            raise InputTypeError("text must be a text or a list of texts where it has placeholders.")
        tokens, values = self.placeholders, {}
        for kind, token in tokens.items():
            new = self.replacements(kind, found[kind], split[kind]) if kind in found else []
            sizes = placeholders.per_text(given.get(kind), texts) if kind == "images" else None
            placeholders.check_counts(kind, token, texts, sizes, len(new))
            values[token] = new
        texts = placeholders.expanded(texts, values)
        encoding = self.tokenizer(texts, **split["text"])
        indices = {kind: self.tokenizer.convert_tokens_to_ids(token) for kind, token in tokens.items()}
        cut = ("truncation", "max_length", "padding", "pad_to_multiple_of", "return_tensors")
        whole = {name: value for name, value in split["text"].items() if name not in cut} | {"verbose": False}
        for kind, token in tokens.items():
            lengths = partial(lambda row: len(self.tokenizer(texts[row], **whole)["input_ids"]))
            placeholders.check_ids(encoding["input_ids"], indices[kind], token, texts, lengths)
        if with_types:
            encoding["mm_token_type_ids"] = placeholders.type_ids(encoding["input_ids"], indices)
            encoding.convert_to_tensors(split["text"].get("return_tensors"))
        return encoding

    # Chats and answers

    def apply_chat_template(
        self,
        conversation: Any,
        chat_template: str | None = None,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        return_assistant_tokens_mask: bool = False,
        tokenize: bool = False,
        return_tensors: str | None = "auto",
        return_dict: bool = False,
        processor_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """A chat as the model was taught to read it, with the pictures, videos and sounds of its messages.

        Args:
            conversation: messages, or N lists of them. Contents are texts, or lists of parts: ``{"type": "text", "text":
                ...}`` and ``{"type": "image", "image": source}`` (likewise ``video`` and ``audio``); the source can stand
                under ``url``, ``path`` or ``base64`` too, and is what the part for it can open.
            tokenize: whether to return a model's inputs, or else the text.
            return_tensors: ``"auto"`` leaves it to the processor.
            return_dict: whether to return all inputs, or else the ids alone.
            processor_kwargs: options of the call, which can be among ``kwargs`` too.
            kwargs: values that the template reads.
            chat_template, tools, documents, add_generation_prompt, continue_final_message: as for tokenizers.

        Raises:
            InputError, FileError, FormatError: a chat that cannot be used, or a picture that cannot be opened.
        """
        if return_assistant_tokens_mask:
            raise UnsupportedError("the assistant's tokens are told by processor.tokenizer.apply_chat_template alone.")
        known = {*placeholders.TOKENS, *(f"{kind}_kwargs" for kind in INPUTS.values()), "return_mm_token_type_ids"}
        known = known.union(*(_options_of(type(getattr(self, name))) for name in self.parts)) if tokenize else set()
        options = {**{name: kwargs.pop(name) for name in [*kwargs] if name in known}, **(processor_kwargs or {})}
        messages, media = split_media(conversation)
        render = self.tokenizer._with(chat_template=self.chat_template).apply_chat_template
        flags = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        text = render(messages, tools, documents, chat_template, **flags, tokenize=False, return_dict=False, **kwargs)
        if not tokenize:
            return text
        if return_tensors != "auto":
            options["return_tensors"] = return_tensors
        first, bos = text if isinstance(text, str) else text[0], self.tokenizer.bos_token
        if bos is not None and first.startswith(bos):
            options.setdefault("add_special_tokens", False)
        there = {kind: rows for kind, rows in media.items() if any(rows)}
        inputs = {kind: rows if kind == "images" else [one for row in rows for one in row] for kind, rows in there.items()}
        found = self(text=text, **{**inputs, **options})
        return found if return_dict else found["input_ids"]

    def decode(self, token_ids: Any, *args: Any, **options: Any) -> Any:
        """The tokenizer's :meth:`decode`."""
        return self.tokenizer.decode(token_ids, *args, **options)

    def batch_decode(self, sequences: Any, *args: Any, **options: Any) -> Any:
        """The tokenizer's :meth:`batch_decode`."""
        return self.tokenizer.batch_decode(sequences, *args, **options)

    def post_process_image_text_to_text(
        self, generated_outputs: Any, skip_special_tokens: bool = True, **options: Any
    ) -> list[str]:
        """The texts of generated ids (N, T)."""
        return self.batch_decode(generated_outputs, skip_special_tokens=skip_special_tokens, **options)  # type: ignore[no-any-return]

    def parse_response(self, response: Any, schema: Any = None, **options: Any) -> Any:
        """The tokenizer's :meth:`parse_response`."""
        return self.tokenizer.parse_response(response, schema, **options)

    # Files

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any
    ) -> Self:
        """Load all parts of a directory or of a repository, in the older or the newer layout.

        ``options`` say where to look (see :class:`transept.storage.source.Source`), or are settings of it or its parts.
        """
        name = model_argument(pretrained_model_name_or_path, options)
        hub = take_source_options(options)
        source = Source(model_name(name), **hub)
        path = source.find(cls.file_name)
        own = {"chat_template": read_template(source)} | ({} if path is None else load_object(path))
        own |= {option: options.pop(option) for option in ["chat_template", *specs(cls)] if option in options}
        made, taken = cls.__new__(cls), set[str]()
        for part in (part for part in cls.parts if part != "tokenizer"):
            loaded = auto.loader(part, cls.parts[part]).from_pretrained(name, **hub)
            mine = {option: value for option, value in options.items() if loaded.knows(option)}
            made._put(part, loaded.with_settings(**mine) if mine else loaded)
            taken |= mine.keys()
        rest = {option: value for option, value in options.items() if option not in taken and option not in _IGNORED}
        if "tokenizer" in cls.parts:
            from transept.preprocess.text.settings import DEFAULTS

            rest |= {option: options[option] for option in taken if option in DEFAULTS}
            made._put("tokenizer", auto.loader("tokenizer", cls.parts["tokenizer"]).from_pretrained(name, **hub, **rest))
        for option in rest if "tokenizer" not in cls.parts else ():
            made.need_known(option)
        made.fill_in({key: value for key, value in own.items() if key not in cls.unread}, keep=path is not None)
        made.check()
        return made

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        push_to_hub: bool = False,
        *,
        legacy_format: bool = False,
        **options: Any,
    ) -> tuple[str, ...]:
        """Write all parts into a directory, in one step; returns the paths of the files.

        Args:
            save_directory: made where needed.
            push_to_hub: publish the processor too, as ``repo_id`` or under the directory's name, with ``options``.
            legacy_format: write the settings of the image processor or feature extractor as ``preprocessor_config.json``,
                which the ecosystem's version 4 reads, and not into ``processor_config.json``.
        """
        from transept.preprocess.text.settings import FOLDER, TEMPLATE_NAME

        self.check()
        files = self._files(legacy_format)
        stale = {PREPROCESSOR_NAME, PROCESSOR_NAME, TEMPLATE_JSON, TEMPLATE_NAME, FOLDER} - files.keys()
        with replace_directory(save_directory, drop=lambda name: name in stale) as stage:
            for name, values in files.items():
                write_text(stage / name, dump_json(values))
            if "tokenizer" in self.parts:
                self.tokenizer._with(chat_template=self.chat_template).write(stage)
            names = sorted(str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_file())
        self.publish(save_directory, push_to_hub, options)
        return tuple(str(Path(save_directory, name)) for name in names)

    def _files(self, legacy: bool) -> dict[str, dict[str, Any]]:
        """The JSON files: name -> content."""
        named, values = {"processor_class": type(self).__name__}, self.to_dict()
        if not legacy:
            return {PROCESSOR_NAME: values | named}
        sections = [name for name in self.parts if name in values]
        if len(sections) > 1:
            raise UnsupportedError(f"preprocessor_config.json holds one part, but there are {' and '.join(sections)}.")
        files = {PREPROCESSOR_NAME: values.pop(sections[0]) | named} if sections else {}
        return files | ({PROCESSOR_NAME: values | named} if values else {})

    def to_dict(self) -> dict[str, Any]:
        """The settings of the processor, and those of its parts but the tokenizer under their names, as JSON types."""
        parts = {name: getattr(self, name).to_dict() for name in self.parts if name != "tokenizer"}
        return super().to_dict() | parts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(getattr(self, name)) for name in self.parts)})"


class LabelProcessor(Processor):
    """A processor whose texts are what the model is to give: beside other inputs, their ids stand as ``labels``."""

    @property
    def model_input_names(self) -> list[str]:
        first = next(part for part in self.parts if part != "tokenizer")
        return [*getattr(self, first).model_input_names, "labels"]

    def joined(self, found: Mapping[str, Any]) -> BatchFeature:
        inputs = BatchFeature({name: value for kind in found if kind != "text" for name, value in found[kind].items()})
        if "text" not in found:
            return inputs
        if not inputs:
            return BatchFeature(found["text"])
        inputs["labels"] = found["text"]["input_ids"]
        return inputs


def _options_of(kind: type) -> frozenset[str]:
    """Arguments of a call of this class but for the first, those it hands on as ``**options`` too, and settings it takes."""
    names, hands_on = set[str](), True
    for base in kind.__mro__:
        if hands_on and "__call__" in vars(base):
            _, _, *taken = inspect.signature(vars(base)["__call__"]).parameters.values()
            names |= {one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
            hands_on = any(one.kind == one.VAR_KEYWORD for one in taken)
    if issubclass(kind, Settings) and hands_on:
        names |= {*specs(kind), *kind.aliases}
    return frozenset(names)


def read_template(source: Source) -> str | dict[str, str] | None:
    """The chat template of a processor's files, or several by name: the older file's, else those of tokenizers."""
    from transept.preprocess.text.settings import read_templates

    if (path := source.find(TEMPLATE_JSON)) is None:
        return read_templates(source)
    template = load_object(path).get("chat_template")
    if not isinstance(template, str):
        raise FormatError(f"must hold a text under 'chat_template', but holds {template!r:.60}.", path=path)
    return template
