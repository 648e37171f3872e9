"""Loading a tokenizer, from its files and by what its class and the caller say, and saving it, as the reference reads it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptError, TranseptWarning, nearest
from transept.preprocess.text.backend import (
    FIELDS,
    PARTS,
    Document,
    change_options,
    document_of,
    guarded,
    make_backend,
    read_backend,
    read_options,
)
from transept.preprocess.text.build import Around, Build, Options, Template, VocabularyFiles, any_backend, template_processor
from transept.preprocess.text.settings import (
    DEFAULTS,
    FOLDER,
    TEMPLATE_NAME,
    Token,
    TokenizerSettings,
    as_special,
    from_caller,
    from_file,
    from_subclass,
    read_templates,
    write_templates,
)
from transept.storage.directory import replace_directory
from transept.storage.files import dump_json, load_object, write_file
from transept.storage.source import Source, model_name, take_source_options

TOKENIZER_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"
_SPECIAL_NAME, _ADDED_NAME = "special_tokens_map.json", "added_tokens.json"
_SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_OTHER_NAMES = ("tiktoken.model", "vocab.json", "vocab.txt")
ENDS = ("add_bos_token", "add_eos_token")
_MAX_GAP = 100_000
_GENERIC = "PreTrainedTokenizerFast"
_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
Parts = tuple[tokenizers.Tokenizer, TokenizerSettings]
"""A backend whose vocabulary and rules are complete, and the settings that hold for it."""


@dataclass(frozen=True)
class Family:
    """What the tokenizers of one class have in common.

    Args:
        files: argument of the class -> name of the file that a model has for it.
        tokens: the special tokens by name.
        build: makes the backend of vocabulary files, special tokens and options.
        options: options of the rules and their defaults; ``None`` where the files decide.
        template: where special tokens go, or what makes the rule; ``None``: before and after each text, as options ask.
        extra_tokens: the special tokens without a name, by the options.
        inputs: the names of what a call returns (``model_input_names``).
        pad_type: the token type of padding.
        max_length: how many tokens the models take, where all of them take as many.
        applied: whether the class itself applies the options; its name is saved, so that they are found again.
        portable: whether the reference, told the class's name, builds the very backend that ``build`` makes.
        model_types: ``model_type`` of configs whose models have these tokenizers, where their files name no class.
    """

    files: Mapping[str, str] = field(default_factory=lambda: {"tokenizer_file": TOKENIZER_NAME})
    tokens: Mapping[str, Token | None] = field(default_factory=dict)
    build: Build = any_backend
    options: Options = field(default_factory=lambda: {"add_prefix_space": None} | dict.fromkeys(ENDS, False))
    template: Template | Around | None = None
    extra_tokens: Callable[[Options], Sequence[str]] = lambda options: ()
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    padding_side: str = "right"
    pad_type: int = 0
    max_length: int | None = None
    applied: bool = False
    portable: bool = False
    model_types: tuple[str, ...] = ()

    @property
    def known_options(self) -> dict[str, Any]:
        """All options that can be said of the tokenizers, and the defaults of those that are the family's own."""
        return dict.fromkeys(FIELDS) | dict.fromkeys(ENDS, False) | dict(self.options)


# Finding


def load_parts(family: Family, name: str | os.PathLike[str], arguments: dict[str, Any]) -> Parts:
    """The parts of the tokenizer of a directory, of a repository or of one vocabulary file."""
    source, caller = where_and_what(family, name, arguments)
    if os.path.isfile(name):
        path = Path(name)
        if path.suffix == ".json" and path.name != "vocab.json":
            return from_document(family, *read_backend(path), TokenizerSettings(), caller)
        merges = path.with_name("merges.txt")
        files = VocabularyFiles(path, merges if path.suffix == ".json" and merges.is_file() else None)
        return from_vocabulary(family, files, TokenizerSettings(), caller)
    document = source.find(TOKENIZER_NAME)
    files = VocabularyFiles() if document is not None else _vocabulary(family, source)
    stated = stated_settings(family, source)
    if (templates := read_templates(source)) is not None:
        stated.attributes["chat_template"] = templates
    if document is not None:
        return from_document(family, *read_backend(document), stated, caller)
    return from_vocabulary(family, files, stated, caller)


