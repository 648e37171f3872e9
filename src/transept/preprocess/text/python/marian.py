"""Marian's tokenizer.

It has a SentencePiece model for each of two languages, which cut texts into pieces, and tables (``vocab.json``) that say
which ids the pieces of both have; so a piece that only one of the two knows is unknown, whatever its place in the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import tokenizers
from tokenizers import decoders, models

from transept.errors import FormatError, InputError, UnsupportedError
from transept.preprocess.text.backend import Views, guarded
from transept.preprocess.text.build import Vocab, VocabularyFiles, vocab_with_unknown
from transept.preprocess.text.loading import from_vocabulary, stated_settings, where_and_what
from transept.preprocess.text.python.table import PythonTokenizer
from transept.preprocess.text.sentencepiece import (
    BYTE,
    CONTROL,
    SPACE,
    UNKNOWN,
    Piece,
    parse_sentencepiece,
    sentencepiece_backend,
)
from transept.preprocess.text.settings import PathOr, TokenizerSettings, from_caller
from transept.storage.files import dump_json, read_bytes

_BYTES = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])


class Segmenter:
    """Texts to pieces and back, as one SentencePiece model has it; made of the content of its file."""

    def __init__(self, data: bytes, path: PathOr | None = None) -> None:
        self.data = data
        model = parse_sentencepiece(data, path)
        self.kinds = {piece.text: piece.kind for piece in model.pieces}
        self.has_bytes = BYTE in self.kinds.values()
        # No text gives these two kinds; a piece with a space is never found, since all spaces are written otherwise.
        pieces = [Piece(" ", kind=UNKNOWN) if piece.kind == UNKNOWN else piece for piece in model.pieces]
        with guarded(FormatError, "no pieces can be found with the SentencePiece model", path):
            built = sentencepiece_backend(model, pieces=[piece for piece in pieces if piece.kind != CONTROL])
        self._backend = Views(built).get(split_special_tokens=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data,)

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text; characters without one stand together as they are."""
        with guarded(InputError, "a text cannot be segmented"):
            return self._backend.encode(text, add_special_tokens=False).tokens

    def text(self, pieces: Sequence[str]) -> str:
        """Pieces joined, without the space before them; those of the other language stay as they are."""
        kept = [piece for piece in pieces if self.kinds.get(piece) != CONTROL]
        for place, piece in enumerate(kept):
            if piece in self.kinds:
                kept[place] = piece.removeprefix(SPACE)
            if kept[place]:
                break
        return _BYTES.decode(kept) if self.has_bytes else "".join(kept)


def _table_backend(files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel(vocab_with_unknown(files, tokens), unk_token=tokens["unk_token"]))
    backend.decoder = decoders.Metaspace(SPACE)
    return backend


