"""Pipelines over text, on the way from texts to rows, batches and outputs; long texts become windows that overlap.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, ClassVar

import torch

from transept.errors import InputError, InputTypeError, TranseptError
from transept.kinds.audio import SoundBackbone
from transept.kinds.image import ImageBackbone
from transept.kinds.text import TextBackbone
from transept.pipelines.base import Options, TaskPipeline, choice, count
from transept.pipelines.batching import Sample, attempt, halving

Text = tuple[str, str | None]
"""A text alone, or with the other one of a pair."""

NO_LIMIT = 2**31


class TextOptions(Options):
    """Options of tasks that read texts whole.

    Args:
        truncation: cut texts that are too long, which are an error otherwise: ``"only_first"`` or ``"only_second"`` one text
            of a pair, ``True`` or ``"longest_first"`` the longer one.
        max_length: tokens of a row at most, special ones included; what tokenizer and model allow when absent.
        padding: taken for the reference's sake; it has no effect.
    """

    truncation: bool | str | None = choice(None, True, False, "longest_first", "only_first", "only_second", "do_not_truncate")
    max_length: int | None = count()
    padding: bool | str | None = None


def windows(row: Sample, sequence: int, limit: int, stride: int = 0) -> list[Sample]:
    """Rows of ``limit`` tokens over one text of a row, each with all other tokens around it, one where everything fits.

    A window shares ``stride`` tokens with the one before it; where there is no room for that, it is an ``InputError``.
    """
    if len(row) <= limit:
        return [row]
    inside = [i for i, of in enumerate(row.inputs["sequences"]) if of == sequence]
    taken = len(row) - len(inside)
    room = limit - taken
    if not inside or room <= stride:
        full = f"of {limit} tokens, {taken} are taken by what cannot be cut"
        hint = "Shorten the other text, share less, or allow longer windows."
        raise InputError(f"{full}, which leaves no room for windows that share {stride}.", hint=hint)
    first, end = inside[0], inside[-1] + 1
    return [
        Sample.of(
            **{name: [*values[:first], *values[i : min(i + room, end)], *values[end:]] for name, values in row.inputs.items()}
        )
        for i in range(first, end - stride, room - stride)
    ]


class TextPipeline(TaskPipeline[Any]):
    """A task over text, of a model and its tokenizer."""

    components: ClassVar[tuple[str, ...]] = ("tokenizer",)
    # Whatever a config asks for, a pipeline reads the output by name and needs no more than it.
    asked = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}
    pooler = False
    tokenizer: Any

    def check_model(self) -> None:
        self.need(not isinstance(self.model.body, SoundBackbone | ImageBackbone), "reads text")

    @property
    def max_length(self) -> int:
        """Tokens of a row at most: what the tokenizer and the model both were made for."""
        most = getattr(self.model.body, "trained_positions", None)
        return int(min(self.tokenizer.model_max_length or NO_LIMIT, most or NO_LIMIT))

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        read = [attempt(self.read, item, options) for item in items]
        texts = [text for found in read if not isinstance(found, TranseptError) for text in found]
        way, limit = self.cutting(options)
        for paired in {second is not None for _, second in texts} if way is not None else ():
            special = self.tokenizer.num_special_tokens_to_add(pair=paired)
            if limit <= special + paired:
                raise InputError(f"rows of {limit} tokens have no room for text beside {special} special tokens.")
        encoded = iter(halving(lambda some: self.encode(some, options), texts))
        return [
            found if isinstance(found, TranseptError) else attempt(self.all_rows, [next(encoded) for _ in found], options)
            for found in read
        ]

    def read(self, item: Any, options: Any) -> Sequence[Any]:
        """The texts and pairs that an input is made of."""
        return [(check_text(item), None)]

    def cutting(self, options: Any) -> tuple[str | None, int]:
        """How rows are cut, ``None`` for not at all, and how long they may be; tasks without an option for it cut."""
        way, limit = getattr(options, "truncation", True), getattr(options, "max_length", None) or self.max_length
        uncut = way in (None, False, "do_not_truncate")
        return None if uncut else "longest_first" if way is True else str(way), limit

    def encode(self, texts: Sequence[Any], options: Any) -> Sequence[Any]:
        way, limit = self.cutting(options)
        language = getattr(options, "src_lang", None)
        language = None if language == getattr(self.tokenizer, "src_lang", language) else language  # its own needs no switch
        plain = [text for text, second in texts if second is None]
        alone = map(Sample.of, self.tokenizer.encode_ids(plain, max_length=way and limit, src_lang=language) if plain else ())
        pairs: Iterable[Sample] = ()
        if len(plain) < len(texts):
            firsts, seconds = map(list, zip(*(text for text in texts if text[1] is not None), strict=True))
            if way in ("only_first", "only_second"):
                pairs = (windows(row, int(way == "only_second"), limit)[0] for row in self.tokens(firsts, seconds))
            else:
                how = {"truncation": way or False, "max_length": way and limit, "src_lang": language, "verbose": False}
                encoded = self.tokenizer(firsts, seconds, return_attention_mask=False, **how)
                pairs = (Sample.of(**{name: encoded[name][i] for name in encoded}) for i in range(len(firsts)))
        by_kind = iter(alone), iter(pairs)
        return [next(by_kind[second is not None]) for _, second in texts]

    def tokens(self, firsts: list[Any], seconds: list[str] | None = None, **settings: Any) -> list[Sample]:
        """Texts or pairs as rows, however long, of tokens that know where they stand.

        Beside its ids a row has ``offset_mapping``, characters in the text, and for each token the number of its text in
        ``sequences`` and of its word in the text in ``words``, both ``None`` for special tokens.
        """
        how = {"return_offsets_mapping": True, "return_attention_mask": False, "verbose": False}
        encoded = self.tokenizer(firsts, seconds, **how, **settings)
        rows = [{name: values[i] for name, values in encoded.items()} for i in range(len(firsts))]
        return [Sample.of(**row, sequences=encoded.sequence_ids(i), words=encoded.word_ids(i)) for i, row in enumerate(rows)]

    def all_rows(self, encoded: Sequence[Any], options: Any) -> list[Sample]:
        """The rows of one input, or the first error among its texts."""
        found = []
        for each in encoded:
            if isinstance(each, TranseptError):
                raise each
            if not len(each):
                raise InputError("the text is empty: this model's tokenizer makes no tokens of it.", hint="Leave it out.")
            found += self.rows(each, options)
        return found

    def rows(self, encoded: Any, options: Any) -> list[Sample]:
        """The rows that one encoded text or pair becomes."""
        if len(encoded) > (limit := self.cutting(options)[1]):
            problem = f"the text has {len(encoded)} tokens, but the model takes {limit}."
            raise InputError(problem, hint="Pass truncation=True to cut it, or split it.")
        return [encoded]

    @property
    def padded(self) -> bool:  # type: ignore[override]
        """False for encoders on the CPU that can read rows of different lengths one behind the other.

        Elsewhere, many small calls of attention cost more than padding does, and compiled models want few shapes.
        """
        model, backbone = self.model, self.model.body
        reads_rows = isinstance(backbone, TextBackbone) and backbone.ragged and not backbone.causal
        compiled = model._compiled_call_impl is not None or backbone._compiled_call_impl is not None
        return not reads_rows or compiled or model.device.type != "cpu"

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """What the model reads of a batch: rows one behind the other (1, N) with their ``lengths``, or padded to (B, T).

        Padding is on the right, with an ``attention_mask`` where rows are padded or hold the padding id as text, and for heads
        that find the last token by the mask alone. Rows that hold the padding id are always padded: some families count
        positions by it.
        """
        device, lengths = self.model.device, [sample.length for sample in samples]
        pad = given = self.model.config.pad_token_id
        if pad is None or pad < 0:
            pad = self.tokenizer.pad_token_id or 0
        holds_pad = any(pad in sample.inputs["input_ids"] for sample in samples)
        fills = {"input_ids": pad}
        if "token_type_ids" in self.model.body.reads and any("token_type_ids" in sample.inputs for sample in samples):
            fills["token_type_ids"] = 0
        rows = {name: [sample.inputs.get(name) or [0] * sample.length for sample in samples] for name in fills}
        if not self.padded and not holds_pad:
            joined = {name: torch.tensor([list(chain.from_iterable(some))]) for name, some in rows.items()}
            return {**joined, "lengths": lengths} if len(samples) > 1 else joined
        if given is None or min(lengths) < max(lengths) or holds_pad:
            rows["attention_mask"] = [[1] * length for length in lengths]
        return {name: padded(some, fills.get(name, 0), device) for name, some in rows.items()}


def padded(rows: Sequence[list[int]], fill: int, device: torch.device, left: bool = False) -> torch.Tensor:
    """Rows as (B, T), filled up on the right or on the left."""
    longest = max(map(len, rows))
    gaps = [[fill] * (longest - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)], device=device)


def check_text(item: Any) -> str:
    """An input that must be text; an ``InputError`` where it is something else."""
    if not isinstance(item, str):
        raise unexpected("a text was", item)
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
