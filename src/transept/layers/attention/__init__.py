"""Attention: of several heads, of latents, of near positions and of some blocks."""

from transept.layers.attention.multi_head import Attention as Attention
from transept.layers.attention.multi_head import ByHeadAttention as ByHeadAttention
from transept.layers.attention.multi_head import FusedAttention as FusedAttention
from transept.layers.attention.multi_head import InterleavedAttention as InterleavedAttention