def where_and_what(
    family: Family, name: Any, arguments: dict[str, Any], *, any_setting: bool = False
) -> tuple[Source, TokenizerSettings]:
    """The source that the arguments of a ``from_pretrained`` name, and the settings that they give."""
    hub = take_source_options(values := dict(arguments))
    caller = from_subclass(values) if any_setting else from_caller(values, family.known_options)
    caller.attributes.setdefault("name_or_path", model_name(name))
    return Source(model_name(name), **hub), caller


def stated_settings(family: Family, source: Source) -> TokenizerSettings:
    """What ``tokenizer_config.json`` says and, in older models, the two files that went before it."""
    config, known = source.find(CONFIG_NAME), family.known_options
    values = {} if config is None else load_object(config)
    stated = TokenizerSettings() if config is None else from_file(values, known, config)
    if "added_tokens_decoder" in values:
        return stated
    if (path := source.find(_SPECIAL_NAME)) is not None:
        stated = from_file(load_object(path), known, path).over(stated)
    if (path := source.find(_ADDED_NAME)) is not None:
        special = {*stated.texts.values(), *map(str, stated.extra or ())}
        added = {
            str(index): {"content": token, "normalized": token not in special, "special": token in special}
            for token, index in load_object(path).items()
        }
        stated = stated.over(from_file({"added_tokens_decoder": added}, known, path))
    return stated


def _vocabulary(family: Family, source: Source) -> VocabularyFiles:
    """The vocabulary files of a model without ``tokenizer.json``: those of its family, else any that is there."""
    own = family.files.get("vocab_file")
    names = [] if own is None else [own]
    if own is None or own.endswith(".model"):
        names += [*_SENTENCEPIECE_NAMES, *(_OTHER_NAMES if own is None else ())]
        for suffix in (".model", ".tiktoken"):
            names += sorted(path.name for path in source.directory.glob(f"*{suffix}")) if source.directory else ()
    for name in names:
        vocab, merges = source.find(name), source.find("merges.txt") if name == "vocab.json" else None
        if vocab is not None and (name != "vocab.json" or merges is not None):
            return VocabularyFiles(vocab, merges)
    wanted = [name for name in family.files.values() if name != TOKENIZER_NAME] or ["a vocabulary file"]
    hint = "Check the name, or pass subfolder= where the tokenizer lies in one."
    missing = f"holds neither {' nor '.join([TOKENIZER_NAME, *wanted])}."
    raise FileError(missing, path=source.directory or source.name, hint=hint)


# Putting together


def parts_of_caller(
    family: Family, files: VocabularyFiles, tokenizer_object: Any, tokenizer_file: Any, values: Mapping[str, Any]
) -> Parts:
    """The parts of a tokenizer that is made by calling its class."""
    caller = from_caller(values, family.known_options)
    if tokenizer_object is not None:
        if not isinstance(tokenizer_object, tokenizers.Tokenizer):
            raise InputTypeError(f"tokenizer_object is {type(tokenizer_object).__name__}, not a tokenizers.Tokenizer.")
        document = document_of(tokenizer_object)
        return from_document(family, make_backend(document), document, TokenizerSettings(), caller)
    if tokenizer_file is not None:
        return from_document(family, *read_backend(model_name(tokenizer_file)), TokenizerSettings(), caller)
    return from_vocabulary(family, files, TokenizerSettings(), caller)


