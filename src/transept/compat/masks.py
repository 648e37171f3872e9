"""Attention masks (B, 1, T, S) for networks that are written in the reference's way: with masks as arguments of their layers.

Networks of this package describe their masks (``Pattern``) and make none of these. B batch, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.layers.context import same_number

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key, as the reference's


def _mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    past_key_values: Any = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    *,
    causal: bool,
    keys: int | None = None,
    window: int | None = None,
    may_skip: bool = True,
) -> Tensor | None:
    """A mask for a config's attention: what is added (eager), what is allowed (sdpa), or the padding alone (flash)."""
    kind = getattr(config, "_attn_implementation", None) or "sdpa"
    if attention_mask is not None and attention_mask.dim() == 4:
        return attention_mask
    batch, queries, device = inputs_embeds.shape[0], inputs_embeds.shape[1], inputs_embeds.device
    past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
    keys = past + queries if keys is None else keys
    real = None if attention_mask is None else attention_mask.to(device).bool()
    if kind.startswith("flash"):
        return None if real is None or real.all() else attention_mask
    if real is not None and real.shape[-1] != keys:
        raise InputError(f"`attention_mask` has {real.shape[-1]} positions, but there are {keys} keys.")
    plain = all(more is None for more in (or_mask_function, and_mask_function, block_sequence_ids))
    plain = plain and (real is None or bool(real.all()))
    plain = plain and (window is None or keys <= window) and (not causal or queries in (1, keys))
    if may_skip and plain and (kind == "sdpa" or not causal):
        return None
    query = torch.arange(past, past + queries, device=device)[None, None, :, None]
    key = torch.arange(keys, device=device)[None, None, None, :]
    rows, head = torch.arange(batch, device=device)[:, None, None, None], torch.zeros((), dtype=torch.long, device=device)
    allowed = key <= query if causal else torch.ones_like(key, dtype=torch.bool).expand(1, 1, queries, keys)
    if window is not None:
        allowed = allowed & ((query - key < window) if causal else ((query - key).abs() <= window))
    if or_mask_function is not None:
        allowed = allowed | or_mask_function(rows, head, query, key)
    if and_mask_function is not None:
        allowed = allowed & and_mask_function(rows, head, query, key)
    if block_sequence_ids is not None:
        blocks = F.pad(block_sequence_ids.to(device), (0, max(keys - block_sequence_ids.shape[1], 0)), value=-1)
        allowed = allowed | same_number(blocks, query.flatten())[:, None]
    if real is not None:
        allowed = allowed & real[:, None, None, :]
    allowed = allowed.expand(batch, 1, queries, keys)
    return allowed if kind != "eager" else _added(allowed, inputs_embeds.dtype)


def _added(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=allowed.device)
    return torch.where(allowed, zero, torch.finfo(dtype).min)


class AttentionMaskConverter:
    """Makes masks that are added to scores; causal ones may see ``sliding_window`` positions alone."""

    def __init__(self, is_causal: bool, sliding_window: int | None = None) -> None:
        if sliding_window is not None and sliding_window <= 0:
            raise InputError(f"`sliding_window` must be positive, but is {sliding_window}.")
        self.is_causal, self.sliding_window = is_causal, sliding_window

    def to_causal_4d(
        self, batch_size: int, query_length: int, key_value_length: int, dtype: torch.dtype, device: Any = "cpu"
    ) -> Tensor | None:
        """(B, 1, T, S), of the last T of S positions; ``None`` where each query sees all keys."""
        if not self.is_causal:
            raise InputError("a mask converter that is not causal makes no causal mask.", hint="Pass is_causal=True.")
        if query_length == 1 and self.sliding_window is None:
            return None
        query = torch.arange(key_value_length - query_length, key_value_length, device=device)[:, None]
        key = torch.arange(key_value_length, device=device)
        allowed = key <= query
        if self.sliding_window is not None:
            allowed = allowed & (query - key < self.sliding_window)
        return _added(allowed[None, None].expand(batch_size, 1, -1, -1), dtype)

    def to_4d(
        self, attention_mask_2d: Tensor, query_length: int, dtype: torch.dtype, key_value_length: int | None = None
    ) -> Tensor:
        """(B, S) -> (B, 1, T, S), 1 for what is real; a causal one needs the ``key_value_length``."""
        real = attention_mask_2d[:, None, None, :].bool().expand(-1, 1, query_length, -1)
        if not self.is_causal:
            return _added(real, dtype)
        if key_value_length is None:
            raise InputError("a causal mask needs `key_value_length`.", hint="Pass the number of keys.")
        causal = self.to_causal_4d(len(real), query_length, key_value_length, dtype, attention_mask_2d.device)
        return _added(real if causal is None else real & (causal == 0), dtype)


