"""Wav2Vec2's tokenizer: one id a character, and the decoding of CTC paths (Graves et al. 2006).

Its files are ``vocab.json`` (token -> id, or one such mapping a language), ``tokenizer_config.json`` and, in older
models, ``special_tokens_map.json`` and ``added_tokens.json``. The padding token is CTC's blank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from transept.errors import ConfigError, FormatError, InputError, InputTypeError, nearest
from transept.preprocess.settings import need
from transept.preprocess.text.backend import Views
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.loading import from_vocabulary, stated_settings, where_and_what
from transept.preprocess.text.python.table import PythonTokenizer
from transept.preprocess.text.settings import DEFAULTS, NAMED, Token, TokenizerSettings, as_text, from_caller
from transept.preprocess.text.vocabulary import listed
from transept.storage.files import dump_json, load_object

_DELIMITER = "word_delimiter_token"
_MAX_TOKEN = 256  # characters of a token of the vocabulary


class Wav2Vec2CTCTokenizerOutput(dict[str, Any]):
    """A decoded text, with offsets where they were asked for; or, for a batch, a list of each: by name, attribute or place.

    An offset maps ``char`` or ``word``, ``start_offset`` and ``end_offset``. Offsets count frames of the path; multiply by the
    model's hop (``inputs_to_logits_ratio / sampling_rate``) for seconds.
    """

    def __init__(self, text: Any, char_offsets: Any = None, word_offsets: Any = None) -> None:
        given = {"text": text, "char_offsets": char_offsets, "word_offsets": word_offsets}
        super().__init__({name: value for name, value in given.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        if name in ("text", "char_offsets", "word_offsets"):
            return self.get(name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def __getitem__(self, name: Any) -> Any:
        return super().__getitem__(name) if isinstance(name, str) else self.to_tuple()[name]

    def to_tuple(self) -> tuple[Any, ...]:
        """What was asked for."""
        return tuple(self.values())


class _Span(NamedTuple):
    """A token and the frames from ``start`` up to ``end`` that spell it."""

    token: str
    start: int
    end: int


def _offsets(kind: str, groups: Iterable[Sequence[_Span]]) -> list[dict[str, Any]]:
    """One mapping a group of spans."""
    return [
        {kind: "".join(span.token for span in spans), "start_offset": spans[0].start, "end_offset": spans[-1].end}
        for spans in groups
    ]


def _read_vocabulary(source: Any) -> dict[str, Any]:
    """A ``vocab.json`` or its content: token -> id, or language -> (token -> id)."""
    need("a vocabulary", source, str | os.PathLike | Mapping, "a path or a mapping of tokens to ids")
    path = None if isinstance(source, Mapping) else os.fspath(source)
    vocab = dict(source) if isinstance(source, Mapping) else load_object(source)
    nested = bool(vocab) and all(isinstance(part, Mapping) for part in vocab.values())
    for part in vocab.values() if nested else (vocab,):
        if not part:
            raise FormatError("holds an empty vocabulary.", path=path)
        for token, index in part.items():
            if type(index) is not int or not 0 <= index < 2**31 or len(token) > _MAX_TOKEN:
                raise FormatError(f"gives the token {token!r:.80} the id {index!r:.80}.", path=path)
    return vocab


def _character_backend(files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Byte pairs without merges: characters. Tokens of several are found in a text as a whole."""
    vocab, language = files.need(), options["target_lang"]
    nested = isinstance(next(iter(vocab.values())), Mapping)
    if nested and language not in vocab:
        hint = nearest(str(language or ""), vocab)
        raise InputError(f"the vocabulary is one a language, and target_lang is {language!r}.", hint=hint)
    if language is not None and not nested:
        raise InputError(f"target_lang is {language!r:.80}, but the vocabulary is of one language.")
    for name, kind in (("replace_word_delimiter_char", str), ("do_lower_case", bool)):
        if not isinstance(options[name], kind):
            raise ConfigError(f"`{name}` of a CTC tokenizer cannot be {options[name]!r:.80}.")
    encoder = dict(vocab[language] if nested else vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=encoder, merges=[]))
    backend.add_tokens([AddedToken(text, lstrip=True, rstrip=True, normalized=False) for text in encoder if len(text) > 1])
    return backend


