"""Backbones over text: what they accept, how a batch is checked, and what is inferred of it.

Shapes: B batch, T positions, S cached and new positions, D hidden size.
"""

from __future__ import annotations

import warnings
from typing import TypedDict, TypeVar

import torch
from torch import Tensor

from transept.backbone import Backbone
from transept.context import Context
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.layers.cache import Cache, DynamicCache
from transept.layers.mask import read_mask


class _Shared(TypedDict, total=False):
    """What every text backbone accepts beside its inputs.

    ``past_key_values`` and ``use_cache`` are for decoders; the encoder's states (B, S', D) and mask (B, S') for those with
    cross-attention; the others ask for more or other outputs.
    """

    past_key_values: Cache | None
    use_cache: bool | None
    encoder_hidden_states: Tensor | None
    encoder_attention_mask: Tensor | None
    output_attentions: bool | None
    output_hidden_states: bool | None


class Options(_Shared, total=False):
    """What every text backbone accepts beside its inputs; see ``Backbone.start``."""

    return_dict: bool | None


class TextInputs(_Shared, total=False):
    """What task heads for text pass on to their backbone."""

    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None


class TextBackbone(Backbone):
    """A network over tokens; its config has ``vocab_size`` and, where positions are a table, ``max_position_embeddings``."""

    def start(
        self,
        ids: Tensor | None,
        embeds: Tensor | None,
        mask: Tensor | None,
        *,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Context:
        """Check a text batch and describe it for the layers.

        Args:
            ids, embeds: (B, T) token ids or (B, T, D) embeddings; one of the two.
            mask: what the caller passed as ``attention_mask``; inferred from padding ids where that is safe.
            past_key_values, use_cache: a cache to go on from, and whether to make one.
            encoder_hidden_states, encoder_attention_mask: (B, S', D) and (B, S'), for cross-attention.
            output_attentions, output_hidden_states: what to record; the config's settings when absent.
            return_dict: ``False`` for a tuple.

        Raises:
            InputError, InputTypeError: naming the argument and its value.
        """
        batch, length, device = self._check_ids(ids, embeds)
        cache = self._check_cache(past_key_values, batch)
        wanted = self.config.use_cache if use_cache is None else use_cache
        if cache is None and wanted and self.causal and not self.recomputes:
            cache = DynamicCache()
        past = 0 if cache is None else cache.get_seq_length()
        if mask is None and ids is not None and past == 0:
            mask = self.infer_mask(ids)
        padding, full = (None, None) if mask is None else read_mask(mask.to(device), batch, length, past + length)
        if padding is not None and device.type == "cpu" and not torch.compiler.is_compiling() and bool(padding.all()):
            padding = None  # where nothing is padded, kernels are faster without a mask
        ctx = self.context(output_attentions, output_hidden_states, return_dict)
        ctx.past, ctx.cache, ctx.padding, ctx.full_mask = past, cache, padding, full
        if encoder_hidden_states is not None:
            self._read_encoder(ctx, encoder_hidden_states, encoder_attention_mask, batch, length)
        return ctx

    def _read_encoder(self, ctx: Context, states: Tensor, mask: Tensor | None, batch: int, length: int) -> None:
        if not getattr(self.config, "add_cross_attention", False):
            raise InputError(
                f"`encoder_hidden_states` was passed, but this {type(self).__name__} has no cross-attention.",
                hint="Set `is_decoder` and `add_cross_attention` in the config, where the family has them.",
            )
        ctx.encoder_states = states
        if mask is not None:
            padding, full = read_mask(mask.to(states.device), batch, length, states.shape[1])
            ctx.encoder_mask = full if padding is None else padding[:, None, None, :]

    def positions(self, given: Tensor | None, x: Tensor, ctx: Context, ids: Tensor | None = None) -> Tensor:
        """(1 or B, T) of positions: those given, or counted on from the cache.

        Families that count real tokens only look at the ``ids`` (B, T).

        Raises:
            InputError: positions of another shape than the inputs, or a sequence longer than the table of positions.
        """
        if given is not None:
            if given.ndim != 2 or given.shape[0] not in (1, x.shape[0]) or given.shape[1] != x.shape[1]:
                raise InputError(f"`position_ids` has the shape {tuple(given.shape)}, but the inputs are {tuple(x.shape[:2])}.")
            return given
        end = ctx.past + x.shape[1]
        self.check_length(end)
        return torch.arange(ctx.past, end, device=x.device)[None]

    def check_length(self, length: int) -> None:
        """Refuse sequences longer than ``max_position_embeddings``."""
        most = self.config.max_position_embeddings
        if length > most:
            raise InputError(
                f"the sequence has {length} positions, but {type(self).__name__} has embeddings for {most}.",
                hint="Truncate it (truncation=True in the tokenizer), or split it into windows.",
            )

    def _check_cache(self, cache: Cache | None, batch: int) -> Cache | None:
        if cache is None:
            return None
        if not isinstance(cache, Cache):
            raise InputTypeError(
                f"`past_key_values` must be a transept Cache, but is {type(cache).__name__}.",
                hint="Pass what an earlier call returned, or a DynamicCache().",
            )
        if self.recomputes:
            raise InputError(
                "`past_key_values` cannot be used while layers are recomputed: each would be appended to twice.",
                hint="Call gradient_checkpointing_disable(), or pass no cache.",
            )
        cache.check(len(self.layers), batch)
        return cache

    def _check_ids(self, ids: Tensor | None, embeds: Tensor | None) -> tuple[int, int, torch.device]:
        if (ids is None) == (embeds is None):
            raise InputError("pass either `input_ids` or `inputs_embeds`, one of the two.")
        given = ids if ids is not None else embeds
        name = "input_ids" if ids is not None else "inputs_embeds"
        if not isinstance(given, Tensor):
            raise InputTypeError(
                f"`{name}` must be a tensor, but is {type(given).__name__}: {str(given)[:60]!r}.",
                hint='Turn text into ids first: tokenizer(text, return_tensors="pt").',
            )
        if given.ndim != (2 if ids is not None else 3) or given.is_floating_point() == (ids is not None):
            kind = "(batch, positions) of integers" if ids is not None else "(batch, positions, size) of floats"
            raise InputError(f"`{name}` must be {kind}, but is {tuple(given.shape)} of {given.dtype}.")
        if ids is not None:
            self._check_range(ids)
        return given.shape[0], given.shape[1], given.device

    def _check_range(self, ids: Tensor) -> None:
        if torch.compiler.is_compiling() or ids.device.type != "cpu" or not ids.numel():
            return  # reading values would break the graph or wait for the device
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.vocab_size:
            wrong = low if low < 0 else high
            place = (ids == wrong).nonzero()[0].tolist()
            raise InputError(
                f"`input_ids` holds {wrong} at {place}, but the vocabulary has the ids 0 to {self.config.vocab_size - 1}.",
                hint="Use the tokenizer of this model, or resize_token_embeddings after adding tokens.",
            )

    def infer_mask(self, ids: Tensor) -> Tensor | None:
        """A padding mask from the ids alone, where padding cannot be mistaken for anything else."""
        pad = self.config.pad_token_id
        if pad is None or torch.compiler.is_compiling() or ids.device.type != "cpu":
            return None
        real = ids != pad
        if real.all():
            return None
        others = (self.config.bos_token_id, self.config.eos_token_id)
        one_side = not (real[:, 1:] & ~real[:, :-1]).any() or not (real[:, :-1] & ~real[:, 1:]).any()
        if self.causal or pad in others or not one_side:
            warnings.warn(
                f"`input_ids` holds the padding id {pad} but no `attention_mask` was passed: padding is attended to. "
                "Pass the tokenizer's attention_mask.",
                TranseptWarning,
                stacklevel=5,
            )
            return None
        return real


TextB = TypeVar("TextB", bound=TextBackbone)
