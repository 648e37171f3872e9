"""Tables of embeddings beyond PyTorch's own.

Shapes: B batch, T positions, D size.
"""

from __future__ import annotations

from torch import Tensor, nn


class ScaledEmbedding(nn.Embedding):
    """Embeddings that are multiplied by a number when they are looked up.

    Args:
        size: rows of the table.
        dim: D.
        pad: the row of padding, which starts as zeros and is not trained.
        scale: the number.
    """

    def __init__(self, size: int, dim: int, pad: int | None, scale: float) -> None:
        super().__init__(size, dim, padding_idx=pad)
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)."""
        return super().forward(input) * self.scale
