"""Whisper's tokenizer (Radford et al. 2022): byte pairs, with tokens for languages, tasks and times."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from transept.config.schema import read_typed
from transept.errors import InputError
from transept.preprocess.audio.languages import check_task, language_code
from transept.preprocess.audio.normalize import normalize_basic, normalize_english
from transept.preprocess.audio.transcript import WINDOW, Clock, Transcript
from transept.preprocess.features import BatchFeature
from transept.preprocess.text import build
from transept.preprocess.text.loading import Parts, where_and_what
from transept.preprocess.text.settings import PathOr
from transept.preprocess.text.tokenizer import Tokenizer
from transept.preprocess.text.vocabulary import listed
from transept.storage.files import dump_json

_END, _START, _PREVIOUS, _UNTIMED = "<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>"
_TIME = re.compile(r"<\|(\d+\.\d+)\|>")


class WhisperTokenizer(
    Tokenizer,
    files={
        "vocab_file": "vocab.json",
        "merges_file": "merges.txt",
        "normalizer_file": "normalizer.json",
        "tokenizer_file": "tokenizer.json",
    },
    tokens=dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END),
    build=build.byte_level_backend,
    options={"add_prefix_space": False, "language": None, "task": None, "predict_timestamps": False},
    applied=True,
    model_types=("whisper",),
):
    """Whisper's tokenizer, which puts the tokens that the decoder begins with before a text, and the end behind it.

    Options: ``language`` (a name, a code or a token) and ``task`` (``"transcribe"`` or ``"translate"``), whose tokens come
    first, and ``predict_timestamps``, with which ``<|notimestamps|>`` is left out. Times are the ids behind that token, 0.02
    seconds each; the vocabulary need not have them.

    Args:
        vocab, merges: files or content, as for :class:`Tokenizer`.
        normalizer_file: the path of ``normalizer.json``: British spelling -> American spelling, for :meth:`normalize`.
        settings: as for :class:`Tokenizer`.
    """

    language: str | None
    task: str | None
    predict_timestamps: bool
    english_spelling_normalizer: dict[str, str]

    def __init__(
        self, vocab: Any = None, merges: Any = None, *, normalizer_file: PathOr | None = None, **settings: Any
    ) -> None:
        super().__init__(vocab, merges, **settings)
        self.english_spelling_normalizer = _read_spellings(normalizer_file)

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        super()._load(name, options)
        source, _ = where_and_what(self.family, name, options)
        self.english_spelling_normalizer = _read_spellings(source.find(self.family.files["normalizer_file"]))

    def _take(self, parts: Parts) -> None:
        super()._take(parts)
        self.english_spelling_normalizer = {}
        self.set_prefix_tokens()

    def _files(self) -> dict[str, str | bytes]:
        spellings = self.english_spelling_normalizer
        return super()._files() | ({self.family.files["normalizer_file"]: dump_json(spellings)} if spellings else {})

    # Before and behind a text

    def set_prefix_tokens(
        self, language: str | None = None, task: str | None = None, predict_timestamps: bool | None = None
    ) -> None:
        """Change the tokens before a text; what is ``None`` stays as it is.

        Raises:
            InputError: a language or a task that is none, or that the vocabulary has no token for.
        """
        given = {"language": language, "task": task, "predict_timestamps": predict_timestamps}
        options = self._options | {name: value for name, value in given.items() if value is not None}
        known = [token for token in self._prefix(options) if self._find(token) is not None]
        names = {f"prefix{place}_token": token for place, token in enumerate(known)} | self.special_tokens_map
        before, end = tuple(f"prefix{place}" for place in range(len(known))), ("eos",) * ("eos_token" in names)
        template = (*before, "A", *end), (*before, "A", "B:1", *(f"{name}:1" for name in end))
        self._backend.post_processor = build.template_processor(template, names, self._backend)
        self._options = options
        self._views.clear()

    def _prefix(self, options: Mapping[str, Any]) -> list[str]:
        tokens = [_START]
        if options["language"] is not None:
            tokens.append(f"<|{language_code(options['language'])}|>")
        if options["task"] is not None:
            tokens.append(f"<|{check_task(options['task'])}|>")
        if missing := [token for token in tokens[1:] if self._find(token) is None]:
            raise InputError(f"the vocabulary has no token {missing[0]!r}.", hint="Leave out the language and the task.")
        return tokens if options["predict_timestamps"] else [*tokens, _UNTIMED]

    @property
    def prefix_tokens(self) -> list[int]:
        """The ids before a text."""
        return [index for token in self._prefix(self._options) if (index := self._find(token)) is not None]

    def get_decoder_prompt_ids(
        self, task: str | None = None, language: str | None = None, no_timestamps: bool = True
    ) -> list[tuple[int, int]]:
        """Places, from 1, and ids of what the decoder is to begin with behind its start; sets them as those before a text."""
        self.set_prefix_tokens(task=task, language=language, predict_timestamps=not no_timestamps)
        return list(enumerate(self.prefix_tokens))[1:]

    def get_prompt_ids(self, text: str, return_tensors: str | None = "np") -> Any:
        """(T,) ids of a text that transcripts are to follow, such as names in their spelling, for ``generate(prompt_ids=...)``.

        Raises:
            InputError: the text holds a special token.
        """
        ids = self.encode(f" {text.strip()}", add_special_tokens=False)
        special = set(self.all_special_ids)
        if found := [index for index in ids if index in special or index >= self.first_time_id]:
            raise InputError(f"the prompt holds the special token {self._text(found[0])!r}.", hint="Leave it out.")
        return BatchFeature({"ids": [self._find(_PREVIOUS), *ids]}, return_tensors)["ids"]

    @property
    def first_time_id(self) -> int:
        """The id of the time 0.00; the times after it follow."""
        untimed = self._find(_UNTIMED)
        return 1 + (max(self.all_special_ids, default=len(self)) if untimed is None else untimed)

    def timestamp_ids(self, time_precision: float = 0.02) -> list[int | None]:
        """The ids of all times of a window; that of the unknown token where the vocabulary does not have them."""
        return self.convert_tokens_to_ids([f"<|{place * time_precision:.2f}|>" for place in range(WINDOW + 1)])

    # Ids to texts

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        output_offsets: bool = False,
        time_precision: float = 0.02,
        decode_with_timestamps: bool = False,
        normalize: bool = False,
        basic_normalize: bool = False,
        remove_diacritics: bool = False,
        spaces_between_special_tokens: Any = None,
    ) -> Any:
        """Ids back to text.

        Args:
            token_ids: ids (T,), or a batch of them, which gives a list.
            skip_special_tokens: leave special tokens out, and a prompt before the start of the transcript.
            clean_up_tokenization_spaces: of no effect, since the spaces of byte pairs are exact.
            output_offsets: give ``{"text", "offsets"}``, the offsets as ``[{"text", "timestamp": (start, end)}]`` in seconds.
            time_precision: seconds from one time to the next.
            decode_with_timestamps: keep times in the text, ``<|1.08|>``; those of later windows go on from the ones before.
            normalize, basic_normalize: the English or the basic normal form of the text, for comparing transcripts.
            remove_diacritics: with the basic one, take marks off letters too.
        """
        rows = listed(token_ids)
        forms = {"normalize": normalize, "basic_normalize": basic_normalize, "remove_diacritics": remove_diacritics}
        shown: dict[str, Any] = {"output_offsets": output_offsets, "time_precision": time_precision}
        shown["decode_with_timestamps"] = decode_with_timestamps
        if isinstance(rows, list) and rows and isinstance(rows[0], list):
            return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces, **shown, **forms) for row in rows]
        ids = [rows] if isinstance(rows, int) else rows
        kept = self.without_prompt(ids) if skip_special_tokens else ids
        text: Any = super().decode(kept, skip_special_tokens, clean_up_tokenization_spaces)
        if decode_with_timestamps:
            text = self._with_times(kept, skip_special_tokens, time_precision)
        else:
            text = _TIME.sub("", self.normalized(text, **forms))
        return {"text": text, "offsets": self._offsets(ids, time_precision)} if output_offsets else text

    def text_of(self, ids: list[int]) -> str:
        """The text of ids as they are, times among them."""
        return super().decode(ids)  # type: ignore[no-any-return]

    def without_prompt(self, ids: list[int]) -> list[int]:
        """The ids behind a prompt; all of them where they do not begin with one."""
        start = self._find(_START)
        if not ids or ids[0] != self._find(_PREVIOUS):
            return ids
        return ids[ids.index(start) :] if start in ids else []

    def normalized(
        self, text: str, normalize: bool = False, basic_normalize: bool = False, remove_diacritics: bool = False
    ) -> str:
        if normalize:
            return self.normalize(text)
        return self.basic_normalize(text, remove_diacritics) if basic_normalize else text

    def normalize(self, text: str) -> str:
        """The English normal form of a text; see :mod:`transept.preprocess.audio.normalize`."""
        return normalize_english(text, self.english_spelling_normalizer)

    @staticmethod
    def basic_normalize(text: str, remove_diacritics: bool = False) -> str:
        """The normal form of a text in any language."""
        return normalize_basic(text, remove_diacritics)

    def _with_times(self, ids: Iterable[int], skip_special_tokens: bool, precision: float) -> str:
        first, clock, ids = self.first_time_id, Clock(precision), list(ids)
        parts: list[str] = []
        waiting: list[int] = []
        for place, index in enumerate(ids):
            if index < first:
                waiting.append(index)
                continue
            parts.append(super().decode(waiting, skip_special_tokens) if waiting else "")
            waiting = []
            time, instead = clock.read((index - first) * precision, place < 2 or min(ids[place - 2 : place]) >= first)
            if instead:  # the second of a pair, which only says where the next window begins
                parts = parts[:-2]
            parts.append(f"<|{time:.2f}|>")
        return "".join([*parts, super().decode(waiting, skip_special_tokens) if waiting else ""])

    def _offsets(self, ids: list[int], precision: float) -> list[dict[str, Any]]:
        """The pieces between times; those of later windows go on from the ones before."""
        first = self.first_time_id
        timed = [place for place, index in enumerate(ids) if index >= first]
        ends = [place for place in timed if place and ids[place - 1] >= first]
        if not ends and len(timed) <= 1:
            return []
        ends += [] if timed[-1] + 1 in ends else [timed[-1] + 1]
        found, begin, last, base = list[dict[str, Any]](), timed[0], 0, 0
        for end in ends:
            piece = ids[begin:end]
            if len(piece) > 1:
                start, stop = piece[0] - first, piece[-1] - first
                if start < last:
                    base += WINDOW if begin >= 2 and min(ids[begin - 2 : begin]) < first else last
                seconds = (start * precision + base * precision, stop * precision + base * precision)
                last = stop
                found.append({"text": _TIME.sub("", self.text_of(piece)), "timestamp": seconds})
            begin = end
        return found

    def _decode_asr(
        self, model_outputs: Iterable[Mapping[str, Any]], *, return_timestamps: Any, return_language: Any, time_precision: float
    ) -> tuple[str, dict[str, Any]]:
        """The text of the windows of one sound and, where times or languages are asked for, ``{"chunks": ...}``."""
        asked = {"times": bool(return_timestamps), "words": return_timestamps == "word", "languages": bool(return_language)}
        transcript = Transcript(self, precision=time_precision, **asked)
        for output in model_outputs:
            transcript.add(output)
        return transcript.result()


def _read_spellings(path: PathOr | None) -> dict[str, str]:
    return {} if path is None else read_typed(path, dict[str, str])


WhisperTokenizerFast = WhisperTokenizer