def from_document(
    family: Family, backend: tokenizers.Tokenizer, document: Document, stated: TokenizerSettings, caller: TokenizerSettings
) -> Parts:
    """The parts of a tokenizer with a ``tokenizer.json``, which only the caller can change, not the other files.

    The family's special tokens get their names where the vocabulary has them, and are never added.
    """
    held, settings = read_options(document), caller.over(stated)
    fixed = {*ENDS, *(family.options.keys() - FIELDS.keys() if family.applied else ())}
    wished = {name: value for name, value in caller.options.items() if value is not None and name not in fixed}
    if changes := {name: value for name, value in wished.items() if held.get(name) != value}:
        change_options(document, changes)
        backend, held = make_backend(document), read_options(document)
    settings.options = family.known_options | stated.options | caller.options | held
    _add_stated(backend, settings)

    def is_known(token: Any) -> bool:
        return isinstance(token, tokenizers.AddedToken | str) and backend.token_to_id(str(token)) is not None

    # Of a document's own padding and truncation only sides and the padding token count; the lengths mean nothing.
    for part, side in (("padding", "padding_side"), ("truncation", "truncation_side")):
        if isinstance(value := document.get(part), dict):
            settings.attributes.setdefault(side, "left" if value.get("direction") == "Left" else "right")
            if is_known(token := value.get("pad_token")):
                settings.tokens.setdefault("pad_token", token)
    settings.tokens = {name: token for name, token in family.tokens.items() if is_known(token)} | settings.tokens
    if settings.extra is None:
        settings.extra = [token for token in family.extra_tokens(settings.options) if is_known(token)]
    if any(name in caller.options for name in ENDS):
        put_ends(backend, settings)
    return backend, settings


def from_vocabulary(family: Family, files: VocabularyFiles, stated: TokenizerSettings, caller: TokenizerSettings) -> Parts:
    """The parts of a tokenizer whose backend its family builds."""
    for name in caller.options:
        if name not in family.options and name not in ENDS:
            raise InputError(f"a tokenizer of this class has no option {name!r}.", hint=nearest(name, family.options))
    tokens = dict(family.tokens)
    if not tokens and (model := files.sentencepiece) is not None:
        tokens = {f"{role}_token": text for role in ("bos", "eos", "unk", "pad") if (text := model.special(role))}
    settings = caller.over(stated).over(TokenizerSettings(tokens=tokens, options=family.known_options))
    if settings.extra is None:
        settings.extra = list[Token](family.extra_tokens(settings.options))
    texts, options = settings.texts, {name: settings.options[name] for name in family.options}
    with guarded(FormatError, "no tokenizer can be built from the vocabulary", files.path):
        backend = family.build(files, texts, options)
    _fill_gap(backend, settings)
    _add_stated(backend, settings)
    if callable(family.template):
        backend.post_processor = family.template(backend, texts, options)
    elif family.template is not None:
        backend.post_processor = template_processor(family.template, texts, backend)
    elif backend.post_processor is None or any(settings.options[name] for name in ENDS):
        put_ends(backend, settings)
    return backend, settings


