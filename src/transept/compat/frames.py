"""Frames that are hidden and compared in pretraining on speech, drawn as programs of the reference ask for them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.kinds.augment import span_mask
from transept.models.wav2vec2.pretraining import sample_negatives


def _compute_mask_indices(
    shape: tuple[int, int], mask_prob: float, mask_length: int, attention_mask: Tensor | None = None, min_masks: int = 0
) -> NDArray[np.bool_]:
    """Random spans of the frames (B, T) that the mask, or the shape without one, calls real; PyTorch's generator draws."""
    rows, frames = shape
    lengths = torch.full((rows,), frames) if attention_mask is None else attention_mask.sum(dim=-1).cpu()
    mask: NDArray[np.bool_] = span_mask(lengths, frames, prob=mask_prob, span=mask_length, least=min_masks).numpy()
    return mask


def _sample_negative_indices(
    features_shape: tuple[int, int], num_negatives: int, mask_time_indices: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """For each hidden frame, others that are hidden in its row: (B, T, K) indices into all frames of the batch."""
    mask = torch.ones(features_shape) if mask_time_indices is None else torch.as_tensor(mask_time_indices)
    drawn: NDArray[np.int64] = sample_negatives(mask, num_negatives).numpy()
    return drawn
