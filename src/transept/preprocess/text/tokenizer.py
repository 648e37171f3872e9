"""The tokenizer: texts to a model's inputs, on the compiled ``tokenizers`` library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import tokenizers

from transept.errors import InputError
from transept.preprocess.text.assembly import Parts, parts_of_caller
from transept.preprocess.text.backend import Views, make_backend
from transept.preprocess.text.build import Template, VocabularyFiles, any_backend
from transept.preprocess.text.chat import ChatTokenizer
from transept.preprocess.text.encoding import BatchEncoding, check_tensor_type
from transept.preprocess.text.padding import pad_batch
from transept.preprocess.text.settings import DEFAULTS
from transept.preprocess.text.special import NAMED, Token
from transept.preprocess.text.templates import is_template
from transept.publish import Pushable


class Tokenizer(ChatTokenizer, Pushable):
    """Texts to ids and back, by the rules of a ``tokenizer.json`` or of vocabulary files.

    The public names ``PreTrainedTokenizerFast``, ``PreTrainedTokenizer`` and ``PreTrainedTokenizerBase`` mean this
    class. A class of a family, such as ``BertTokenizer``, states how its backend is built from vocabulary files and
    what its special tokens are called; a ``tokenizer.json`` is never changed by it.

    Calls from several threads do not disturb each other: what a call asks for is no state of the tokenizer.

    Args:
        vocab: the vocabulary's file or content; ``vocab_file`` means the same.
        merges: the merges' file or content of a byte-pair vocabulary; ``merges_file`` means the same.
        tokenizer_object: a ``tokenizers.Tokenizer``, which is copied.
        tokenizer_file: the path of a ``tokenizer.json``.
        settings: special tokens (``pad_token="[PAD]"``), ``extra_special_tokens``, ``model_max_length``,
            ``padding_side``, ``truncation_side``, ``model_input_names``, ``clean_up_tokenization_spaces``,
            ``split_special_tokens``, ``chat_template``, ``response_template``, ``chat_control_tokens``, and the
            options of the family (``do_lower_case``).

    Raises:
        InputError: a setting that is none, or nothing to build from.
        FileError, FormatError: a file that cannot be read or used.
    """

    noun, loader = "tokenizer", "AutoTokenizer"
    vocab_files_names: ClassVar[Mapping[str, str]] = {"tokenizer_file": "tokenizer.json"}
    model_input_names: list[str] = ["input_ids", "attention_mask"]
    padding_side: str = "right"
    truncation_side: str = "right"
    special_tokens: ClassVar[Mapping[str, Token | None]] = {}
    """The family's special tokens by name."""
    options: ClassVar[Mapping[str, Any]] = {"add_prefix_space": None, "add_bos_token": False, "add_eos_token": False}
    """Options of the family's rules and their defaults; ``None`` where the files decide."""
    template: ClassVar[Template | None] = None
    """Where special tokens go; ``None``: before and after each text, as the options ask."""
    pad_token_type_id: ClassVar[int] = 0
    applied: ClassVar[frozenset[str]] = frozenset()
    """Options that the class itself applies and no file has rules for; its name is saved, so that they are found again."""
    portable: ClassVar[bool] = False
    """Whether the reference, told this class's name, builds the very backend that this class builds."""

    model_max_length: int
    split_special_tokens: bool
    chat_template: str | dict[str, str] | None
    name_or_path: str

    def __init__(
        self,
        vocab: Any = None,
        merges: Any = None,
        *,
        tokenizer_object: tokenizers.Tokenizer | None = None,
        tokenizer_file: str | os.PathLike[str] | None = None,
        vocab_file: Any = None,
        merges_file: Any = None,
        **settings: Any,
    ) -> None:
        files = VocabularyFiles(vocab if vocab_file is None else vocab_file, merges if merges_file is None else merges_file)
        self._take(parts_of_caller(type(self), files, tokenizer_object, tokenizer_file, settings))

    def _take(self, parts: Parts) -> Self:
        settings = parts.settings
        self._views = Views(parts.backend)
        self._special = dict.fromkeys(NAMED) | settings.tokens
        self._extra = list(settings.extra or ())
        self._options = settings.options
        self._other = settings.other
        self._warned = False
        for name, default in DEFAULTS.items():
            value = settings.attributes.get(name, getattr(type(self), name, default))
            setattr(self, name, list(value) if isinstance(value, list) else value)
        return self

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("_options", {})
        return options[name] if name in options else super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_views": self._backend.to_str()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_views": Views(make_backend(state["_views"]))})

    def __repr__(self) -> str:
        added = "".join(f"\n\t{index}: {token!r}," for index, token in self.added_tokens_decoder.items())
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, vocab_size={self.vocab_size}, "
            f"model_max_length={self.model_max_length}, padding_side={self.padding_side!r}, "
            f"truncation_side={self.truncation_side!r}, special_tokens={self.special_tokens_map}, "
            f"added_tokens_decoder={{{added}{chr(10) if added else ''}}})"
        )

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The backend that the family's rules make of vocabulary files.

        Args:
            files: the vocabulary.
            tokens: special tokens by name.
            options: the family's options.
        """
        return any_backend(files, unk_token=tokens.get("unk_token"))

    @classmethod
    def extra_tokens(cls, options: Mapping[str, Any]) -> list[str]:
        """The family's special tokens without a name."""
        return []

    @classmethod
    def adjust(cls, backend: tokenizers.Tokenizer, tokens: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """What the family changes in a backend that has its special tokens already; arguments as in :meth:`build`."""

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str], **options: Any) -> Self:
        """Load a tokenizer.

        Args:
            name_or_path: a directory, a repository of the hub, or one vocabulary file.
            options: where to look (see :class:`transept.source.Source`), and settings that replace the files'.

        Raises:
            FileError: there is nothing to load a tokenizer from; says what was looked for.
            FormatError: a file is corrupt; says which and where.
            InputError: a setting that is none.
        """
        from transept.preprocess.text.loading import load

        return load(cls, name_or_path, options)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], legacy_format: bool | None = None, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write ``tokenizer.json``, ``tokenizer_config.json``, ``special_tokens_map.json`` and chat templates.

        Args:
            save_directory: made where it is not there.
            legacy_format: ``True`` asks for the files of uncompiled tokenizers, which are not written.
            filename_prefix: put before each name, with a hyphen.

        Returns:
            The paths of the files.
        """
        from transept.preprocess.text.saving import save

        return save(self, save_directory, legacy_format, filename_prefix)

    def supersedes(self, name: str, variant: str | None = None) -> bool:
        """Publishing replaces all chat templates."""
        return is_template(name)

    def train_new_from_iterator(
        self,
        text_iterator: Any,
        vocab_size: int,
        length: int | None = None,
        new_special_tokens: Sequence[Token] | None = None,
        special_tokens_map: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A tokenizer with these rules and these special tokens, and a vocabulary learnt from other texts.

        Args:
            text_iterator: texts, or lists of them.
            vocab_size: how many tokens to learn, special ones among them.
            length: how many texts there are, for the progress bar.
            new_special_tokens: special tokens to have in addition.
            special_tokens_map: special tokens to rename, old text -> new text.
            kwargs: arguments of the library's trainer, such as ``min_frequency``.
        """
        from transept.preprocess.text.training import train

        return train(self, text_iterator, vocab_size, length, new_special_tokens, special_tokens_map, kwargs)

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        split_special_tokens: bool | None = None,
        max_target_length: int | None = None,
    ) -> BatchEncoding:
        """Encode one text, a batch, or pairs of either.

        Args:
            text: a text, a list of N texts or of N pairs, or lists of words with ``is_split_into_words``.
            text_pair: the second text of each pair.
            text_target: texts that the model is to give; their ids are ``labels``.
            text_pair_target: the second texts of those.
            add_special_tokens: whether special tokens are put around texts.
            padding: ``True`` or ``"longest"``, ``"max_length"``, or ``False`` or ``"do_not_pad"``.
            truncation: ``True`` or ``"longest_first"``, ``"only_first"``, ``"only_second"``, or ``False`` or
                ``"do_not_truncate"``.
            max_length: what the two go by; by default ``model_max_length``.
            stride: tokens that each overflowing row repeats of the one before.
            is_split_into_words: whether texts are lists of words.
            pad_to_multiple_of: padded lengths are rounded up to a multiple of it.
            padding_side: ``"right"`` or ``"left"``; by default ``self.padding_side``.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists.
            return_token_type_ids: by default whether ``model_input_names`` has them.
            return_attention_mask: by default whether ``model_input_names`` has it.
            return_overflowing_tokens: whether what is cut off follows in rows of its own.
            return_special_tokens_mask: whether to return which tokens are special.
            return_offsets_mapping: whether to return the characters of each token.
            return_length: whether to return how long each row is.
            verbose: whether to warn of texts that are longer than the model takes.
            split_special_tokens: whether the text of special tokens is split like any other.
            max_target_length: ``max_length`` of the targets.

        Returns:
            The columns; see :class:`BatchEncoding` for shapes. One text gives lists of T and no batch, unless tensors
            or overflowing rows are asked for.

        Raises:
            InputTypeError, InputError: what is no text, or an argument that cannot be; names it and its place.
        """
        if text is None and text_target is None:
            raise InputError("there is neither text nor text_target.", hint="Pass what to encode.")
        check_tensor_type(return_tensors)
        wanted = {
            "token_type_ids": return_token_type_ids,
            "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
            "length": return_length,
        }
        sizes = {"stride": stride, "pad_to_multiple_of": pad_to_multiple_of, "padding_side": padding_side}

        def encoded(tokenizer: Self, first: Any, second: Any, length: int | None) -> BatchEncoding:
            request = tokenizer._request(
                wanted,
                tokenizer._limits(padding, truncation, length, verbose=verbose, **sizes),
                add_special_tokens=add_special_tokens,
                words=is_split_into_words,
                overflow=return_overflowing_tokens,
                split_special_tokens=self.split_special_tokens if split_special_tokens is None else split_special_tokens,
                tensors=return_tensors,
            )
            return tokenizer._encode(first, second, request, verbose=verbose)

        def targets() -> BatchEncoding:
            return encoded(self._target_tokenizer(), text_target, text_pair_target, max_target_length or max_length)

        if text is None:
            return targets()
        inputs = encoded(self, text, text_pair, max_length)
        if text_target is not None:
            inputs["labels"] = targets()["input_ids"]
        return inputs

    def _files(self) -> dict[str, str | bytes]:
        """The files that hold the rules and the vocabulary: name -> content."""
        return {self.vocab_files_names["tokenizer_file"]: self._backend.to_str(pretty=True) + "\n"}

    def _target_tokenizer(self) -> Self:
        """What encodes targets, where they are encoded otherwise than texts."""
        return self

    def encode(self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **kwargs: Any) -> Any:
        """The ids of a text; takes what a call takes."""
        return self(text, text_pair, add_special_tokens=add_special_tokens, **kwargs)["input_ids"]

    def encode_plus(self, text: Any, text_pair: Any = None, **kwargs: Any) -> BatchEncoding:
        """The same as a call."""
        return self(text, text_pair, **kwargs)

    batch_encode_plus = encode_plus

    def tokenize(self, text: Any, pair: Any = None, add_special_tokens: bool = False, **kwargs: Any) -> list[str]:
        """The tokens of a text, as the vocabulary writes them; takes what a call takes."""
        return self(
            text, pair, add_special_tokens=add_special_tokens, **{"verbose": False} | kwargs, return_offsets_mapping=True
        ).tokens()

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad what is encoded already: one encoding, a batch of them, or a list of encodings, as a collator does.

        Args:
            encoded_inputs: ``input_ids`` and other columns by name, or a list of such mappings, one a text; lists,
                arrays or tensors. Columns other than the tokenizer's own stay as they are.
            padding, max_length, pad_to_multiple_of, padding_side, return_tensors, verbose: see a call.
            return_attention_mask: whether to make a mask where there is none; by default whether
                ``model_input_names`` has it.
        """
        sizes = {"pad_to_multiple_of": pad_to_multiple_of, "padding_side": padding_side}
        rows, _ = self._limits(padding, False, max_length, verbose=verbose, **sizes)
        mask = "attention_mask" in self.model_input_names if return_attention_mask is None else return_attention_mask
        return pad_batch(encoded_inputs, self.model_input_names[0], rows, self._fill(), mask, return_tensors)
