"""Attention: of several heads, of latents, of near positions and of some blocks."""

from transept.layers.attention.multi_head import Attention, ByHeadAttention, FusedAttention, InterleavedAttention

__all__ = ["Attention", "ByHeadAttention", "FusedAttention", "InterleavedAttention"]
