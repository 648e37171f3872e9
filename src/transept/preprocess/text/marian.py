"""Marian's tokenizer: a SentencePiece model for each of two languages, and tables that number the pieces of both.

The models cut texts into pieces and the tables (``vocab.json``) say which ids these have, so a piece that only one of the two
knows is unknown, whatever its place in the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import tokenizers
from tokenizers import decoders, models

from transept.errors import FormatError, InputError, UnsupportedError
from transept.files import dump_json, read_bytes
from transept.preprocess.text.backend import PathOr, Views, guarded
from transept.preprocess.text.build import Family, Vocab, VocabularyFiles, load_vocab
from transept.preprocess.text.loading import CONFIG_NAME, from_vocabulary, known_options, stated_settings, where_and_what
from transept.preprocess.text.python_tokenizer import PythonTokenizer
from transept.preprocess.text.sentencepiece import (
    BYTE,
    CONTROL,
    SPACE,
    UNKNOWN,
    Piece,
    parse_sentencepiece,
    sentencepiece_backend,
)
from transept.preprocess.text.settings import Settings, from_caller
from transept.preprocess.text.special import Token

_BYTES = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
_NO_PIECE = ""


class Segmenter:
    """Texts to pieces and back, as one SentencePiece model has it.

    Args:
        data: the content of its file.
        path: the file, for messages.

    Raises:
        FormatError, UnsupportedError: see :func:`read_sentencepiece`.
    """

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
    vocab = load_vocab(files.need_vocab())
    _check_unknown(vocab, tokens, files.path)
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=tokens["unk_token"]))
    backend.decoder = decoders.Metaspace(SPACE)
    return backend


def _check_unknown(vocab: Vocab, tokens: Mapping[str, str], path: PathOr | None) -> None:
    if (unknown := tokens.get("unk_token")) is None or unknown not in vocab:
        raise FormatError(f"the vocabulary lacks {unknown!r}, which stands for unknown pieces.", path=path)


_OPTIONS = {"source_lang": None, "target_lang": None, "separate_vocabs": False, "sp_model_kwargs": None}


class MarianTokenizer(PythonTokenizer):
    """Marian's tokenizer (Junczys-Dowmunt et al. 2018): texts in one language, targets in another, an end after each.

    A text may begin with the language that it is to be translated to, such as ``>>fra<<``, which is one token. Options:
    ``source_lang`` and ``target_lang`` are names only; with ``separate_vocabs`` targets have ids of their own.

    Args:
        source_spm, target_spm: paths of the SentencePiece models of the two languages.
        vocab: the path of ``vocab.json``, piece -> id, or its content.
        target_vocab_file: the same for targets, where vocabularies are separate.
        settings: as for :class:`Tokenizer`.

    Raises:
        FileError, FormatError: a file that cannot be read or used.
        InputError: a setting that is none, or separate vocabularies and only one table.
    """

    family: ClassVar[Family] = Family(
        files={
            "source_spm": "source.spm",
            "target_spm": "target.spm",
            "vocab": "vocab.json",
            "target_vocab_file": "target_vocab.json",
        },
        tokens={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        build=_table_backend,
        options=_OPTIONS,
        template=(("A", "eos"), ("A", "B", "eos")),
        max_length=512,
        applied=frozenset(_OPTIONS),
        model_types=("marian",),
    )

    def __init__(
        self,
        source_spm: PathOr,
        target_spm: PathOr,
        vocab: PathOr | Mapping[str, Any],
        target_vocab_file: PathOr | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._segment_by(source_spm, target_spm)
        self._make(vocab, target_vocab_file, Settings(), from_caller(settings, known_options(self.family)))

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        source, caller = where_and_what(self.family, name, options)
        names = self.family.files
        self._segment_by(source.need(names["source_spm"]), source.need(names["target_spm"]))
        stated = stated_settings(self.family, source, source.find(CONFIG_NAME))
        self._make(source.need(names["vocab"]), source.find(names["target_vocab_file"]), stated, caller)

    def _segment_by(self, source: PathOr, target: PathOr) -> None:
        self._segmenters = Segmenter(read_bytes(source), source), Segmenter(read_bytes(target), target)

    def _make(self, vocab: Any, target_vocab: Any, stated: Settings, caller: Settings) -> None:
        self._take(from_vocabulary(self.family, VocabularyFiles(vocab), stated, caller))
        if self.sp_model_kwargs:
            raise UnsupportedError(
                f"sp_model_kwargs {self.sp_model_kwargs!r:.80} is not supported: texts have one segmentation here."
            )
        self._source_vocab: Vocab = self._backend.get_vocab(with_added_tokens=False)
        self._target_vocab = self._source_vocab
        if self.separate_vocabs:
            if target_vocab is None:
                raise InputError(
                    "vocabularies are separate, but there is no target_vocab.json.", hint="Pass target_vocab_file=."
                )
            self._target_vocab = load_vocab(target_vocab)
            path = target_vocab if isinstance(target_vocab, str | os.PathLike) else None
            _check_unknown(self._target_vocab, self.special_tokens_map, path)
        self._for_target = False
        self._index()

    def _index(self) -> None:
        """Make anew what depends on the added tokens."""
        added = self._backend.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._contents = tuple(token.content for token in added.values())
        self._written = {index: token for token, index in self._target_vocab.items()}
        self._written |= {index: token.content for index, token in added.items()}
        self._tables: dict[bool, Views] = {}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_tables": {}}

    def _add(self, tokens: list[Token], *, special: bool) -> int:
        count = super()._add(tokens, special=special)
        self._index()
        return count

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

    def _table(self) -> Views:
        if (table := self._tables.get(self._for_target)) is None:
            vocab = self._target_vocab if self._for_target else self._source_vocab
            # A special token has its id among texts also in a target; only a piece that is unknown has the target's.
            words = vocab | self.added_tokens_encoder | {_NO_PIECE: vocab[str(self.unk_token)]}
            backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token=_NO_PIECE))
            backend.post_processor = self._backend.post_processor
            table = self._tables[self._for_target] = Views(backend)
        return table

    def _cut(self, text: str, split_special_tokens: bool) -> list[str]:
        if split_special_tokens or not any(token in text for token in self._contents):
            return self._segmented(text)
        found: list[str] = []
        encoding = self._backend.encode(text, add_special_tokens=False)
        for token, index, (start, end) in zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True):
            stretch = text[start:end]
            is_added = index in self._added and token in stretch
            found += [token] if is_added else self._segmented(stretch)
        return found

    def _segmented(self, text: str) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
        return [text[:end]] * bool(end) + self._segmenters[self._for_target].pieces(text[end:])

    def _text(self, index: int) -> str | None:
        return super()._text(index) if type(index) is not int or index < 0 else self._written.get(index)

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        tokens = self.convert_ids_to_tokens(ids, skip_special_tokens)
        return self.convert_tokens_to_string([token for token in tokens if token is not None])

    def _files(self) -> dict[str, str | bytes]:
        names = self.family.files
        source, target = self._segmenters
        files: dict[str, str | bytes] = {
            names["source_spm"]: source.data,
            names["target_spm"]: target.data,
            names["vocab"]: dump_json(self._source_vocab),
        }
        if self.separate_vocabs:
            files[names["target_vocab_file"]] = dump_json(self._target_vocab)
        return files
