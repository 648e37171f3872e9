"""Marian's tokenizer: a SentencePiece model for each of two languages, and tables that number the pieces of both.

The models cut texts into pieces and the tables (``vocab.json``) say which ids these have, so a piece that only one of the two
knows is unknown, whatever its place in the model.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import tokenizers
from tokenizers import Encoding, decoders, models

from transept.errors import FormatError, InputError, UnsupportedError
from transept.files import dump_json, read_bytes
from transept.preprocess.settings import split_options
from transept.preprocess.text.assembly import from_vocabulary, known_options
from transept.preprocess.text.backend import Views, guarded
from transept.preprocess.text.build import Template, VocabularyFiles
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.loading import CONFIG_NAME, stated_settings
from transept.preprocess.text.requests import Request, check_texts, run
from transept.preprocess.text.segmentation import sentencepiece_backend
from transept.preprocess.text.sentencepiece import BYTE, CONTROL, SPACE, UNKNOWN, Piece, parse_sentencepiece
from transept.preprocess.text.settings import Settings, from_caller
from transept.preprocess.text.special import Token
from transept.preprocess.text.tokenizer import Tokenizer
from transept.preprocess.text.vocab_files import PathOr, Vocab, load_vocab
from transept.source import Source, model_name

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

    @classmethod
    def read(cls, path: PathOr) -> Self:
        """The model of a file."""
        return cls(read_bytes(path), path)

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


class MarianTokenizer(Tokenizer):
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

    vocab_files_names: ClassVar[Mapping[str, str]] = {
        "source_spm": "source.spm",
        "target_spm": "target.spm",
        "vocab": "vocab.json",
        "target_vocab_file": "target_vocab.json",
    }
    model_max_length = 512
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    options: ClassVar[Mapping[str, Any]] = {
        "source_lang": None,
        "target_lang": None,
        "separate_vocabs": False,
        "sp_model_kwargs": None,
    }
    applied: ClassVar[frozenset[str]] = frozenset(options)
    template: ClassVar[Template | None] = (("A", "eos"), ("A", "B", "eos"))

    def __init__(
        self,
        source_spm: PathOr,
        target_spm: PathOr,
        vocab: PathOr | Mapping[str, Any],
        target_vocab_file: PathOr | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._segmenters = Segmenter.read(source_spm), Segmenter.read(target_spm)
        self._make(vocab, target_vocab_file, Settings(), from_caller(settings, known_options(type(self))))

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str], **options: Any) -> Self:
        """Load a tokenizer from its files; arguments and errors as in the base class."""
        hub, values = split_options(options)
        source, caller = Source(model_name(name_or_path), **hub), from_caller(values, known_options(cls))
        caller.attributes.setdefault("name_or_path", source.name)
        names = cls.vocab_files_names
        tokenizer = cls.__new__(cls)
        tokenizer._segmenters = (
            Segmenter.read(source.need(names["source_spm"])),
            Segmenter.read(source.need(names["target_spm"])),
        )
        stated = stated_settings(cls, source, source.find(CONFIG_NAME))
        tokenizer._make(source.need(names["vocab"]), source.find(names["target_vocab_file"]), stated, caller)
        return tokenizer

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The table of the vocabulary; arguments as in the base class."""
        vocab = load_vocab(files.need_vocab())
        _check_unknown(vocab, tokens, files.path)
        backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=tokens["unk_token"]))
        backend.decoder = decoders.Metaspace(SPACE)
        return backend

    def _make(self, vocab: Any, target_vocab: Any, stated: Settings, caller: Settings) -> None:
        self._take(from_vocabulary(type(self), VocabularyFiles(vocab), stated, caller))
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

    def add_tokens(self, new_tokens: Token | Sequence[Token], special_tokens: bool = False) -> int:
        """See the base class."""
        count = super().add_tokens(new_tokens, special_tokens)
        self._index()
        return count

    @property
    def is_fast(self) -> bool:
        """Whether tokens can be mapped to words and characters; never."""
        return False

    @property
    def supported_language_codes(self) -> list[str]:
        """The languages that a text can ask for, such as ``>>fra<<``, by id; none where vocabularies are separate."""
        codes = [token for token in self._source_vocab if token.startswith(">>") and token.endswith("<<")]
        return [] if self.separate_vocabs else sorted(codes, key=self._source_vocab.__getitem__)

    def tokenize(  # type: ignore[override]  # a cut row would not be the tokens of the text
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, split_special_tokens: bool | None = None
    ) -> list[str]:
        """The pieces of a text, and of a second one; unknown characters as they are."""
        split = self.split_special_tokens if split_special_tokens is None else split_special_tokens
        check_texts([text] if pair is None else [(text, pair)], words=False)
        pieces = [piece for one in (text, pair) if one is not None for piece in self._pieces(one, split)]
        return [*pieces, str(self.eos_token)] if add_special_tokens else pieces

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

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> Self:
        """Marian's vocabularies are not learnt here.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Marian's tokenizer cannot be trained here.", hint="Train two SentencePiece models, and pass their paths."
        )

    def _target_tokenizer(self) -> Self:
        twin = copy.copy(self)
        twin._for_target = True
        return twin

    def _encode(self, text: Any, pair: Any, request: Request, *, verbose: bool) -> BatchEncoding:
        if "offset_mapping" in request.columns:
            raise UnsupportedError(
                "Marian's tokenizer does not know the characters of a token.", hint="Leave return_offsets_mapping out."
            )
        # Its encodings are of pieces, so what they say of words and characters would mislead.
        return BatchEncoding(super()._encode(text, pair, request, verbose=verbose).data)

    def _run(self, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
        check_texts(batch, words=request.words)
        rows = [self._pieces(item, request.split_special_tokens) for item in batch]
        return run(self._table().get(request.truncation), rows, replace(request, words=True), maps=maps)

    def _table(self) -> Views:
        """The table of the language that is encoded, in which every piece is a word."""
        if (table := self._tables.get(self._for_target)) is None:
            vocab = self._target_vocab if self._for_target else self._source_vocab
            # A special token has its id among texts also in a target; only a piece that is unknown has the target's.
            words = vocab | self.added_tokens_encoder | {_NO_PIECE: vocab[str(self.unk_token)]}
            backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token=_NO_PIECE))
            backend.post_processor = self._backend.post_processor
            table = self._tables[self._for_target] = Views(backend)
        return table

    def _pieces(self, item: Any, split_special_tokens: bool) -> Any:
        """The pieces of a text or of a list of words, or of each of a pair."""
        if isinstance(item, tuple):
            return tuple(self._pieces(one, split_special_tokens) for one in item)
        if isinstance(item, list):
            return [piece for word in item for piece in self._pieces(word, split_special_tokens)]
        if split_special_tokens or not any(token in item for token in self._contents):
            return self._segmented(item)
        found: list[str] = []
        encoding = self._backend.encode(item, add_special_tokens=False)
        for token, index, (start, end) in zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True):
            stretch = item[start:end]
            is_added = index in self._added and token in stretch
            found += [token] if is_added else self._segmented(stretch)
        return found

    def _segmented(self, text: str) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
        return [text[:end]] * bool(end) + self._segmenters[self._for_target].pieces(text[end:])

    def _text(self, index: int) -> str | None:
        return self._written.get(index) if index >= 0 else super()._text(index)

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        tokens = self.convert_ids_to_tokens(ids, skip_special_tokens)
        return self.convert_tokens_to_string([token for token in tokens if token is not None])

    def _files(self) -> dict[str, str | bytes]:
        names = self.vocab_files_names
        source, target = self._segmenters
        files: dict[str, str | bytes] = {
            names["source_spm"]: source.data,
            names["target_spm"]: target.data,
            names["vocab"]: dump_json(self._source_vocab),
        }
        if self.separate_vocabs:
            files[names["target_vocab_file"]] = dump_json(self._target_vocab)
        return files


def _check_unknown(vocab: Vocab, tokens: Mapping[str, str], path: PathOr | None) -> None:
    if (unknown := tokens.get("unk_token")) is None or unknown not in vocab:
        raise FormatError(f"the vocabulary lacks {unknown!r}, which stands for unknown pieces.", path=path)