def put_ends(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    """Put the begin and the end token around each text, as the options say."""
    texts = settings.texts
    wanted = {end for end in ("bos", "eos") if settings.options[f"add_{end}_token"] and f"{end}_token" in texts}
    bos, eos = ("bos",) * ("bos" in wanted), ("eos",) * ("eos" in wanted)
    second = tuple(f"{name}:1" for name in (*bos, "B", *eos))
    template = (*bos, "A", *eos), (*bos, "A", *eos, *second)
    backend.post_processor = template_processor(template, texts, backend)


def _fill_gap(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    """Reserve the ids between the vocabulary and the tokens that the files put further on."""
    free = backend.get_vocab_size(with_added_tokens=True)
    first = min((index for index in settings.added if index >= free), default=free)
    if first - free > _MAX_GAP:
        raise FormatError(f"added_tokens_decoder has the id {first}, but the vocabulary ends at {free - 1}.")
    backend.add_special_tokens([f"<|reserved_token_{index}|>" for index in range(free, first)])


def _add_stated(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    """Add the tokens that files or caller state and that the backend does not know as added tokens."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    new = {token.content: token for _, token in sorted(settings.added.items())}
    flagged = dict(new)
    for token in [*settings.tokens.values(), *(settings.extra or ())]:
        if token is not None:
            new[str(token)] = as_special(flagged.get(str(token), token))
    with guarded(FormatError, "the added tokens cannot be used"):
        backend.add_tokens([token for content, token in new.items() if content not in present])
    moved = [(one.content, index) for index, one in settings.added.items() if backend.token_to_id(one.content) != index]
    if moved:
        content, index = moved[0]
        message = f"{len(moved)} added tokens have other ids than their file says: {content!r} should be {index}, but is"
        hint = "The tokenizer's files contradict each other."
        warnings.warn(f"{message} {backend.token_to_id(content)}. {hint}", TranseptWarning, stacklevel=2)


# Saving


def write(tokenizer: Any, folder: Path, filename_prefix: str | None = None) -> None:
    """Write all files into a folder that is there, for who saves several things in one step."""
    write_templates(folder, tokenizer.chat_template)
    known = {token.content: token for token in tokenizer.added_tokens_decoder.values()}

    def flags(text: str) -> Any:
        return {name: getattr(known[text], name) for name in _FLAGS if name != "special"} if text in known else text

    special = {name: flags(text) for name, text in tokenizer.special_tokens_map.items()}
    if extra := tokenizer.extra_special_tokens:
        special["additional_special_tokens"] = [flags(text) for text in extra]
    settings = {_SPECIAL_NAME: dump_json(special), CONFIG_NAME: dump_json(config_of(tokenizer))}
    write_files(folder, {**tokenizer._files(), **settings}, filename_prefix)


def save_vocabulary(
    tokenizer: Any, save_directory: str | os.PathLike[str], filename_prefix: str | None = None
) -> tuple[str, ...]:
    """Write the vocabulary alone, such as ``vocab.txt``; returns the paths."""
    _check_prefix(filename_prefix)

    def model(stage: Path) -> None:
        with guarded(FileError, "the vocabulary cannot be written", save_directory):
            tokenizer._backend.model.save(str(stage), filename_prefix)

    return replaced(save_directory, model, is_stale=lambda name: False)


def replaced(
    directory: Any, fill: Callable[[Path], Any], is_stale: Callable[[str], bool] = lambda name: name in (TEMPLATE_NAME, FOLDER)
) -> tuple[str, ...]:
    """Let ``fill`` fill a directory that then replaces the files of ``directory`` in one step; returns their paths."""
    with replace_directory(directory, drop=is_stale) as stage:
        fill(stage)
        names = sorted(path.relative_to(stage) for path in stage.rglob("*") if path.is_file())
    return tuple(str(Path(directory, name)) for name in names)


def write_files(folder: Path, files: Mapping[str, str | bytes], prefix: str | None = None) -> None:
    """Write files into a folder that is there."""
    _check_prefix(prefix)
    for name, content in files.items():
        write_file(folder / (f"{prefix}-{name}" if prefix else name), content)


def _check_prefix(prefix: Any) -> None:
    if prefix is not None and (not isinstance(prefix, str) or os.path.basename(prefix) != prefix):
        raise InputError(f"filename_prefix {prefix!r:.80} cannot begin the name of a file.")


def config_of(tokenizer: Any) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``."""
    # What the backend's rules say of the ends is in them; the reference would put its own rule in their place.
    options = {name: value for name, value in tokenizer._options.items() if value is not None and name not in ENDS}
    stated = {name: getattr(tokenizer, name) for name in DEFAULTS if name not in ("chat_template", "name_or_path")}
    config: dict[str, Any] = tokenizer._other | options | {name: value for name, value in stated.items() if value is not None}
    config |= dict.fromkeys(tokenizer.family.tokens) | tokenizer.special_tokens_map
    if extra := tokenizer.extra_special_tokens:
        config["extra_special_tokens"] = extra
    config["added_tokens_decoder"] = {
        str(index): {name: getattr(token, name) for name in _FLAGS} for index, token in tokenizer.added_tokens_decoder.items()
    }
    return config | {"tokenizer_class": _class_name(tokenizer)}


def _class_name(tokenizer: Any) -> str:
    """The class's name if the reference, told it, builds these very rules; else the name that makes it read them."""
    name, family = type(tokenizer).__name__, tokenizer.family
    if not family.portable:
        return name if family.applied else _GENERIC
    texts = tokenizer.special_tokens_map
    options = {name: tokenizer._options[name] for name in family.options}
    vocab = {token: place for place, token in enumerate(dict.fromkeys(texts.values()))}
    try:
        built = document_of(family.build(VocabularyFiles(vocab, []), texts, options))
    except (TranseptError, KeyError):
        return _GENERIC
    held = document_of(tokenizer._backend)
    models = [{key: value for key, value in one["model"].items() if key not in ("vocab", "merges")} for one in (held, built)]
    same = all(held[part] == built[part] for part in PARTS if part != "post_processor")
    return name if same and models[0] == models[1] else _GENERIC
