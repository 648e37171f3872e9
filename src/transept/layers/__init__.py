"""What networks are built of. The parts that most families use can be imported from here."""

from transept.layers.attention import Attention, ByHeadAttention, FusedAttention, InterleavedAttention
from transept.layers.block import (
    Block,
    OutputNorm,
    Parallel,
    PostNorm,
    PreNorm,
    SandwichNorm,
    SharedNormParallel,
    adds_to_stream,
    clamp_half,
    standard_layers,
)
from transept.layers.context import Context, Pattern
from transept.layers.linear import Conv1D
from transept.layers.mlp import MLP, FusedGatedMLP, GatedMLP
from transept.layers.norm import RMSNorm
from transept.layers.pool import Pooler
from transept.layers.positions import CountedPositions, OffsetPositions, alibi, distance_bias
from transept.layers.rotary import Rotary

__all__ = ["MLP", "Attention", "Block", "ByHeadAttention", "Context", "Conv1D", "CountedPositions", "FusedAttention"]
__all__ += ["FusedGatedMLP", "GatedMLP", "InterleavedAttention", "OffsetPositions", "OutputNorm", "Parallel", "Pattern"]
__all__ += ["Pooler", "PostNorm", "PreNorm", "RMSNorm", "Rotary", "adds_to_stream", "alibi", "clamp_half", "distance_bias"]
__all__ += ["SandwichNorm", "SharedNormParallel", "standard_layers"]
