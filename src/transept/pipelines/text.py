"""Pipelines over text, on the way from texts to answers: read, encode, cut into rows, batch, run.

Errors are caught once a step: of an input while it is read and while its rows are cut, of a list of texts while the tokenizer
encodes them together.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, ClassVar, TypeVar

import torch

from transept.core.pixels import ImageBackbone
from transept.core.seq2seq import Seq2SeqBackbone
from transept.core.text import TextBackbone
from transept.core.waves import AudioBackbone
from transept.errors import InputError, InputTypeError, TranseptError
from transept.pipelines.base import Pipeline, check_choice, check_count
from transept.pipelines.batching import Sample, attempt, halving
from transept.pipelines.windows import Tokens, cut

O = TypeVar("O")  # noqa: E741 (the options of a task, a dataclass)
Text = tuple[str, str | None]
"""A text alone, or with the other one of a pair."""

NO_LIMIT = 2**31
_CUTS = (None, True, False, "longest_first", "only_first", "only_second", "do_not_truncate")


@dataclass(frozen=True)
class TextOptions:
    """Options of tasks that read texts whole.

    Args:
        truncation: cut texts that are too long, which are an error otherwise: ``"only_first"`` or ``"only_second"`` one text
            of a pair, ``True`` or ``"longest_first"`` the longer one.
        max_length: tokens of a row at most, special ones included; what tokenizer and model allow when absent.
        padding: taken for the reference's sake; rows are padded to the longest of their batch, or not at all, whatever it
            says.

    Raises:
        InputError: another way of cutting, or no length.
    """

    truncation: bool | str | None = None
    max_length: int | None = None
    padding: bool | str | None = None

    def __post_init__(self) -> None:
        check_choice("truncation", self.truncation, _CUTS)
        check_count("max_length", self.max_length, optional=True)

    @property
    def way(self) -> str | None:
        """How texts are cut, ``None`` for not at all."""
        if self.truncation in (None, False, "do_not_truncate"):
            return None
        return "longest_first" if self.truncation is True else str(self.truncation)


class TextPipeline(Pipeline[O]):
    """A task over text, of a model and its tokenizer; see :class:`transept.pipelines.base.Pipeline`.

    Raises:
        InputTypeError: the model reads something else.
    """

    components: ClassVar[tuple[str, ...]] = ("tokenizer",)
    # Whatever a config asks for, a pipeline reads the output by name and needs no more than it.
    asked = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}
    pooler = False
    tokenizer: Any

    def check_model(self) -> None:
        if isinstance(self.model.backbone, AudioBackbone | ImageBackbone):
            name = type(self.model).__name__
            raise InputTypeError(f"the task {self.task!r} needs a model that reads text, and {name} does not.")
        self._with_types = "token_type_ids" in self.model.backbone.reads

    @property
    def max_length(self) -> int:
        """Tokens of a row at most: what the tokenizer and the model both were made for."""
        backbone = self.model.backbone
        most = backbone.trained_positions if isinstance(backbone, TextBackbone | Seq2SeqBackbone) else None
        return int(min(self.tokenizer.model_max_length or NO_LIMIT, most or NO_LIMIT))

    # --- from texts to rows ------------------------------------------------------------------------------------------

    def prepare(self, items: Sequence[Any], options: O) -> Sequence[list[Sample] | TranseptError]:
        """The rows of each input, all encoded in one call."""
        read = [attempt(self.read, item, options) for item in items]
        texts = [text for found in read if not isinstance(found, TranseptError) for text in found]
        self.check_room(texts, options)
        encoded = iter(halving(lambda some: self.encode(some, options), texts))
        return [
            found if isinstance(found, TranseptError) else attempt(self._rows, [next(encoded) for _ in found], options)
            for found in read
        ]

    def read(self, item: Any, options: O) -> Sequence[Any]:
        """The texts and pairs that an input is made of; tasks over pairs or over several texts override it.

        Raises:
            InputError, InputTypeError: the input is no text.
        """
        return [(check_text(item), None)]

    def encode(self, texts: Sequence[Any], options: O) -> Sequence[Any]:
        way, limit = self.cutting(options)
        rows: dict[int, Sample] = {}
        for paired in (False, True):
            chosen = [i for i, (_, second) in enumerate(texts) if (second is not None) == paired]
            if chosen:
                encode = self._encode_pairs if paired else self._encode_texts
                rows |= zip(chosen, encode([texts[i] for i in chosen], way, limit, self.language(options)), strict=True)
        return [rows[i] for i in range(len(texts))]

    def rows(self, encoded: Any, options: O) -> list[Sample]:
        """The rows that one encoded text or pair becomes.

        Raises:
            InputError: it has no tokens, or too many.
        """
        limit = self.cutting(options)[1]
        if encoded.length > limit:
            raise InputError(
                f"the text has {encoded.length} tokens, but the model takes {limit}.",
                hint="Pass truncation=True to cut it, or split it.",
            )
        return [encoded]

    def cutting(self, options: O) -> tuple[str | None, int]:
        """How rows are cut, ``None`` for not at all, and how long they may be; tasks without :class:`TextOptions` cut."""
        if isinstance(options, TextOptions):
            return options.way, options.max_length or self.max_length
        return "longest_first", self.max_length

    def language(self, options: O) -> str | None:
        """The language that the tokenizer is to mark texts with in this call, where it is not the tokenizer's own."""
        return None

    def tokens(self, firsts: list[Any], seconds: list[str] | None = None, **settings: Any) -> list[Tokens]:
        """Texts or pairs as tokens that know where they stand, however long."""
        encoded = self.tokenizer(
            firsts, seconds, return_offsets_mapping=True, return_attention_mask=False, verbose=False, **settings
        )
        return [Tokens.of(encoded, i) for i in range(len(firsts))]

    def check_room(self, texts: Sequence[Any], options: O) -> None:
        """Require that rows that are cut have room for text beside the special tokens.

        Raises:
            InputError: naming both numbers.
        """
        way, limit = self.cutting(options)
        for paired in {second is not None for _, second in texts} if way is not None else ():
            special = self.tokenizer.num_special_tokens_to_add(pair=paired)
            if limit <= special + paired:
                raise InputError(f"rows of {limit} tokens have no room for text beside {special} special tokens.")

    def _rows(self, encoded: list[Any], options: O) -> list[Sample]:
        """The rows of one input, or the first error among its texts."""
        found = []
        for each in encoded:
            if isinstance(each, TranseptError):
                raise each
            if not len(each):
                raise InputError("the text is empty: this model's tokenizer makes no tokens of it.", hint="Leave it out.")
            found += self.rows(each, options)
        return found

    def _encode_texts(self, texts: list[Text], way: str | None, limit: int, language: str | None) -> list[Sample]:
        plain = [text for text, _ in texts]
        return [Sample.of(ids) for ids in self.tokenizer.encode_ids(plain, max_length=way and limit, src_lang=language)]

    def _encode_pairs(self, pairs: list[Text], way: str | None, limit: int, language: str | None) -> list[Sample]:
        firsts, seconds = map(list, zip(*pairs, strict=True))
        if way in ("only_first", "only_second"):
            made = self.tokens(firsts, seconds)
            return [cut(row, int(way == "only_second"), limit)[0] for row in made]
        length = {"truncation": False} if way is None else {"truncation": way, "max_length": limit}
        encoded = self.tokenizer(firsts, seconds, return_attention_mask=False, verbose=False, src_lang=language, **length)
        columns = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        return [Sample.of(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    # --- from rows to outputs ----------------------------------------------------------------------------------------

    @property
    def padded(self) -> bool:  # type: ignore[override]
        """Encoders on the CPU that can read rows of different lengths one behind the other are given them without padding.

        Elsewhere, many small calls of attention cost more than padding does; compiled models want few shapes.
        """
        model, backbone = self.model, self.model.backbone
        reads_rows = isinstance(backbone, TextBackbone) and backbone.ragged and not backbone.causal
        compiled = model._compiled_call_impl is not None or backbone._compiled_call_impl is not None
        return not reads_rows or compiled or model.device.type != "cpu"

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """What the model reads of a batch: rows one behind the other (1, N) with their ``lengths``, or padded to (B, T).

        Padding is on the right, where positions are those of a row alone. Then there is an ``attention_mask`` where the model
        could take a wrong one for granted: where rows are padded or hold the padding id as text, and for heads that read the
        last token and find it by the mask alone. Rows that hold the padding id are padded always, since some families count
        positions by it.
        """
        model, lengths = self.model, [sample.length for sample in samples]
        pad = model.config.pad_token_id
        masked = pad is None
        if pad is None or pad < 0:
            pad = self.tokenizer.pad_token_id or 0
        holds_pad = any(pad in sample.inputs["input_ids"] for sample in samples)
        names = ["input_ids"]
        if self._with_types and any("token_type_ids" in sample.inputs for sample in samples):
            names.append("token_type_ids")
        rows = {name: [sample.inputs.get(name) or [0] * sample.length for sample in samples] for name in names}
        if not self.padded and not holds_pad:
            joined = {name: torch.tensor([list(chain.from_iterable(some))]) for name, some in rows.items()}
            return {**joined, "lengths": lengths} if len(samples) > 1 else joined
        longest, batch = max(lengths), {}
        for name, some in rows.items():
            fill = pad if name == "input_ids" else 0
            batch[name] = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in some], device=model.device)
        if masked or min(lengths) < longest or holds_pad:
            mask = [[1] * length + [0] * (longest - length) for length in lengths]
            batch["attention_mask"] = torch.tensor(mask, device=model.device)
        return batch


def check_text(item: Any) -> str:
    """An input that must be text.

    Raises:
        InputTypeError: it is something else.
        InputError: it holds half of a surrogate pair.
    """
    if not isinstance(item, str):
        raise unexpected("a text was", item)
    try:
        item.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the text holds half of a surrogate pair at {error.start}, which is no character.") from error
    return item


def unexpected(what: str, item: Any, hint: str | None = None) -> InputTypeError:
    """The error about an input that is something else than a task reads."""
    return InputTypeError(f"{what} expected, but the input is {type(item).__name__}: {str(item)[:60]!r}.", hint=hint)


def unpadded(values: Any, samples: Sequence[Sample]) -> list[Any]:
    """Values (B, T, ...), or (1, N, ...) of rows one behind the other, of each row's tokens alone."""
    if len(values) != len(samples):
        ends = list(accumulate(sample.length for sample in samples))
        return [values[0, end - sample.length : end].copy() for end, sample in zip(ends, samples, strict=True)]
    return [row[: sample.length].copy() for row, sample in zip(values, samples, strict=True)]
