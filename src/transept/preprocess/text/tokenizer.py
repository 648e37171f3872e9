"""The tokenizer: texts to a model's inputs, on the compiled ``tokenizers`` library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import tokenizers

from transept.errors import InputError, refuse
from transept.preprocess.features import check_tensor_type
from transept.preprocess.text import loading
from transept.preprocess.text.backend import Views, make_backend, train_backend
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.encoder import Request
from transept.preprocess.text.encoding import BatchEncoding, pad_batch
from transept.preprocess.text.gguf import any_parts
from transept.preprocess.text.loading import Family, Parts
from transept.preprocess.text.python.ids import IdsTokenizer
from transept.preprocess.text.settings import DEFAULTS, NAMED, Token, TokenizerSettings, is_template, write_templates
from transept.storage.publish import Pushable
from transept.storage.source import model_argument

END, UNKNOWN = "<|end|>", "<|unknown|>"  # special tokens of a vocabulary of characters
MOST_CHARACTERS = 20_000


class Tokenizer(IdsTokenizer, Pushable):
    """Texts to ids and back, by the rules of a ``tokenizer.json`` or of vocabulary files.

    ``PreTrainedTokenizerFast`` and ``PreTrainedTokenizerBase`` are names of this class. One such as
    ``BertTokenizer`` is the name of a :class:`Family`: how a backend is built from vocabulary files, and what the special
    tokens are called; a ``tokenizer.json`` is never changed by it. Calls from several threads do not disturb each other.

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
        InputError, FileError, FormatError: a setting that is none, nothing to build from, a file that cannot be used.
    """

    noun, loader = "tokenizer", "AutoTokenizer"
    vocab_files_names: ClassVar[Mapping[str, str]] = Family().files
    model_input_names: list[str] = ["input_ids", "attention_mask"]
    padding_side: str = "right"
    truncation_side: str = "right"
    slow_tokenizer_class: ClassVar[None] = None

    name_or_path: str

    def __init_subclass__(cls, **changes: Any) -> None:
        """A class has the :class:`Family` of the one above, but for what its keyword arguments change."""
        super().__init_subclass__()
        if changes:
            family = cls.family = replace(cls.family, **{"model_types": ()} | changes)
            stated: dict[str, Any] = {"model_input_names": list(family.inputs), "vocab_files_names": family.files}
            stated |= {"padding_side": family.padding_side}
            stated |= {} if family.max_length is None else {"model_max_length": family.max_length}
            for name in stated.keys() - vars(cls).keys():
                setattr(cls, name, stated[name])

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
        self._take(loading.parts_of_caller(self.family, files, tokenizer_object, tokenizer_file, settings))

    def _take(self, parts: Parts) -> None:
        backend, settings = parts
        self._views = Views(backend)
        self._set(settings)

    def _set(self, settings: TokenizerSettings) -> None:
        self._special = dict.fromkeys(NAMED) | settings.tokens
        self._extra = list(settings.extra or ())
        self._options = settings.options
        self._other = settings.other
        self._warned = False
        self.deprecation_warnings: dict[str, bool] = {}
        for name, default in DEFAULTS.items():
            setattr(self, name, settings.attributes.get(name, getattr(type(self), name, default)))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_views": self._backend.to_str()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_views": Views(make_backend(state["_views"]))})

    def _with(self, **state: Any) -> Self:
        """A tokenizer that shares all state but this."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__ | state)
        return twin

    def __repr__(self) -> str:
        added = "".join(f"\n\t{index}: {token!r}," for index, token in self.added_tokens_decoder.items())
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, vocab_size={self.vocab_size}, "
            f"model_max_length={self.model_max_length}, padding_side={self.padding_side!r}, "
            f"truncation_side={self.truncation_side!r}, special_tokens={self.special_tokens_map}, "
            f"added_tokens_decoder={{{added}{chr(10) if added else ''}}})"
        )

    init_kwargs = property(loading.config_of, doc="The settings, as ``tokenizer_config.json`` holds them.")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Self:
        """Load a tokenizer.

        Args:
            pretrained_model_name_or_path: a directory, a repository of the hub, or one vocabulary file.
            options: where to look (see :class:`transept.storage.source.Source`), and settings that replace the files'.

        Raises:
            FileError, FormatError, InputError: there is nothing to load from, a corrupt file, a setting that is none.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._load(model_argument(pretrained_model_name_or_path, options), options)
        return tokenizer

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._take(any_parts(self.family, name, options))

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
        push_to_hub: bool = False,
        **options: Any,
    ) -> tuple[str, ...]:
        """Write ``tokenizer.json``, ``tokenizer_config.json``, ``special_tokens_map.json`` and chat templates; gives the paths.

        All are written or none: a crash leaves the files of before.

        Args:
            legacy_format: ``True`` asks for the files of uncompiled tokenizers, which are not written.
            filename_prefix: put before each name, with a hyphen.
            push_to_hub: whether to publish the tokenizer too, as ``repo_id`` or under the directory's name.
            options: arguments of :meth:`push_to_hub`.
        """
        if legacy_format:
            hint = "tokenizer.json holds all that those files held; save_vocabulary() writes the vocabulary alone."
            raise InputError("legacy_format=True is not supported.", hint=hint)
        paths = loading.replaced(save_directory, lambda stage: self.write(stage, filename_prefix))
        self.publish(save_directory, push_to_hub, options)
        return paths

    write, save_vocabulary = loading.write, loading.save_vocabulary

    def save_chat_templates(self, save_directory: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write the chat templates alone; returns the paths."""
        return loading.replaced(save_directory, lambda stage: write_templates(stage, self.chat_template))

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
        """A tokenizer with these rules and these special tokens, and a vocabulary learnt from other texts, or lists of them.

        Args:
            vocab_size: how many tokens to learn, special ones among them.
            length: how many texts there are, for the progress bar.
            special_tokens_map: special tokens to rename, old text -> new text.
            kwargs: arguments of the library's trainer, such as ``min_frequency``.
        """
        twin, names = type(self).__new__(type(self)), dict(special_tokens_map or {})
        more = list(new_special_tokens or ())
        backend = train_backend(self._backend, text_iterator, more, names, length, vocab_size=vocab_size, **kwargs)
        extra = [names.get(text, text) for text in self.extra_special_tokens] + [str(token) for token in more]
        settings = TokenizerSettings(
            tokens={name: names.get(text, text) for name, text in self.special_tokens_map.items()},
            extra=list(dict.fromkeys(extra)),
            attributes={name: getattr(self, name) for name in DEFAULTS if name != "name_or_path"},
            options=dict(self._options),
            other=dict(self._other),
        )
        twin._take((backend, settings))
        return twin

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
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
    ) -> BatchEncoding:
        """Encode one text, a batch, or pairs of either.

        Args:
            text: a text, a list of N texts or of N pairs, or lists of words with ``is_split_into_words``.
            text_pair: the second text of each pair.
            text_target: texts that the model is to give; their ids are ``labels``.
            text_pair_target: the second texts of those.
            padding: ``True`` or ``"longest"``, ``"max_length"``, or ``False`` or ``"do_not_pad"``.
            truncation: ``True`` or ``"longest_first"``, ``"only_first"``, ``"only_second"``, or ``False`` or
                ``"do_not_truncate"``.
            max_length: what the two go by; by default ``model_max_length``.
            stride: tokens that each overflowing row repeats of the one before.
            pad_to_multiple_of: padded lengths are rounded up to a multiple of it.
            padding_side: ``"right"`` or ``"left"``; by default ``self.padding_side``.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists.
            return_token_type_ids, return_attention_mask: by default whether ``model_input_names`` has them.
            return_overflowing_tokens: whether what is cut off follows in rows of its own.
            verbose: whether to warn of texts that are longer than the model takes.
            split_special_tokens: whether the text of special tokens is split like any other.
            max_target_length: ``max_length`` of the targets.
            src_lang, tgt_lang: the languages of texts and targets in this call, where the tokenizer knows several.
            tokenizer_kwargs: other arguments of a call, which go before these.

        Returns:
            The columns; see :class:`BatchEncoding` for shapes. One text gives lists of T and no batch, unless tensors
            or overflowing rows are asked for.

        Raises:
            InputTypeError, InputError: what is no text, or an argument that cannot be; names it and its place.
        """
        if tokenizer_kwargs is not None:
            stated = {name: value for name, value in locals().items() if name not in ("self", "tokenizer_kwargs")}
            return self(**{**stated, **tokenizer_kwargs})
        if text is None and text_target is None:
            raise InputError("there is neither text nor text_target.", hint="Pass what to encode.")
        check_tensor_type(return_tensors)
        wanted = {
            "input_ids": True,
            "token_type_ids": return_token_type_ids,
            "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
            "length": return_length,
        }
        request = Request(
            columns=[name for name, want in wanted.items() if (name in self.model_input_names if want is None else want)],
            add_special_tokens=add_special_tokens,
            words=is_split_into_words,
            overflow=return_overflowing_tokens,
            split_special_tokens=self.split_special_tokens if split_special_tokens is None else split_special_tokens,
            tensors=return_tensors,
            verbose=verbose,
        )

        def encoded(tokenizer: Self, first: Any, second: Any, length: int | None) -> BatchEncoding:
            rows, cut = tokenizer._limits(padding, truncation, length, pad_to_multiple_of, padding_side, stride, verbose)
            return tokenizer._encode(first, second, replace(request, padding=rows, truncation=cut))

        encoder = self if src_lang is None else self._in_language(src_lang)
        encoder = encoder._for_targets(tgt_lang) if self._as_target and text is not None else encoder
        inputs = BatchEncoding() if text is None else encoded(encoder, text, text_pair, max_length)
        if text_target is None:
            return inputs
        targets = encoded(encoder._for_targets(tgt_lang), text_target, text_pair_target, max_target_length or max_length)
        if text is None:
            return targets
        inputs["labels"] = targets["input_ids"]
        return inputs

    def _files(self) -> dict[str, str | bytes]:
        """The files that hold the rules and the vocabulary: name -> content."""
        return {self.vocab_files_names["tokenizer_file"]: self._backend.to_str(pretty=True) + "\n"}

    def _for_targets(self, language: str | None) -> Self:
        """What encodes targets, where they are encoded otherwise than texts."""
        return self if language is None else self._in_language(language)

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
            return_attention_mask: whether to make a mask where there is none; by default whether
                ``model_input_names`` has it. All other arguments are as in a call.
        """
        rows, _ = self._limits(padding, False, max_length, pad_to_multiple_of, padding_side, verbose=verbose)
        mask = "attention_mask" in self.model_input_names if return_attention_mask is None else return_attention_mask
        return pad_batch(encoded_inputs, self.model_input_names[0], rows, mask, return_tensors)


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with a token for the end of text, one for unknown characters, and one for each character of texts.

    Raises:
        InputError: there are no characters, or far too many different ones.
    """
    characters = sorted(set().union(*texts))
    what = f"the texts have {len(characters)} different characters; from 2 to {MOST_CHARACTERS} make a vocabulary."
    refuse(not 1 < len(characters) <= MOST_CHARACTERS, what)
    vocabulary = {token: number for number, token in enumerate([END, UNKNOWN, *characters])}
    backend: Any = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token=UNKNOWN))
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(tokenizer_object=backend, eos_token=END, bos_token=END, pad_token=END, unk_token=UNKNOWN)
