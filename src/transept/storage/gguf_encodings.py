"""Encodings of tensors in GGUF files, and the mixes of them that are written. No other file is imported here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Matrices that stay float32: they are small, and choices hang on those of routers.
_WIDE = re.compile(
    r"(position_embd|token_types|((enc|dec)\.)?blk\.\d+\.(ffn_gate_inp(_shexp)?|ssm_conv1d(_[qkv])?|ssm_norm|shortconv\.conv|attn_rel_b))\.weight"
)
_MORE_BITS = re.compile(r"blk\.(?P<layer>\d+)\.(attn_v|ffn_down|ffn_down_exps)\.weight")


@dataclass(frozen=True)
class Encoding:
    """How numbers are stored: a name, how many stand in a block, and how many bytes a block takes."""

    name: str
    block: int
    size: int


# The format's numbers of encodings. Others are of integers or were given up.
ENCODINGS = {
    0: Encoding("F32", 1, 4),
    1: Encoding("F16", 1, 2),
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    6: Encoding("Q5_0", 32, 22),
    7: Encoding("Q5_1", 32, 24),
    8: Encoding("Q8_0", 32, 34),
    10: Encoding("Q2_K", 256, 84),
    11: Encoding("Q3_K", 256, 110),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    20: Encoding("IQ4_NL", 32, 18),
    23: Encoding("IQ4_XS", 256, 136),
    30: Encoding("BF16", 1, 2),
    39: Encoding("MXFP4", 32, 17),
}
_BY_NAME = {encoding.name: encoding for encoding in ENCODINGS.values()}


@dataclass(frozen=True)
class Mix:
    """Which encodings the matrices of a file have.

    Args:
        number: the format's own for the whole, which programs show.
        most: the encoding of most matrices.
        output: that of the output layer.
        some: that of the projections to values and of what ends a feed-forward layer, in about half of the layers.
    """

    number: int
    most: str
    output: str
    some: str

    def encoding(self, name: str, shape: Sequence[int], layers: int, *, is_output: bool) -> Encoding:
        """The encoding of a tensor, of whose blocks its rows are a multiple."""
        if len(shape) < 2 or not name.endswith(".weight") or _WIDE.fullmatch(name):
            return _BY_NAME["F32"]
        chosen = self.output if is_output else self.most
        if (found := _MORE_BITS.fullmatch(name)) and _has_more_bits(int(found["layer"]), layers):
            chosen = self.some
        return next(kind for each in (chosen, "Q8_0", "F16") if shape[-1] % (kind := _BY_NAME[each]).block == 0)


def _has_more_bits(layer: int, layers: int) -> bool:
    """Whether a layer is of the first or last eighth, or each third between, as llama.cpp chooses them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


MIXES = {
    "f32": Mix(0, "F32", "F32", "F32"),
    "f16": Mix(1, "F16", "F16", "F16"),
    "bf16": Mix(32, "BF16", "BF16", "BF16"),
    "q8_0": Mix(7, "Q8_0", "Q8_0", "Q8_0"),
    "q6_k": Mix(18, "Q6_K", "Q6_K", "Q6_K"),
    "q4_k_m": Mix(15, "Q4_K", "Q6_K", "Q6_K"),
    "q4_0": Mix(2, "Q4_0", "Q6_K", "Q4_0"),
}
"""What can be written, by the names under which llama.cpp knows it."""
