"""Tokenizers of users: a subclass cuts texts into tokens and numbers them by methods in Python."""

from __future__ import annotations

import os
import re
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

from tokenizers import AddedToken

from transept.errors import InputError, UnsupportedError
from transept.preprocess.text import loading
from transept.preprocess.text.encoder import Request, check_texts
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.python.ids import CUT, row_columns
from transept.preprocess.text.settings import Token, TokenizerSettings, as_special, from_subclass, read_templates
from transept.preprocess.text.tokenizer import Tokenizer
from transept.storage.files import dump_json, write_file

# Where special tokens go around a text, and around a pair, by the names that the reference has for these ways.
_AROUND = {
    "cls_sep": ("cls A sep", "cls A sep B sep"),
    "eos": ("A eos", "A eos B eos"),
    "bos": ("bos A", "bos A bos B"),
    "bos_eos": ("bos A eos", "bos A eos B eos"),
    "cls_double_sep": ("cls A sep", "cls A sep sep B sep"),
    "prefix_suffix": ("prefix A suffix", "prefix A B suffix"),
    None: ("A", "A B"),
}


class PreTrainedTokenizer(Tokenizer, metaclass=ABCMeta, applied=True):
    """A tokenizer that works by the methods of a subclass.

    The subclass has ``_tokenize(text)`` -> tokens, ``_convert_token_to_id``, ``_convert_id_to_token``, ``vocab_size``,
    ``get_vocab`` and ``save_vocabulary(save_directory, filename_prefix)``, and calls this constructor when its vocabulary is
    there. It may have ``build_inputs_with_special_tokens``, ``create_token_type_ids_from_sequences``,
    ``get_special_tokens_mask``, ``convert_tokens_to_string`` and ``prepare_for_tokenization``. ``vocab_files_names`` maps
    arguments of its constructor to names of the files that :meth:`from_pretrained` passes for them.

    Args:
        settings: special tokens and all else that a :class:`Tokenizer` takes; ``special_tokens_pattern``, which puts special
            tokens around texts (``"cls_sep"``, ``"eos"``, ``"bos"``, ``"bos_eos"``, ``"cls_double_sep"``, or
            ``"prefix_suffix"`` for the ids in ``prefix_tokens`` and ``suffix_tokens``); ``token_type_ids_pattern``
            (``"bert_style"`` or ``"all_zeros"``); and the subclass's own settings, which are saved with the tokenizer.
    """

    is_fast = False
    vocab_files_names: ClassVar[Mapping[str, str]] = {}
    vocab: Any = None  # names that subclasses have for what is theirs
    _tokenizer: Any = None
    special_tokens_pattern: str | None = None
    token_type_ids_pattern: str = "bert_style"  # noqa: S105
    token_type_ids_include_special_tokens: bool = True
    around: ClassVar[tuple[str, str] | None] = None  # a way without a name, written as those above
    _is_exact = False

    def __init__(self, **settings: Any) -> None:
        for name in ("special_tokens_pattern", "token_type_ids_pattern", "token_type_ids_include_special_tokens"):
            if name in settings:
                setattr(self, name, settings.pop(name))
        if self.special_tokens_pattern not in (*_AROUND, "none"):
            hint = f"It can be {', '.join(repr(name) for name in _AROUND if name)}."
            raise InputError(f"special_tokens_pattern is {self.special_tokens_pattern!r}.", hint=hint)
        chosen = from_subclass(settings)
        self._added_tokens_decoder: dict[int, AddedToken] = self.__dict__.get("_added_tokens_decoder", {}) | chosen.added
        self._set(chosen)
        self._add([as_special(token) for token in self._all_special()], special=True)

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        source, caller = loading.where_and_what(self.family, name, options, any_setting=True)
        names, stated = self.vocab_files_names, TokenizerSettings()
        if os.path.isfile(name) and len(names) == 1:
            files: dict[str, Any] = dict.fromkeys(names, os.fspath(name))
        else:
            stated = loading.stated_settings(self.family, source)
            if (templates := read_templates(source)) is not None:
                stated.attributes["chat_template"] = templates
            files = {argument: source.find(file) for argument, file in names.items()}
            if names and not any(files.values()):
                source.need(next(iter(names.values())))
        # Arguments of the subclass, which decides what becomes of them.
        type(self).__init__(self, **files | _arguments(stated) | _arguments(caller))

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # What a subclass has

    def _tokenize(self, text: str) -> list[str]:
        """The tokens of a text without added ones."""
        raise NotImplementedError

    def _convert_token_to_id(self, token: str) -> int:
        raise NotImplementedError

    def _convert_id_to_token(self, index: int) -> str:
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        raise NotImplementedError

    def get_vocab(self) -> dict[str, int]:
        raise NotImplementedError

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens joined to a text."""
        return " ".join(tokens)

    def prepare_for_tokenization(
        self, text: str, is_split_into_words: bool = False, **options: Any
    ) -> tuple[str, dict[str, Any]]:
        """A text as :meth:`tokenize` reads it, and the options that it leaves."""
        return text, options

    # Vocabulary

    def __len__(self) -> int:
        return len(self.get_vocab() | self.added_tokens_encoder)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        return dict(sorted(self._added_tokens_decoder.items()))

    @property
    def _added_tokens_encoder(self) -> dict[str, int]:
        return {token.content: index for index, token in self._added_tokens_decoder.items()}

    def _all_special(self) -> list[Token]:
        return [token for token in (*self._special.values(), *self._extra) if token is not None]

    def _add(self, tokens: list[Token], *, special: bool) -> int:
        """Tokens that the vocabulary lacks get the ids behind it."""
        table = self.get_vocab() | (known := self._added_tokens_encoder)
        free = count = len(table)
        for token in tokens:
            text = str(token)
            if not text or (text in known and not (special and isinstance(token, AddedToken))):
                continue
            if isinstance(token, str):
                is_special = special or text in self.all_special_tokens
                token = AddedToken(token, normalized=not is_special, special=is_special)
            if token in self._added_tokens_decoder.values():
                continue
            if not token.special and token.normalized and getattr(self, "do_lower_case", False):
                token.content = text = text.lower()
            index = table.setdefault(text, free)
            free += index == free
            self._added_tokens_decoder[index] = token
            if token.special and text not in self.all_special_tokens:
                self._extra.append(token)
        return free - count

    def _find(self, token: Any) -> int | None:
        index = self._added_tokens_encoder.get(token)
        return self._convert_token_to_id(token) if index is None else index

    def _text(self, index: Any) -> str | None:
        token = self._added_tokens_decoder.get(index)
        return self._convert_id_to_token(index) if token is None else token.content

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        return self.convert_tokens_to_string(self.convert_ids_to_tokens(ids, skip_special_tokens))  # type: ignore[arg-type]

    def train_new_from_iterator(self, *args: Any, **options: Any) -> Self:
        """Raise ``UnsupportedError``: how its vocabulary is learnt is the subclass's affair."""
        raise UnsupportedError(f"{type(self).__name__} works by methods of its own, which cannot be trained here.")

    # Texts

    def tokenize(  # type: ignore[override]  # a cut row would not be the tokens of the text
        self, text: str, pair: str | None = None, split_special_tokens: bool | None = None, **options: Any
    ) -> list[str]:
        """The tokens of a text: added ones, and those of what stands between; other options are a subclass's own."""
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        tokens = list[str]()
        for one in (text, pair) if pair is not None else (text,):
            prepared, _ = self.prepare_for_tokenization(one, **options)
            added = {} if split_special_tokens else {token.content: token for token in self._added_tokens_decoder.values()}
            for part in _parts(prepared, added):
                tokens += [part] if part in added else self._tokenize(part)
        return tokens

    def _encode(self, text: Any, pair: Any, request: Request) -> BatchEncoding:
        if "offset_mapping" in request.columns:
            hint = "Leave return_offsets_mapping out."
            raise UnsupportedError(f"{type(self).__name__} does not know the characters of a token.", hint=hint)
        wanted = replace(request, columns=[*request.columns, *(CUT if request.overflow else ())], overflow=False)
        return BatchEncoding(super()._encode(text, pair, wanted).data)

    def _run(self, batch: list[Any], request: Request, *, maps: bool) -> list[Any]:
        check_texts(batch, words=request.words)

        def ids(text: Any) -> Any:
            options: dict[str, Any] = {"split_special_tokens": request.split_special_tokens}
            options |= {"is_split_into_words": True} if request.words else {}
            words = text if request.words else [text]
            return self.convert_tokens_to_ids(list(chain.from_iterable(self.tokenize(word, **options) for word in words)))

        pairs = [item if isinstance(item, tuple) else (item, None) for item in batch]
        return [self._row(ids(one), None if two is None else ids(two), request) for one, two in pairs]

    def _columns(self, encodings: Any, samples: Any, request: Request) -> dict[str, Any]:
        return row_columns(encodings, request)

    # Special tokens around texts

    def _around(self, first: list[int], second: list[int] | None) -> list[tuple[int, int]]:
        """Ids in their place among special ones, and 1 for those that are special, else 0."""
        single, pair = self.around or _AROUND.get(self.special_tokens_pattern, _AROUND[None])
        result: list[tuple[int, int]] = []
        for name in (single if second is None else pair).split():
            if name in ("A", "B"):
                result += [(index, 0) for index in (first if name == "A" else second or [])]
            elif name in ("prefix", "suffix"):
                result += [(index, 1) for index in getattr(self, f"{name}_tokens", [])]
            elif (index := getattr(self, f"{name}_token_id")) is None:
                what = f"special_tokens_pattern {self.special_tokens_pattern!r} needs a {name}_token, which is not set."
                raise InputError(what, hint=f"Set tokenizer.{name}_token, or another special_tokens_pattern.")
            else:
                result.append((index, 1))
        return result

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        return [index for index, _ in self._around(token_ids_0, token_ids_1)]

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        if already_has_special_tokens:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1, already_has_special_tokens=True)
        return [special for _, special in self._around(token_ids_0, token_ids_1)]

    def create_token_type_ids_from_sequences(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        if self.token_type_ids_include_special_tokens:
            first = len(self.build_inputs_with_special_tokens(token_ids_0))
            total = len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1))
        else:
            first, total = len(token_ids_0), len(token_ids_0) + len(token_ids_1 or ())
        paired = token_ids_1 is not None and self.special_tokens_pattern != "prefix_suffix"
        if paired and self.token_type_ids_pattern == "bert_style":  # noqa: S105
            return [0] * first + [1] * (total - first)
        return [0] * total

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return len(self.build_inputs_with_special_tokens([], [] if pair else None))

    # Files

    def save_vocabulary(self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write ``encoder`` or ``vocab`` of the subclass as JSON, and ``bpe_ranks`` as merges; nothing where it has neither."""
        vocab = getattr(self, "encoder", None) or self.vocab
        if vocab is None:
            return ()
        prefix, names = f"{filename_prefix}-" if filename_prefix else "", self.vocab_files_names
        files = {names.get("vocab_file", "vocab.json"): dump_json(vocab)}
        if (ranks := getattr(self, "bpe_ranks", None)) is not None:
            merges = [" ".join(pair) + "\n" for pair in sorted(ranks, key=ranks.__getitem__)]
            header = "#version: 0.2\n" if getattr(self, "add_bpe_version_header", False) else ""
            files[names.get("merges_file", "merges.txt")] = header + "".join(merges)
        paths = {Path(save_directory, prefix + name): content for name, content in files.items()}
        for path, content in paths.items():
            write_file(path, content)
        return tuple(map(str, paths))

    def write(self, folder: Path, filename_prefix: str | None = None) -> None:
        """Write all files into a folder that is there, and let the subclass write its vocabulary."""
        # What the subclass was made of, as it is now, but for its files.
        stated = {name: getattr(self, name, value) for name, value in self._other.items()}
        self._other = {name: value for name, value in stated.items() if name not in self.vocab_files_names}
        loading.write(self, folder, filename_prefix)
        self.save_vocabulary(str(folder), filename_prefix=filename_prefix)

    def _files(self) -> dict[str, str | bytes]:
        return {}


def _arguments(settings: TokenizerSettings) -> dict[str, Any]:
    """Settings as one passes them to a constructor."""
    values = settings.other | settings.options | settings.attributes | settings.tokens
    values |= {"added_tokens_decoder": settings.added} if settings.added else {}
    return values | ({} if settings.extra is None else {"extra_special_tokens": settings.extra})


def _parts(text: str, added: Mapping[str, AddedToken]) -> list[str]:
    """A text cut around the added tokens in it, the longest first; their flags say what happens to what stands beside them."""
    if not added:
        return [text] * bool(text)
    pattern = "|".join(re.escape(token) for token in sorted(added, key=len, reverse=True))
    parts = re.split(f"({pattern})", text)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            continue
        token, left, right = added[part], parts[place - 1], parts[place + 1]
        parts[place + 1] = right.lstrip() if token.rstrip else right
        parts[place - 1] = left.rstrip() if token.lstrip else left
        if token.single_word and left and left[-1] != " ":
            parts[place - 1], parts[place] = left + part, ""
        elif token.single_word and right and right[0] != " ":
            parts[place + 1], parts[place] = part + right, ""
    return [part for part in parts if part]
