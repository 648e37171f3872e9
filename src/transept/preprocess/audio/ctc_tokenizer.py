"""Wav2Vec2's tokenizer: one id a character, and the decoding of CTC paths.

Its files are ``vocab.json`` (token -> id, or one such mapping a language), ``tokenizer_config.json`` and, in older
models, ``special_tokens_map.json`` and ``added_tokens.json``. The padding token is CTC's blank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, overload

import numpy as np

from transept.errors import ConfigError, InputError, InputTypeError, nearest
from transept.files import load_object
from transept.preprocess.audio.ctc_decode import Wav2Vec2CTCTokenizerOutput, char_offsets, collapse, word_offsets
from transept.preprocess.audio.ctc_vocabulary import MAX_TOKEN, Vocabulary, read_added, read_vocabulary
from transept.preprocess.features import BatchFeature, as_numpy, check_tensor_type
from transept.preprocess.padding import Padding, columns
from transept.preprocess.settings import is_number, split_options, write_settings
from transept.publish import Pushable
from transept.source import Source, model_name

VOCAB_NAME, TOKENIZER_NAME = "vocab.json", "tokenizer_config.json"
SPECIAL_NAME, ADDED_NAME = "special_tokens_map.json", "added_tokens.json"
NO_LIMIT = int(1e30)
"""What the ecosystem's files write for a model that takes any length."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SETTINGS = (
    *(*SPECIAL, "word_delimiter_token", "replace_word_delimiter_char", "do_lower_case", "target_lang"),
    *("extra_special_tokens", "model_max_length", "padding_side", "clean_up_tokenization_spaces"),
)
# Names of code and of files elsewhere: a file does not decide about them.
_UNREAD = frozenset(
    {"tokenizer_class", "auto_map", "backend", "name_or_path", "vocab_file", "tokenizer_file"}
    | {"special_tokens_map_file", "is_local", "local_files_only", "files_loaded"}
)
_APART = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Wav2Vec2CTCTokenizer(Pushable):
    """Text to ids and CTC paths to text.

    Args:
        vocab_file: path of a ``vocab.json``, or its content.
        bos_token, eos_token, unk_token, pad_token: special tokens; those that the vocabulary lacks get the next ids.
        word_delimiter_token: stands for a space between words.
        replace_word_delimiter_char: what it becomes in a decoded text.
        do_lower_case: whether the vocabulary is of capitals and texts are of small letters.
        target_lang: which vocabulary, where the file holds one a language.
        settings: ``extra_special_tokens``, ``added_tokens_decoder``, ``model_max_length``, ``padding_side``,
            ``clean_up_tokenization_spaces`` and other special tokens; anything else is kept for saving.

    Raises:
        FormatError: a vocabulary that is none.
        InputError: ``target_lang`` is missing or not among the languages.
    """

    noun = "tokenizer"
    model_input_names = ("input_ids", "attention_mask")

    def __init__(
        self,
        vocab_file: str | os.PathLike[str] | Mapping[str, Any],
        bos_token: str | None = "<s>",  # noqa: S107
        eos_token: str | None = "</s>",  # noqa: S107
        unk_token: str | None = "<unk>",  # noqa: S107
        pad_token: str | None = "<pad>",  # noqa: S107
        word_delimiter_token: str | None = "|",  # noqa: S107
        replace_word_delimiter_char: str = " ",
        do_lower_case: bool = False,
        target_lang: str | None = None,
        **settings: Any,
    ) -> None:
        self.vocab = read_vocabulary(vocab_file)
        self.bos_token, self.eos_token, self.unk_token, self.pad_token = bos_token, eos_token, unk_token, pad_token
        self.sep_token, self.cls_token, self.mask_token = (
            settings.pop(name, None) for name in ("sep_token", "cls_token", "mask_token")
        )
        self.word_delimiter_token = word_delimiter_token
        self.replace_word_delimiter_char = replace_word_delimiter_char
        self.do_lower_case = do_lower_case
        older = settings.pop("additional_special_tokens", None)
        self.extra_special_tokens: list[str] = list(settings.pop("extra_special_tokens", None) or older or [])
        limit = settings.pop("model_max_length", None)
        self.model_max_length: int = NO_LIMIT if limit is None else limit
        self.padding_side: str = settings.pop("padding_side", "right")
        self.clean_up_tokenization_spaces = bool(settings.pop("clean_up_tokenization_spaces", False))
        self._given = read_added(settings.pop("added_tokens_decoder", None) or {})
        self.extra = settings
        self._check()
        self.set_target_lang(target_lang)

    def _check(self) -> None:
        tokens: list[tuple[str, Any]] = list(self.special_tokens_map.items())
        tokens += [("extra_special_tokens", token) for token in self.extra_special_tokens]
        for name, token in tokens:
            if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN:
                raise ConfigError(f"`{name}` must be a token, but is {token!r:.80}.")
        for name, fits in (
            ("replace_word_delimiter_char", isinstance(self.replace_word_delimiter_char, str)),
            ("do_lower_case", isinstance(self.do_lower_case, bool)),
            ("padding_side", self.padding_side in ("right", "left")),
            ("model_max_length", is_number(self.model_max_length) and self.model_max_length >= 1),
        ):
            if not fits:
                raise ConfigError(f"`{name}` of {type(self).__name__} cannot be {getattr(self, name)!r:.80}.")

    def set_target_lang(self, target_lang: str | None) -> None:
        """Choose the language of a vocabulary that holds several.

        Raises:
            InputError: the vocabulary has no such language; names those it has.
        """
        nested = isinstance(next(iter(self.vocab.values())), Mapping)
        languages = list(self.vocab) if nested else []
        if nested and target_lang not in self.vocab:
            hint = nearest(target_lang or "", languages)
            raise InputError(f"the vocabulary is one a language, and target_lang is {target_lang!r}.", hint=hint)
        if target_lang is not None and not nested:
            raise InputError(f"target_lang is {target_lang!r}, but the vocabulary is of one language.")
        self.target_lang = target_lang
        encoder = self.vocab[target_lang] if target_lang is not None else self.vocab
        self._tokens = Vocabulary(encoder, self.all_special_tokens, self._given)

    # Files

    @staticmethod
    def setting_names() -> tuple[str, ...]:
        """Names of the settings that :meth:`from_pretrained` takes."""
        return _SETTINGS

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str], **options: Any) -> Self:
        """Read the tokenizer of a directory or of a repository.

        Args:
            name_or_path: directory or repository id.
            options: where to look (see :class:`transept.source.Source`) and settings that replace the files'.

        Raises:
            FileError: there is no ``vocab.json``.
            FormatError, InputError: a file that cannot be used.
        """
        hub, overrides = split_options(options)
        for name in overrides:
            if name not in _SETTINGS:
                raise InputError(f"{cls.__name__} has no setting {name!r}.", hint=nearest(name, _SETTINGS))
        source = Source(model_name(name_or_path), **hub)

        def read(name: str) -> dict[str, Any]:
            path = source.find(name)
            return {} if path is None else load_object(path)

        vocab_file = source.need(VOCAB_NAME)
        settings = read(TOKENIZER_NAME)
        if "added_tokens_decoder" not in settings:
            settings |= {name: value for name, value in read(SPECIAL_NAME).items() if value is not None}
            settings["added_tokens_decoder"] = {index: token for token, index in read(ADDED_NAME).items()}
        known = {key: _plain(value) for key, value in settings.items() if not key.startswith("_") and key not in _UNREAD}
        return cls(vocab_file, **known | overrides)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write ``vocab.json``, ``tokenizer_config.json`` and ``special_tokens_map.json`` into a directory."""
        special = self.special_tokens_map
        settings = {
            **self.extra,
            **{name: getattr(self, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
            "word_delimiter_token": self.word_delimiter_token,
            **special,
            "replace_word_delimiter_char": self.replace_word_delimiter_char,
            "do_lower_case": self.do_lower_case,
            "target_lang": self.target_lang,
            "model_max_length": self.model_max_length,
            "padding_side": self.padding_side,
            "clean_up_tokenization_spaces": self.clean_up_tokenization_spaces,
            "added_tokens_decoder": self._tokens.added_tokens_decoder(),
            "tokenizer_class": type(self).__name__,
        }
        if self.extra_special_tokens:
            settings["extra_special_tokens"] = self.extra_special_tokens
        write_settings(directory, VOCAB_NAME, self.vocab)
        write_settings(directory, TOKENIZER_NAME, settings)
        write_settings(directory, SPECIAL_NAME, special)

    # Tokens and ids

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The named special tokens that are set."""
        names = (*SPECIAL, "word_delimiter_token")
        return {name: token for name in names if (token := getattr(self, name)) is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """Every special token, once."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all special tokens."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def __getattr__(self, name: str) -> int | None:
        """The id of a special token: ``pad_token_id`` and its like."""
        if name.removesuffix("_id") not in (*SPECIAL, "word_delimiter_token") or not name.endswith("_id"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        token = getattr(self, name.removesuffix("_id"))
        return None if token is None else self.convert_tokens_to_ids(token)

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the vocabulary, without those that were added."""
        return len(self._tokens.decoder)

    def __len__(self) -> int:
        return len(self._tokens.to_dict())

    def get_vocab(self) -> dict[str, int]:
        """Every token and its id."""
        return self._tokens.to_dict()

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int]:
        """Ids of tokens; unknown ones get the unknown token's."""
        if isinstance(tokens, str):
            return self._tokens.id_of(tokens, self.unk_token)
        return [self._tokens.id_of(token, self.unk_token) for token in tokens]

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: int | list[int]) -> str | list[str]:
        """Tokens of ids; unknown ones become the unknown token."""
        if isinstance(ids, int):
            return self._tokens.token_of(ids, self.unk_token)
        return [self._tokens.token_of(index, self.unk_token) for index in ids]

    # Text to ids

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text: added tokens as a whole, everything else one character each."""
        if not isinstance(text, str):
            raise InputTypeError(f"a text must be a string, but is {type(text).__name__}.")
        tokens: list[str] = []
        for piece, is_token in self._tokens.split(text):
            if is_token:
                tokens.append(piece)
            else:
                piece = piece.upper() if self.do_lower_case else piece
                delimiter = self.word_delimiter_token
                tokens.extend(piece if delimiter is None else piece.replace(" ", delimiter))
        return tokens

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.convert_tokens_to_ids(self.tokenize(text))

    def __call__(
        self,
        text: str | Sequence[str],
        padding: bool | str = False,
        truncation: bool = False,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        add_special_tokens: bool = True,
    ) -> BatchFeature:
        """Encode one text or many.

        Args:
            text: a string or a list of strings; an empty string has no ids.
            padding, truncation, max_length, pad_to_multiple_of: see :class:`transept.preprocess.padding.Padding`;
                truncation without ``max_length`` goes by the model's.
            return_attention_mask: ``False`` leaves the mask out.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists.
            add_special_tokens: changes nothing, since CTC labels have none around them.

        Returns:
            ``input_ids`` and ``attention_mask``, (B, T); (T,) for one text without ``return_tensors``.
        """
        check_tensor_type(return_tensors)
        if max_length is None and truncation:
            max_length = int(self.model_max_length)
        plan = Padding(padding, max_length, truncation, pad_to_multiple_of)
        if not isinstance(text, str | list | tuple):
            raise InputTypeError(f"a text must be a string or a list of strings, but is {type(text).__name__}.")
        ids = [self.encode(one) for one in ([text] if isinstance(text, str) else text)]
        data: dict[str, Any] = self._padded(ids, plan, mask=return_attention_mask is not False)
        if isinstance(text, str) and return_tensors is None:
            data = {name: rows[0] for name, rows in data.items()}
        return BatchFeature(data, return_tensors)

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
    ) -> BatchFeature:
        """Bring encoded texts to one length, as a collator does: ``{"input_ids": [...]}`` or a list of such."""
        found = columns(encoded_inputs, "input_ids")
        ids = [_ids(row) for row in found["input_ids"]]
        plan = Padding(padding, max_length, pad_to_multiple_of=pad_to_multiple_of)
        return BatchFeature(found | self._padded(ids, plan, mask=return_attention_mask is not False), return_tensors)

    def _padded(self, ids: list[list[int]], plan: Padding, *, mask: bool) -> dict[str, list[list[int]]]:
        lengths = plan.lengths([len(row) for row in ids])
        blank = self.pad_token_id
        if blank is None and any(total > kept for kept, total in lengths):
            raise InputError("padding needs a pad_token, which this tokenizer has not.")

        def placed(row: list[int], kept: int, total: int, filling: int) -> list[int]:
            rest = [filling] * (total - kept)
            return rest + row[:kept] if self.padding_side == "left" else row[:kept] + rest

        data = {"input_ids": [placed(row, *size, blank or 0) for row, size in zip(ids, lengths, strict=True)]}
        if mask:
            data["attention_mask"] = [placed([1] * kept, kept, total, 0) for kept, total in lengths]
        return data

    # Paths to text

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        output_char_offsets: bool = False,
        output_word_offsets: bool = False,
        group_tokens: bool = True,
        spaces_between_special_tokens: bool = False,
    ) -> str | Wav2Vec2CTCTokenizerOutput:
        """The text of one path; with offsets, a :class:`Wav2Vec2CTCTokenizerOutput`.

        Args:
            token_ids: ids (T,), usually the argmax of a model's logits: list, array or tensor.
            skip_special_tokens: leave special tokens out, except word delimiters; after equal neighbours are merged,
                so that they still part what they stand between.
            clean_up_tokenization_spaces: join punctuation to the word before it; ``None`` for the setting.
            output_char_offsets, output_word_offsets: also return where tokens and words begin and end, in frames.
            group_tokens: merge equal neighbours; false for labels, which are no paths.
            spaces_between_special_tokens: put a space between all tokens.
        """
        replaced, delimiter = self.replace_word_delimiter_char, self.word_delimiter_token
        dropped = set(self.all_special_tokens) - {delimiter} if skip_special_tokens else set()
        spans = collapse(self.convert_ids_to_tokens(_ids(token_ids)), self.pad_token, group=group_tokens)
        spans = [span for span in spans if span.token not in dropped]
        spans = [span._replace(token=replaced) if span.token == delimiter else span for span in spans]
        text = (" " if spaces_between_special_tokens else "").join(span.token for span in spans).strip()
        text = self._finished(text, clean_up_tokenization_spaces)
        if not (output_char_offsets or output_word_offsets):
            return text
        return Wav2Vec2CTCTokenizerOutput(
            text=text,
            char_offsets=char_offsets(spans) if output_char_offsets else None,
            word_offsets=word_offsets(spans, replaced) if output_word_offsets else None,
        )

    def _finished(self, text: str, clean: bool | None) -> str:
        text = text.lower() if self.do_lower_case else text
        for apart in _APART if (self.clean_up_tokenization_spaces if clean is None else clean) else ():
            text = text.replace(apart, apart.strip())
        return text

    def batch_decode(self, sequences: Any, **options: Any) -> list[str] | Wav2Vec2CTCTokenizerOutput:
        """The texts of many paths: ids (B, T), or a list of paths. ``options`` are those of :meth:`decode`."""
        decoded: list[Any] = [self.decode(path, **options) for path in sequences]
        if not (options.get("output_char_offsets") or options.get("output_word_offsets")):
            return decoded
        fields = ("text", "char_offsets", "word_offsets")
        return Wav2Vec2CTCTokenizerOutput(**{field: [one[field] for one in decoded] for field in fields})


def _ids(value: Any) -> list[int]:
    """One sequence of ids from a list, an array, a tensor or a single id."""
    array = as_numpy(value)
    ids = value if array is None else array.tolist()
    ids = [ids] if isinstance(ids, int | np.integer) else list(ids)
    if not all(isinstance(index, int | np.integer) for index in ids):
        hint = "Decode many with batch_decode()."
        raise InputTypeError(f"ids must be one sequence of integers, but hold {type(ids[0]).__name__}.", hint=hint)
    return [int(index) for index in ids]


def _plain(value: Any) -> Any:
    """Tokens that a file writes as objects, by their content."""
    if isinstance(value, Mapping) and "content" in value:
        return value["content"]
    return [_plain(item) for item in value] if isinstance(value, list) else value