def create_causal_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    position_ids: Tensor | None = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    *,
    cache_position: Tensor | None = None,
    allow_is_causal_skip: bool = True,
) -> Tensor | None:
    """A mask with which each position sees those before it, and those that the cache holds.

    It follows from the order of positions in the batch; ``position_ids`` and ``cache_position`` change nothing. Positions with
    the same number in ``block_sequence_ids`` (B, S), from 0 on, see each other in both directions. ``None`` where no mask is
    needed.
    """
    more = (or_mask_function, and_mask_function, block_sequence_ids)
    return _mask(config, inputs_embeds, attention_mask, past_key_values, *more, causal=True, may_skip=allow_is_causal_skip)


def create_sliding_window_causal_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    position_ids: Tensor | None = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    *,
    cache_position: Tensor | None = None,
    allow_is_causal_skip: bool = True,
) -> Tensor | None:
    """As :func:`create_causal_mask`, of the last ``config.sliding_window`` positions alone (``InputError``: it is not set)."""
    if (window := getattr(config, "sliding_window", None)) is None:
        raise InputError("the config has no `sliding_window`.", hint="Use create_causal_mask.")
    more, skip = (or_mask_function, and_mask_function, block_sequence_ids), allow_is_causal_skip
    return _mask(config, inputs_embeds, attention_mask, past_key_values, *more, causal=True, window=window, may_skip=skip)


def create_bidirectional_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    past_key_values: Any = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
) -> Tensor | None:
    """A mask with which each position sees all that is real, of the sequence or of an encoder's states."""
    keys = (inputs_embeds if encoder_hidden_states is None else encoder_hidden_states).shape[1]
    more = (or_mask_function, and_mask_function)
    return _mask(config, inputs_embeds, attention_mask, None, *more, causal=False, keys=keys)


def _prepare_4d_attention_mask(mask: Tensor, dtype: torch.dtype, tgt_len: int | None = None) -> Tensor:
    """What is added to the scores: (B, S) -> (B, 1, T, S)."""
    allowed = mask[:, None, None, :].bool().expand(-1, 1, mask.shape[1] if tgt_len is None else tgt_len, -1)
    return _added(allowed, dtype)


def _prepare_4d_causal_attention_mask(
    attention_mask: Tensor | None,
    input_shape: tuple[int, int] | torch.Size | list[int],
    inputs_embeds: Tensor,
    past_key_values_length: int,
    sliding_window: int | None = None,
) -> Tensor:
    """What is added to the scores of a causal network, which has cached ``past_key_values_length`` positions."""
    batch, queries = input_shape
    keys = queries + past_key_values_length
    query, key = torch.arange(past_key_values_length, keys)[:, None], torch.arange(keys)
    allowed = (key <= query) if sliding_window is None else (key <= query) & (query - key < sliding_window)
    allowed = allowed.to(inputs_embeds.device)[None, None].expand(batch, 1, queries, keys)
    if attention_mask is not None:
        allowed = allowed & attention_mask[:, None, None, :].bool()
    return _added(allowed, inputs_embeds.dtype)


_prepare_4d_attention_mask_for_sdpa = _prepare_4d_attention_mask
_prepare_4d_causal_attention_mask_for_sdpa = _prepare_4d_causal_attention_mask
