"""Pipelines over text: reading texts and pairs, tokenizing a whole window at once, and padding rows into batches.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from transept.core.model import Model
from transept.core.pixels import ImageBackbone
from transept.core.seq2seq import Seq2SeqBackbone
from transept.core.text import TextBackbone
from transept.core.waves import AudioBackbone
from transept.errors import InputError, InputTypeError, TranseptError
from transept.pipelines.base import Pipeline, apart, attempt, check_choice, check_count
from transept.pipelines.batching import Sample
from transept.pipelines.overlap import Tokens, cut, tokens

O = TypeVar("O")  # noqa: E741 (the options of a task, a dataclass)
Text = tuple[str, str | None]
"""A text alone, or with the other one of a pair."""

NO_LIMIT = 2**31
# Whatever a config asks for, a pipeline reads the output by name and needs no more than it.
_PLAIN = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}
_CUTS = (None, True, False, "longest_first", "only_first", "only_second", "do_not_truncate")


@dataclass(frozen=True)
class TextOptions:
    """Options of tasks that read texts whole.

    Args:
        truncation: cut texts that are too long, which are an error otherwise: ``"only_first"`` or ``"only_second"`` one text
            of a pair, ``True`` or ``"longest_first"`` the longer one.
        max_length: tokens of a row at most, special ones included; what tokenizer and model allow when absent.
        padding: taken for the reference's sake; rows are padded to the longest of their batch, whatever it says.

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


