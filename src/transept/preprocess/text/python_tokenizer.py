"""The base of tokenizers that cut texts into tokens in Python; the compiled library then numbers, cuts and pads these."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Self

from tokenizers import Encoding

from transept.errors import UnsupportedError
from transept.preprocess.text.backend import Views
from transept.preprocess.text.encoder import Request, check_texts, run
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.saving import replaced, write_files
from transept.preprocess.text.tokenizer import Tokenizer


class PythonTokenizer(Tokenizer):
    """A tokenizer whose texts are cut by :meth:`_cut`; its encodings do not know the words and characters of a token."""

    @property
    def is_fast(self) -> bool:
        """Whether the compiled library cuts texts into tokens; never."""
        return False

    def tokenize(  # type: ignore[override]  # a cut row would not be the tokens of the text
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, split_special_tokens: bool | None = None
    ) -> list[str]:
        """The tokens of a text, and of a second one; unknown characters as they are."""
        split = self.split_special_tokens if split_special_tokens is None else split_special_tokens
        check_texts([text] if pair is None else [(text, pair)], words=False)
        tokens = [token for one in (text, pair) if one is not None for token in self._cut(one, split)]
        return [*tokens, str(self.eos_token)] if add_special_tokens and self.family.template is not None else tokens

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> Self:
        """These vocabularies are not learnt here.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"{type(self).__name__} cannot be trained here.", hint="Train its vocabulary with its own tools, and pass the file."
        )

    def save_vocabulary(self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write the files that hold the vocabulary; returns the paths."""
        files = self._files()
        return replaced(save_directory, lambda stage: write_files(stage, files, filename_prefix), is_stale=lambda name: False)

    def _cut(self, text: str, split_special_tokens: bool) -> list[str]:
        """The tokens of a text."""
        raise NotImplementedError

    def _table(self) -> Views:
        """The backend to which every token is a word."""
        raise NotImplementedError

    def _tokens(self, item: Any, split_special_tokens: bool) -> Any:
        """The tokens of a text or of a list of words, or of each of a pair."""
        if isinstance(item, tuple):
            return tuple(self._tokens(one, split_special_tokens) for one in item)
        if isinstance(item, list):
            return [token for word in item for token in self._cut(word, split_special_tokens)]
        return self._cut(item, split_special_tokens)

    def _encode(self, text: Any, pair: Any, request: Request, *, verbose: bool) -> BatchEncoding:
        if "offset_mapping" in request.columns:
            raise UnsupportedError(
                f"{type(self).__name__} does not know the characters of a token.", hint="Leave return_offsets_mapping out."
            )
        # Its encodings are of tokens, so what they say of words and characters would mislead.
        return BatchEncoding(super()._encode(text, pair, request, verbose=verbose).data)

    def _run(self, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
        check_texts(batch, words=request.words)
        rows = [self._tokens(item, request.split_special_tokens) for item in batch]
        return run(self._table().get(request.truncation), rows, replace(request, words=True), maps=maps)