class Wav2Vec2CTCTokenizer(
    PythonTokenizer,
    files={"vocab_file": "vocab.json", "tokenizer_config_file": "tokenizer_config.json"},
    tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", _DELIMITER: "|"},
    options={"replace_word_delimiter_char": " ", "do_lower_case": False, "target_lang": None},
    build=_character_backend,
    applied=True,
    model_types=("wav2vec2", "hubert", "wavlm", "data2vec-audio", "wav2vec2-conformer"),
):
    """Text to ids and CTC paths to text.

    Args:
        vocab_file: path of a ``vocab.json``, or its content.
        bos_token, eos_token, unk_token, pad_token: special tokens; those that the vocabulary lacks get the next ids.
        word_delimiter_token: stands for a space between words.
        replace_word_delimiter_char: what it becomes in a decoded text.
        do_lower_case: whether the vocabulary is of capitals and texts are of small letters.
        target_lang: which vocabulary, where the file holds one a language.
        settings: as for :class:`Tokenizer`.

    Raises:
        FormatError: a vocabulary that is none.
        InputError: ``target_lang`` is missing or not among the languages.
    """

    loader = ""

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
        settings |= {"bos_token": bos_token, "eos_token": eos_token, "unk_token": unk_token, "pad_token": pad_token}
        settings |= {_DELIMITER: word_delimiter_token, "replace_word_delimiter_char": replace_word_delimiter_char}
        settings |= {"do_lower_case": do_lower_case, "target_lang": target_lang}
        self._make(vocab_file, TokenizerSettings(), from_caller(settings, self.family.known_options))

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        source, caller = where_and_what(self.family, name, options)
        self._make(source.need(self.family.files["vocab_file"]), stated_settings(self.family, source), caller)

    def _make(self, vocab_file: Any, stated: TokenizerSettings, caller: TokenizerSettings) -> None:
        self._vocab = _read_vocabulary(vocab_file)
        self._given = stated.added | caller.added
        if any(not token.content for token in self._given.values()):
            raise ConfigError("`added_tokens_decoder` holds an empty token.")
        self._take(from_vocabulary(self.family, VocabularyFiles(self._vocab), stated, caller))
        self._index()

    def set_target_lang(self, target_lang: str | None) -> None:
        """Choose the language of a vocabulary that holds several; ``InputError`` names those that it has."""
        options = self._options | {"target_lang": target_lang}
        settings = TokenizerSettings(tokens=self._special, extra=self._extra, added=self._given, options=options)
        backend, _ = from_vocabulary(self.family, VocabularyFiles(self._vocab), settings, TokenizerSettings())
        self._views, self._options = Views(backend), options
        self._index()

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Names of the settings that :meth:`from_pretrained` takes."""
        return (*DEFAULTS, *NAMED, _DELIMITER, *cls.family.options, "extra_special_tokens")

    # Tokens and ids

    @property
    def vocab(self) -> dict[str, Any]:
        """The content of ``vocab.json``."""
        return self._vocab

    def _add(self, tokens: list[Token], *, special: bool) -> int:
        flags = {"special": special, "normalized": False}
        return super()._add([AddedToken(one, **flags) if isinstance(one, str) else one for one in tokens], special=special)

    def _text(self, index: Any) -> str | None:
        if (text := self._written.get(index)) is None and (text := self.unk_token) is None:
            raise InputError(f"the id {index!r:.40} is not in the vocabulary, which has no unknown token.")
        return text

    # Text to ids

    def _segmented(self, text: str) -> list[str]:
        text, delimiter = text.upper() if self.do_lower_case else text, self.word_delimiter_token
        return list(text if delimiter is None else text.replace(" ", delimiter))

    def _tokens(self, item: Any, split_special_tokens: bool) -> Any:
        tokens = super()._tokens([f" {word}" for word in item] if isinstance(item, list) else item, split_special_tokens)
        if isinstance(tokens, list) and self.unk_token_id is None:
            known = self.get_vocab()
            for token in tokens:
                if token not in known:
                    raise InputError(f"{token!r} is not in the vocabulary, which has no unknown token.")
        return tokens

    # Paths to text

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        output_char_offsets: bool = False,
        output_word_offsets: bool = False,
        group_tokens: bool = True,
        spaces_between_special_tokens: Any = False,
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
        rows = token_ids if isinstance(token_ids, str) else listed(token_ids)
        row = [rows] if isinstance(rows, int) else rows
        for index in row:
            if type(index) is not int:
                hint = "Decode many with batch_decode()."
                raise InputTypeError(f"ids must be one sequence of integers, but hold {type(index).__name__}.", hint=hint)
        spans = self._spans((str(self._text(index)) for index in row), group_tokens, skip_special_tokens)
        text = self._joined(spans, clean_up_tokenization_spaces, " " if spaces_between_special_tokens else "")
        if not (output_char_offsets or output_word_offsets):
            return text
        space = self.replace_word_delimiter_char
        words = [list(run) for is_space, run in groupby(spans, key=lambda span: span.token == space) if not is_space]
        chars = _offsets("char", ([span] for span in spans)) if output_char_offsets else None
        return Wav2Vec2CTCTokenizerOutput(text, chars, _offsets("word", words) if output_word_offsets else None)

    def _spans(self, tokens: Iterable[str], group: bool = True, skip_special_tokens: bool = False) -> list[_Span]:
        """What a path says: equal neighbours are one, then blanks are left out, and delimiters are as a text has them."""
        delimiter, spans, end = self.word_delimiter_token, list[_Span](), 0
        dropped = {self.pad_token} | (set(self.all_special_tokens) - {delimiter} if skip_special_tokens else set())
        for token, run in groupby(tokens) if group else ((token, iter((token,))) for token in tokens):
            start, end = end, end + sum(1 for _ in run)
            if token not in dropped:
                spans.append(_Span(self.replace_word_delimiter_char if token == delimiter else token, start, end))
        return spans

    def _joined(self, spans: list[_Span], clean: bool | None, between: str = "") -> str:
        text = between.join(span.token for span in spans).strip()
        text = text.lower() if self.do_lower_case else text
        return self.clean_up_tokenization(text) if (self.clean_up_tokenization_spaces if clean is None else clean) else text

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of a path that is given by its tokens."""
        return self._joined(self._spans(as_text(token, f"token {place}") for place, token in enumerate(tokens)), None)

    def batch_decode(self, sequences: Any, *args: Any, **options: Any) -> Any:
        """The texts of many paths: ids (B, T), or a list of paths. ``options`` are those of :meth:`decode`."""
        decoded = super().batch_decode(sequences, *args, **options)
        if not (options.get("output_char_offsets") or options.get("output_word_offsets")):
            return decoded
        fields = [*decoded[0]] if decoded else ["text"]
        return Wav2Vec2CTCTokenizerOutput(**{field: [one[field] for one in decoded] for field in fields})

    def _files(self) -> dict[str, str | bytes]:
        return {self.family.files["vocab_file"]: dump_json(self._vocab)}