def flattened(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Options of which some came as a mapping under one name, as the reference takes a tokenizer's arguments.

    Raises:
        InputTypeError: it is no mapping.
    """
    rest = dict(given)
    nested = rest.pop(name, None)
    if nested is not None and not isinstance(nested, Mapping):
        raise InputTypeError(f"`{name}` must be a mapping of options, but is {type(nested).__name__}.")
    return {**(nested or {}), **rest}


class TextPipeline(Pipeline[O]):
    """A task over text.

    Args:
        model: in evaluation mode.
        tokenizer: of the same checkpoint.
        options, batching: see :class:`Pipeline`.

    Raises:
        InputTypeError: the model reads something else.
    """

    def __init__(self, model: Model, tokenizer: Any, options: O, **batching: Any) -> None:
        if isinstance(model.backbone, AudioBackbone | ImageBackbone):
            raise InputTypeError(f"the task {self.task!r} needs a model that reads text, and {type(model).__name__} does not.")
        super().__init__(model, options, **batching)
        self.tokenizer = tokenizer
        self._with_types = "token_type_ids" in model.backbone.reads

    @property
    def max_length(self) -> int:
        """Tokens of a row at most: what the tokenizer and the model both were made for."""
        backbone = self.model.backbone
        most = backbone.trained_positions if isinstance(backbone, TextBackbone | Seq2SeqBackbone) else None
        return int(min(self.tokenizer.model_max_length or NO_LIMIT, most or NO_LIMIT))

    def read(self, item: Any, options: O) -> list[Text]:
        """The texts and pairs that an input is made of, one a row; tasks over pairs or over several texts override it.

        Raises:
            InputError, InputTypeError: the input is no text.
        """
        return [(check_text(item), None)]

    def prepare(self, items: Sequence[Any], options: O) -> list[list[Sample] | TranseptError]:
        """The rows of each input, all tokenized in one call."""
        read: list[list[Text] | TranseptError] = [attempt(lambda item: self.read(item, options), item) for item in items]
        rows = iter(self.rows([text for texts in read if not isinstance(texts, TranseptError) for text in texts], options))
        return [texts if isinstance(texts, TranseptError) else _all_or_error([next(rows) for _ in texts]) for texts in read]

    def cutting(self, options: O) -> tuple[str | None, int]:
        """How rows are cut, ``None`` for not at all, and how long they may be; tasks without :class:`TextOptions` cut."""
        if isinstance(options, TextOptions):
            return options.way, options.max_length or self.max_length
        return "longest_first", self.max_length

    def rows(self, texts: Sequence[Text], options: O) -> list[Sample | TranseptError]:
        """The row of each text or pair, or what is wrong with it."""
        way, limit = self.cutting(options)
        rows: dict[int, Sample | TranseptError] = {}
        for paired in (False, True):
            chosen = [i for i, (_, second) in enumerate(texts) if (second is not None) == paired]
            if chosen and way is not None:
                self.check_room(limit, paired)
            made = apart(lambda some: self._tokenized(some, way, limit), [texts[i] for i in chosen])
            rows |= zip(chosen, (_checked(row, limit) for row in made), strict=True)
        return [rows[i] for i in range(len(texts))]

    def _tokenized(self, texts: list[Text], way: str | None, limit: int) -> list[Sample]:
        """Rows of texts, or of pairs."""
        firsts, seconds = map(list, zip(*texts, strict=True))
        if seconds[0] is None:
            return [text_sample(ids) for ids in self.tokenizer.encode_ids(firsts, max_length=way and limit)]
        if way in ("only_first", "only_second"):
            made = self.tokens(firsts, seconds)
            return [text_sample(**row.inputs(cut(row, int(way == "only_second"), limit)[0])) for row in made]
        length = {"truncation": False} if way is None else {"truncation": way, "max_length": limit}
        encoded = self.tokenizer(firsts, seconds, return_attention_mask=False, verbose=False, **length)
        columns = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        return [text_sample(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def tokens(self, firsts: list[Any], seconds: list[str] | None = None, **settings: Any) -> list[Tokens]:
        """Texts or pairs as tokens that know where they stand, however long."""
        encoded = self.tokenizer(
            firsts, seconds, return_offsets_mapping=True, return_attention_mask=False, verbose=False, **settings
        )
        return [tokens(encoded, i) for i in range(len(firsts))]

    def check_room(self, limit: int, paired: bool) -> None:
        """Require that rows of ``limit`` tokens have room for text beside the special ones.

        Raises:
            InputError: naming both numbers.
        """
        special = self.tokenizer.num_special_tokens_to_add(pair=paired)
        if limit <= special + paired:
            raise InputError(f"rows of {limit} tokens have no room for text beside {special} special tokens.")

    def run(self, batch: Mapping[str, Tensor], model: Model | None = None) -> Any:
        """The output of the model, or of its backbone, for a batch."""
        return (model or self.model)(**batch, **_PLAIN)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Rows as (B, T) tensors on the model's device, padded on the right; a mask where one is needed."""
        pad = self.model.config.pad_token_id
        if pad is None or pad < 0:
            pad = self.tokenizer.pad_token_id or 0
        names = ("input_ids", "token_type_ids") if self._with_types else ("input_ids",)
        # Without a padding id, heads that read the last token find it by the mask alone.
        return collate(samples, names, pad, self.model.device, masked=self.model.config.pad_token_id is None)


def check_text(item: Any) -> str:
    """An input that must be text.

    Raises:
        InputTypeError: it is something else.
        InputError: it holds half of a surrogate pair.
    """
    if not isinstance(item, str):
        raise InputTypeError(f"a text was expected, but the input is {type(item).__name__}: {str(item)[:60]!r}.")
    try:
        item.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the text holds half of a surrogate pair at {error.start}, which is no character.") from error
    return item


def read_pair(item: Any) -> Text:
    """A text, or a mapping with ``text`` and ``text_pair``.

    Raises:
        InputError, InputTypeError: anything else.
    """
    if not isinstance(item, Mapping):
        if isinstance(item, list | tuple):
            raise InputTypeError(
                f"a text or a pair was expected, but the input is {type(item).__name__}: {str(item)[:60]!r}.",
                hint='Pass a pair as {"text": ..., "text_pair": ...}.',
            )
        return check_text(item), None
    if "text" not in item or not item.keys() <= {"text", "text_pair"}:
        raise InputError(f"a pair needs the keys 'text' and 'text_pair', but has {', '.join(map(repr, item)) or 'none'}.")
    second = item.get("text_pair")
    return check_text(item["text"]), None if second is None else check_text(second)


def text_sample(input_ids: list[int], **more: Any) -> Sample:
    """A row of token ids."""
    return Sample({"input_ids": input_ids, **more}, len(input_ids))


def _all_or_error(rows: list[Sample | TranseptError]) -> list[Sample] | TranseptError:
    """The rows of an input, or the first error among them."""
    samples = [row for row in rows if not isinstance(row, TranseptError)]
    return samples if len(samples) == len(rows) else next(row for row in rows if isinstance(row, TranseptError))


def _checked(row: Sample | TranseptError, limit: int) -> Sample | TranseptError:
    if isinstance(row, TranseptError):
        return row
    if row.length == 0:
        return InputError("the text is empty: this model's tokenizer makes no tokens of it.", hint="Leave it out.")
    if row.length > limit:
        return InputError(
            f"the text has {row.length} tokens, but the model takes {limit}.",
            hint="Pass truncation=True to cut it, or split it.",
        )
    return row


def collate(
    samples: Sequence[Sample], names: Sequence[str], pad: int, device: torch.device, *, masked: bool = False
) -> dict[str, Tensor]:
    """Pad rows of integers to (B, T), with an ``attention_mask`` where the model could take a wrong one for granted.

    Padding stands on the right, where positions are those of a row alone whatever kind they are of.

    Args:
        samples: rows.
        names: the inputs to take, of which all but ``input_ids`` may be absent and are 0 then.
        pad: the padding id.
        device: where the tensors go.
        masked: make a mask also where nothing is padded.
    """
    longest = max(sample.length for sample in samples)
    batch: dict[str, Tensor] = {}
    for name in names:
        if any(name in sample.inputs for sample in samples):
            rows = [sample.inputs.get(name, [0] * sample.length) for sample in samples]
            fill = pad if name == "input_ids" else 0
            batch[name] = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device=device)
    if masked or any(sample.length < longest or pad in sample.inputs["input_ids"] for sample in samples):
        mask = [[1] * sample.length + [0] * (longest - sample.length) for sample in samples]
        batch["attention_mask"] = torch.tensor(mask, device=device)
    return batch
