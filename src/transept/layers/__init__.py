"""What networks are built of. The parts that most families use can be imported from here."""

from transept.layers.attention import Attention
from transept.layers.block import Block, Parallel, PostNorm, PreNorm, adds_to_stream, bounded, standard_block
from transept.layers.context import Context, Pattern
from transept.layers.mlp import MLP, GatedMLP
from transept.layers.norm import RMSNorm
from transept.layers.pool import Pooler
from transept.layers.positions import CountedPositions, distance_bias
from transept.layers.rotary import Rotary

__all__ = ["MLP", "Attention", "Block", "Context", "CountedPositions", "GatedMLP", "Parallel", "Pattern", "Pooler", "PostNorm"]
__all__ += ["PreNorm", "RMSNorm", "Rotary", "adds_to_stream", "bounded", "distance_bias", "standard_block"]