class MarianTokenizer(
    PythonTokenizer,
    files={
        "source_spm": "source.spm",
        "target_spm": "target.spm",
        "vocab": "vocab.json",
        "target_vocab_file": "target_vocab.json",
    },
    tokens={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    build=_table_backend,
    options={"source_lang": None, "target_lang": None, "separate_vocabs": False, "sp_model_kwargs": None},
    template=(("A", "eos"), ("A", "B", "eos")),
    max_length=512,
    applied=True,
    model_types=("marian",),
):
    """Marian's tokenizer (Junczys-Dowmunt et al. 2018): texts in one language, targets in another, an end after each.

    A text may begin with the language that it is to be translated to, such as ``>>fra<<``, which is one token. Options:
    ``source_lang`` and ``target_lang`` are names only; with ``separate_vocabs`` targets have ids of their own.

    Args:
        source_spm, target_spm: paths of the SentencePiece models of the two languages.
        vocab: the path of ``vocab.json``, piece -> id, or its content.
        target_vocab_file: the same for targets, where vocabularies are separate.
        settings: as for :class:`Tokenizer`.
    """

    def __init__(
        self,
        source_spm: PathOr,
        target_spm: PathOr,
        vocab: PathOr | Mapping[str, Any],
        target_vocab_file: PathOr | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        caller = from_caller(settings, self.family.known_options)
        self._make((source_spm, target_spm), vocab, target_vocab_file, TokenizerSettings(), caller)

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        source, caller = where_and_what(self.family, name, options)
        names = self.family.files
        models = source.need(names["source_spm"]), source.need(names["target_spm"])
        stated, target_vocab = stated_settings(self.family, source), source.find(names["target_vocab_file"])
        self._make(models, source.need(names["vocab"]), target_vocab, stated, caller)

    def _make(
        self, models: tuple[PathOr, PathOr], vocab: Any, target_vocab: Any, stated: TokenizerSettings, caller: TokenizerSettings
    ) -> None:
        self._segmenters = [Segmenter(read_bytes(path), path) for path in models]
        self._take(from_vocabulary(self.family, VocabularyFiles(vocab), stated, caller))
        if self.sp_model_kwargs:
            message = f"sp_model_kwargs {self.sp_model_kwargs!r:.80} is not supported: texts have one segmentation here."
            raise UnsupportedError(message)
        self._source_vocab: Vocab = self._backend.get_vocab(with_added_tokens=False)
        self._target_vocab = self._source_vocab
        if self.separate_vocabs:
            if target_vocab is None:
                hint = "Pass target_vocab_file=."
                raise InputError("vocabularies are separate, but there is no target_vocab.json.", hint=hint)
            self._target_vocab = vocab_with_unknown(VocabularyFiles(target_vocab), self.special_tokens_map)
        self._index()

    def _index(self) -> None:
        super()._index()
        self._written = {index: token for token, index in self._target_vocab.items()} | self._added

    @property
    def supported_language_codes(self) -> list[str]:
        """The languages that a text can ask for, such as ``>>fra<<``, by id; none where vocabularies are separate."""
        codes = [token for token in self._source_vocab if token.startswith(">>") and token.endswith("<<")]
        return [] if self.separate_vocabs else sorted(codes, key=self._source_vocab.__getitem__)

    def get_src_vocab(self) -> Vocab:
        """Token -> id of texts, with added tokens."""
        return self._source_vocab | self.added_tokens_encoder

    def get_tgt_vocab(self) -> Vocab:
        """Token -> id of targets, with added tokens."""
        return self._target_vocab | self.added_tokens_encoder

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens joined to a text; a space follows special ones."""
        special, segmenter = set(self.all_special_tokens), self._segmenters[bool(self.separate_vocabs)]
        parts: list[str] = []
        waiting: list[str] = []
        for token in tokens:
            if token in special:
                parts += [segmenter.text(waiting), token, " "]
                waiting = []
            else:
                waiting.append(token)
        return "".join([*parts, segmenter.text(waiting)]).replace(SPACE, " ").strip()

    def _for_targets(self, language: str | None) -> Self:
        return super()._for_targets(language)._with(_for_target=True)

    def _numbered(self) -> tuple[dict[str, int], int | None]:
        vocab = self._target_vocab if self._for_target else self._source_vocab
        # A special token has its id among texts also in a target; only a piece that is unknown has the target's.
        return vocab | self.added_tokens_encoder, vocab[str(self.unk_token)]

    def _segmented(self, text: str) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
        return [text[:end]] * bool(end) + self._segmenters[self._for_target].pieces(text[end:])

    def _text(self, index: int) -> str | None:
        return super()._text(index) if type(index) is not int or index < 0 else self._written.get(index)

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        tokens = self.convert_ids_to_tokens(ids, skip_special_tokens)
        return self.convert_tokens_to_string([token for token in tokens if token is not None])

    def _files(self) -> dict[str, str | bytes]:
        names, (source, target) = self.family.files, self._segmenters
        files: dict[str, str | bytes] = {names["source_spm"]: source.data, names["target_spm"]: target.data}
        files[names["vocab"]] = dump_json(self._source_vocab)
        if self.separate_vocabs:
            files[names["target_vocab_file"]] = dump_json(self._target_vocab)
        return files
