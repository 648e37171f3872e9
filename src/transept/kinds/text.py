"""Backbones over text: what they accept, how a batch is checked, and what is inferred of it.

Shapes: B batch, T positions, S cached and new positions, D hidden size.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.core.inputs import (
    INTEGERS,
    TOKENIZE,
    Packing,
    RecordOptions,
    before,
    check_by_position,
    check_range,
    check_tensor,
    readable,
)
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.kinds.packing import PackableBackbone
from transept.layers.caches.cache import Cache, DynamicCache, EncoderDecoderCache, Kinds
from transept.layers.caches.layer import KeyValues, LayerCache
from transept.layers.context import Context, reaching, read_encoder, read_mask
from transept.layers.positions import Counted

_UNPADDED = ContextVar("unpadded", default=False)


@contextmanager
def unpadded() -> Iterator[None]:
    """Within it, backbones compute real positions alone where they can; the states of padding are zeros then.

    This suits what reads no states of padding, and batches that are padded at the ends of rows.
    """
    token = _UNPADDED.set(True)
    try:
        yield
    finally:
        _UNPADDED.reset(token)


class Options(RecordOptions, total=False):
    """What every text backbone accepts beside its inputs.

    ``lengths`` are T of rows that stand one behind the other in ids (1, N), without padding. ``past_key_values`` is a cache to
    go on from (with ``lengths``, :class:`RowCaches`), and ``use_cache`` says whether to make one; the encoder's states
    (B, S', D) and mask (B, S') are for cross-attention.
    """

    lengths: Sequence[int] | None
    past_key_values: Cache | None
    use_cache: bool | None
    encoder_hidden_states: Tensor | None
    encoder_attention_mask: Tensor | None


class PackedOptions(Options, total=False):
    """What tells of texts that are packed into a row, as :class:`transept.DataCollatorWithFlattening` gives it.

    ``seq_idx`` (1 or B, T) are numbers of texts, ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (texts + 1) the places in the only row
    where texts begin and the last ends; ``max_length_q`` and ``max_length_k`` say no more. ``position_ids`` (1 or B, T) are
    positions; in families that say so (``infers_texts``), one that does not follow the one before it begins a text, in a pass
    without an ``attention_mask`` and without a cache.
    """

    position_ids: Tensor | None
    seq_idx: Tensor | None
    cu_seq_lens_q: Tensor | None
    cu_seq_lens_k: Tensor | None
    max_length_q: int | None
    max_length_k: int | None


class DecoderOptions(PackedOptions, total=False):
    """What decoders accept beside.

    ``block_sequence_ids`` (1 or B, S) are numbers of blocks, such as the pictures in a text or its first part: cached and new
    positions with the same number see each other in both directions. Those with a negative number, and those behind the last
    one, are of no block.
    """

    block_sequence_ids: Tensor | None


class TextBackbone(PackableBackbone):
    """A network over tokens; its config has ``vocab_size`` and, where positions are a table, ``max_position_embeddings``.

    A family that knows no token types may read them all the same, since many a tokenizer gives them with the ids.
    """

    accepts: ClassVar[type] = PackedOptions
    # The kinds of what layers keep in a cache; where layers differ, ``layer_kinds`` tells which keeps what.
    keeps: ClassVar[tuple[type[LayerCache], ...]] = (KeyValues,)

    def layer_kinds(self) -> Kinds:
        """The kinds of what each layer keeps in a cache."""
        return [self.keeps] * len(self.layers)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Inputs -> hidden states (B, T, D); texts that are packed into one row do not see each other."""
        packing = self.find_packing(inputs)
        if packing is None and not torch.compiler.is_compiling() and _UNPADDED.get() and not args:
            packing = self.find_padding(inputs)
        return super().forward(*args, **inputs) if packing is None else self.forward_packed(packing, inputs, super().forward)

    def find_padding(self, inputs: dict[str, Any]) -> Packing | None:
        """The rows of a padded batch as texts, where padding can be left out."""
        mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
        others = ("past_key_values", "encoder_hidden_states", "lengths", "seq_idx", "block_sequence_ids")
        if any(inputs.get(name) is not None for name in others) or inputs.get("use_cache"):
            return None
        if self.asks(inputs, "output_attentions") or not self.ragged or not isinstance(mask, Tensor):
            return None
        if not isinstance(ids, Tensor) or ids.shape != mask.shape:
            return None
        table = getattr(self, "embed_positions", None)
        if isinstance(table, Counted) and bool(((ids == table.padding_idx) & (mask != 0)).any()):
            return None  # positions are counted by ids
        return Packing.of_padded(mask)

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        """Embed (B, T) ids, or (B, T, D) embeddings, for the first layer."""
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds  # one of the two is there
        positions = self.positions(position_ids, x, ctx, input_ids)
        return self.embed(x, token_type_ids, positions, ctx), ctx

    def embed_ids(self, ids: Tensor) -> Tensor:
        return self.embed_tokens(ids)  # type: ignore[no-any-return]

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """What goes into the first layer, made of the embeddings (B, T, D) of the tokens; a family says here what it adds.

        ``types`` (B, T) are the token types that the caller gave, ``positions`` (1 or B, T) the positions. Rotary tables, and
        biases for distances, are put into the context.
        """
        return x

    def start(self, ids: Tensor | None, embeds: Tensor | None, mask: Any, **options: Unpack[DecoderOptions]) -> Context:
        """Check a text batch, (B, T) ids or (B, T, D) embeddings, and describe it for the layers.

        Without a mask, it is inferred from padding ids where that is safe.
        """
        batch, length, device = self.check_inputs(ids, embeds)
        ctx = self.context(options.get("output_attentions"), options.get("output_hidden_states"), options.get("return_dict"))
        if options.get("lengths") is not None:
            self.read_lengths((batch, length), mask, ctx, options)
            return ctx
        cache = self.check_cache(options.get("past_key_values"), batch)
        ctx.texts = options.get("seq_idx")
        if cache is None and ctx.texts is None and self.makes_cache(options.get("use_cache")):
            cache = DynamicCache() if options.get("encoder_hidden_states") is None else EncoderDecoderCache()
            cache.check(self.layer_kinds(), batch)
        past, keys = (0, length) if cache is None else cache.span(length)
        if mask is None and ids is not None and keys == length:
            mask = self.infer_mask(ids)
        if isinstance(past, Tensor) and isinstance(mask, Tensor):
            mask = reaching(mask, keys)
        padding, full = None, None
        if mask is not None:
            padding, full = read_mask(mask, batch, length, keys, heads=self.mask_heads, device=device)
        if padding is not None and readable(padding) and bool(padding.all()):
            padding = None  # where nothing is padded, kernels are faster without a mask
        ctx.past, ctx.queries, ctx.keys = past, length, keys
        ctx.cache, ctx.padding, ctx.full_mask = cache, padding, full
        if (blocks := options.get("block_sequence_ids")) is not None:
            ctx.blocks = self._read_blocks(blocks, ctx, batch, device)
        if (states := options.get("encoder_hidden_states")) is not None:
            self._read_encoder(ctx, states, options.get("encoder_attention_mask"), batch)
        return ctx

    def _read_blocks(self, blocks: Any, ctx: Context, batch: int, device: torch.device) -> Tensor | None:
        """Numbers of blocks (1 or B, S) up to the last key; ``None`` where no new position is in one."""
        name, keys = "block_sequence_ids", ctx.keys
        if ctx.full_mask is not None:
            what = f"`{name}` and an `attention_mask` for pairs of positions exclude each other."
            raise InputError(what, hint="Pass (batch, positions), 1 for real tokens.")
        check_tensor(name, blocks, INTEGERS, "(batch, positions)")
        if blocks.shape[0] not in (1, batch) or blocks.shape[1] > keys:
            what = f"`{name}` has the shape {tuple(blocks.shape)}, but the batch needs {(batch, keys)}."
            raise InputError(what, hint="It begins with the cached positions, as `attention_mask` does.")
        behind = not isinstance(ctx.past, Tensor) and blocks.shape[1] <= ctx.past
        if behind or (readable(blocks) and not bool((blocks >= 0).any())):
            return None
        return F.pad(blocks.to(device), (0, keys - blocks.shape[1]), value=-1)

    def makes_cache(self, asked: bool | None) -> bool:
        """Whether a pass that was given no cache makes one, where the caller ``asked`` for it, or for none, or said nothing."""
        wanted = self.config.use_cache and not self.spares_cache if asked is None else asked
        return bool(wanted) and self.causal and not self.recomputes

    @property
    def can_continue_rows(self) -> bool:
        """Whether rows without padding can go on from caches of their own, which are computed as if each were alone."""
        alone = self.ragged and self.causal and not self.reads_encoder
        kept = all(kinds == (KeyValues,) for kinds in self.layer_kinds())
        return alone and kept and self.rows_apart and self.switches_at is None

    def _read_encoder(self, ctx: Context, states: Tensor, mask: Any, batch: int) -> None:
        if not self.reads_encoder:
            what = f"`encoder_hidden_states` was passed, but this {type(self).__name__} has no cross-attention."
            raise InputError(what, hint="Set `is_decoder` and `add_cross_attention` in the config, where the family has them.")
        check_tensor("encoder_hidden_states", states, (), "(batch, positions, size)")
        if states.shape[0] != batch:
            raise InputError(f"`encoder_hidden_states` has {states.shape[0]} rows, but the batch has {batch}.")
        read_encoder(ctx, states, mask, self.mask_heads)

    @property
    def mask_heads(self) -> int:
        """H of masks that are for each head."""
        return getattr(self.config, "num_attention_heads", 1)

    @property
    def rows_apart(self) -> bool:
        """Whether states depend on no other row, and not on how far rows are padded, as some rotary positions do."""
        tables: Any = getattr(self, "rotary_emb", None)
        return not any(table.frequencies.by_length for table in (tables.values() if tables is not None else ()))

    @property
    def switches_at(self) -> int | None:
        """T of the longest texts that turn as shorter ones do; what is cached of one is of no use once it is longer."""
        found = [table.frequencies.switch for table in getattr(self, "rotary_emb", {}).values()]
        return min((at for at in found if at is not None), default=None)

    @property
    def reads_encoder(self) -> bool:
        return bool(getattr(self.config, "add_cross_attention", False))

    @property
    def max_positions(self) -> int | None:
        """T at most, ``None`` where there is no end, as with rotary positions, which have no table that could end."""
        if isinstance(table := getattr(self, "embed_positions", None), Counted):
            return table.capacity
        return None if hasattr(self, "rotary_emb") else self._stated_positions

    @property
    def trained_positions(self) -> int | None:
        """T of the longest sequences that the model was made for, ``None`` where nothing says; at most ``max_positions``."""
        return self.max_positions or self._stated_positions

    @property
    def _stated_positions(self) -> int | None:
        most: int = getattr(self.config, "max_position_embeddings", -1)
        return most if most >= 0 else None

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def first_position(self) -> int:
        """The number of the first position, as ``position_ids`` count."""
        table = getattr(self, "embed_positions", None)
        return table.padding_idx + 1 if isinstance(table, Counted) else 0

    def positions(self, given: Tensor | None, x: Tensor, ctx: Context, ids: Tensor | None = None) -> Tensor:
        """(1 or B, T) of positions: those given, which the table must have, or counted on from the cache.

        Where real tokens alone are counted, the ``ids`` (B, T) tell which these are.
        """
        if given is not None:
            check_by_position("position_ids", given, x)
            if (most := self.max_positions) is not None:
                is_table = isinstance(getattr(self, "embed_positions", None), nn.Embedding)
                rule = "the table of positions has the rows 0 to" if is_table else "the model has the positions 0 to"
                hint = "Leave them out to have them counted."
                check_range("position_ids", given, self.first_position + most, rule, hint)
            return given
        if ctx.rows is not None:
            return ctx.rows.positions(x.device) + self.first_position
        if isinstance(table := getattr(self, "embed_positions", None), Counted):
            return table.count(ids, x, ctx.past)
        if not isinstance(ctx.past, Tensor):
            self.check_length(ctx.past + x.shape[1])
        return ctx.places(x.device)[None]

    def segments(self, given: Tensor | None, x: Tensor, table: nn.Embedding) -> Tensor:
        """The embeddings (1 or B, T, D) of token types: those given, of which ``table`` must have all, or the first for all."""
        if given is None:
            return table.weight[0].expand(1, x.shape[1], -1)
        self.check_types(given, x, table)
        return table(given)  # type: ignore[no-any-return]

    def check_types(self, given: Tensor, x: Tensor, table: nn.Embedding) -> None:
        """Require token types (1 or B, T) that a table has (``InputError``)."""
        check_by_position("token_type_ids", given, x)
        hint = "They come with the ids from this model's tokenizer."
        check_range("token_type_ids", given, table.num_embeddings, "the model has the types 0 to", hint)

    def check_length(self, length: int) -> None:
        most = self.max_positions
        if most is not None and length > most:
            what = f"the sequence has {length} positions, but {type(self).__name__} has embeddings for {most}."
            raise InputError(what, hint="Truncate it (truncation=True in the tokenizer), or split it into windows.")

    def check_cache(self, cache: Any, batch: int) -> Cache | None:
        if cache is None:
            return None
        if not isinstance(cache, Cache):
            what = f"`past_key_values` must be a transept Cache, but is {type(cache).__name__}."
            raise InputTypeError(what, hint="Pass what an earlier call returned, or a DynamicCache().")
        if self.recomputes:
            what = "`past_key_values` cannot be used while layers are recomputed: each would be appended to twice."
            raise InputError(what, hint="Call gradient_checkpointing_disable(), or pass no cache.")
        cache.check(self.layer_kinds(), batch)
        return cache

    def check_inputs(self, ids: Tensor | None, embeds: Tensor | None) -> tuple[int, int, torch.device]:
        """B, T and the device of ids (B, T) or embeddings (B, T, D), of which just one must be there."""
        if (ids is None) == (embeds is None):
            raise InputError("pass either `input_ids` or `inputs_embeds`, one of the two.")
        if ids is not None:
            check_tensor("input_ids", ids, INTEGERS, "(batch, positions)", TOKENIZE)
            hint = "Use the tokenizer of this model, or resize_token_embeddings after adding tokens."
            check_range("input_ids", ids, self.vocab_size, "the vocabulary has the ids 0 to", hint)
            return ids.shape[0], ids.shape[1], ids.device
        embeds = check_tensor("inputs_embeds", embeds, (self.dtype,), "(batch, positions, size)", TOKENIZE)
        size = getattr(self.get_input_embeddings(), "embedding_dim", embeds.shape[2])
        if size != embeds.shape[2]:
            raise InputError(f"`inputs_embeds` has vectors of {embeds.shape[2]}, but the model's embeddings are of {size}.")
        return embeds.shape[0], embeds.shape[1], embeds.device

    def infer_mask(self, ids: Tensor) -> Tensor | None:
        """A padding mask (B, T) where ids alone tell it: a row's padding fills one end of it, and its id means nothing else.

        It is an expression of tensors, the same in graphs and on devices. Other padding gives a warning where it can be seen.
        """
        pad, start, ends = (getattr(self.config, f"{name}_token_id") for name in ("pad", "bos", "eos"))
        if pad is None:
            return None
        real, mask = ids != pad, None
        if readable(ids) and bool(real.all()):
            return None
        if not self.causal and pad not in (start, *(ends if isinstance(ends, list) else [ends])):
            changes = (real != before(real)).sum(dim=1, keepdim=True)
            mask = real | (changes != 1)
        if readable(ids) and (mask is None or not torch.equal(mask, real)):
            what = f"`input_ids` holds the padding id {pad} but no `attention_mask` was passed: padding is attended to."
            warnings.warn(f"{what} Pass the tokenizer's attention_mask.", TranseptWarning, stacklevel=5)
        return mask


class CausalBackbone(TextBackbone):
    """A network over tokens in which each position sees only those before it."""

    accepts: ClassVar[type] = DecoderOptions
    causal = True
    pooling = "last"


TextB = TypeVar("TextB", bound=TextBackbone)
