"""Tokenizers that cut texts into tokens in Python, by a table; the library numbers, cuts and pads the tokens."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Self

import tokenizers
from tokenizers import Encoding, models

from transept.errors import UnsupportedError
from transept.preprocess.text.backend import Views
from transept.preprocess.text.encoder import Request, check_texts, run
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.loading import replaced, write_files
from transept.preprocess.text.python.slow import PreTrainedTokenizer
from transept.preprocess.text.settings import Token
from transept.preprocess.text.tokenizer import Tokenizer


class PythonTokenizer(Tokenizer):
    """A tokenizer whose texts are cut by :meth:`_segmented`; its encodings do not know the words and characters of a token."""

    is_fast = False
    _for_target = False
    _tables: dict[tuple[bool, str | None], Views]
    _added: dict[int, str]
    _written: dict[int, str]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_tables": {}}

    def tokenize(  # type: ignore[override]  # a cut row would not be the tokens of the text
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, split_special_tokens: bool | None = None
    ) -> list[str]:
        """The tokens of a text, and of a second one; unknown characters as they are."""
        split = self.split_special_tokens if split_special_tokens is None else split_special_tokens
        check_texts([text] if pair is None else [(text, pair)], words=False)
        tokens = [token for one in (text, pair) if one is not None for token in self._cut(one, split)]
        return [*tokens, str(self.eos_token)] if add_special_tokens and self.family.template is not None else tokens

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> Self:
        """Raise ``UnsupportedError``: these vocabularies are not learnt here."""
        hint = "Train its vocabulary with its own tools, and pass the file."
        raise UnsupportedError(f"{type(self).__name__} cannot be trained here.", hint=hint)

    def save_vocabulary(self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None) -> tuple[str, ...]:
        files = self._files()
        return replaced(save_directory, lambda stage: write_files(stage, files, filename_prefix), is_stale=lambda name: False)

    def _index(self) -> None:
        """Make anew what depends on the added tokens."""
        self._added = {index: token.content for index, token in self.added_tokens_decoder.items()}
        self._written = {index: token for token, index in self.get_vocab().items()}
        self._tables = {}

    def _add(self, tokens: list[Token], *, special: bool) -> int:
        count = super()._add(tokens, special=special)
        self._index()
        return count

    def _cut(self, text: str, split_special_tokens: bool) -> list[str]:
        """The tokens of a text: added ones, and those of what stands between."""
        if split_special_tokens or not any(token in text for token in self._added.values()):
            return self._segmented(text)
        found, end = list[str](), 0
        encoding = self._backend.encode(text, add_special_tokens=False)
        for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if (token := self._added.get(index)) is not None and token in text[start:stop]:
                found += [*self._segmented(text[end:start]), token]
                end = stop
        return found + self._segmented(text[end:])

    def _segmented(self, text: str) -> list[str]:
        """The tokens of a text without added ones."""
        raise NotImplementedError

    def _numbered(self) -> tuple[dict[str, int], int | None]:
        """The id of each token, and that of all others."""
        return self.get_vocab(), self.unk_token_id

    def _tokens(self, item: Any, split_special_tokens: bool) -> Any:
        """The tokens of a text or of a list of words, or of each of a pair."""
        if isinstance(item, tuple):
            return tuple(self._tokens(one, split_special_tokens) for one in item)
        if isinstance(item, list):
            return [token for word in item for token in self._cut(word, split_special_tokens)]
        return self._cut(item, split_special_tokens)

    def _encode(self, text: Any, pair: Any, request: Request) -> BatchEncoding:
        if "offset_mapping" in request.columns:
            hint = "Leave return_offsets_mapping out."
            raise UnsupportedError(f"{type(self).__name__} does not know the characters of a token.", hint=hint)
        # Its encodings are of tokens, so what they say of words and characters would mislead.
        return BatchEncoding(super()._encode(text, pair, request).data)

    def _run(self, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
        check_texts(batch, words=request.words)
        rows = [self._tokens(item, request.split_special_tokens) for item in batch]
        place = self._for_target, self._options.get("src_lang")
        if (table := self._tables.get(place)) is None:
            # Every token is a word; the empty one stands for those that are none.
            words, unknown = self._numbered()
            words = words if unknown is None else words | {"": unknown}
            backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token=""))
            if self._backend.post_processor is not None:
                backend.post_processor = self._backend.post_processor
            table = self._tables[place] = Views(backend)
        return run(table.get(request.truncation), rows, replace(request, words=True), maps=maps)


PreTrainedTokenizer.register(PythonTokenizer)  # it is one to who asks, and shares none of its code
