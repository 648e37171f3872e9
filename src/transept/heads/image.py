"""Tasks over images: classes, and painting what was hidden.

Shapes: B batch, C channels or classes, H height, W width, N patches, D hidden size.
"""

from __future__ import annotations

from typing import TypeVar, Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.model import TaskModel
from transept.core.pixels import ImageBackbone, ImageInputs
from transept.errors import InputError
from transept.heads.classify import PooledTask
from transept.objectives.classification import sequence_classification
from transept.objectives.reconstruction import masked_l1
from transept.objectives.terms import Items
from transept.outputs import LogitsOutput, ReconstructionOutput

I = TypeVar("I", bound=ImageBackbone)  # noqa: E741 (I for images)


class ForImageClassification(PooledTask[I]):
    """One of C classes, several of them, or C numbers for each image."""

    omits = ("bool_masked_pos",)

    def forward(
        self,
        pixel_values: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[ImageInputs],
    ) -> LogitsOutput:
        """Classify images.

        Args:
            pixel_values: (B, channels, H, W).
            labels: (B) integers, (B, C) for several labels at once, numbers for regression; see ``problem_type``.
            num_items_in_batch: items of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, C), and ``loss`` where there are labels.
        """
        states = self.model(pixel_values, return_dict=True, **inputs)
        logits = self.head(self.pool(states, None, None))
        terms = None
        if labels is not None:
            terms = {"classification": sequence_classification(logits, labels, self.config.problem_type)}
        return self.answer(LogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)


class PixelHead(nn.Module):
    """Each state painted as a square of pixels: a linear layer, and its outputs spread over the image.

    Args:
        dim: D.
        channels: C.
        stride: height and width of the square.
    """

    def __init__(self, dim: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv, self.stride = nn.Conv2d(dim, stride**2 * channels, kernel_size=1), stride

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, rows, columns) -> (B, C, rows * stride, columns * stride)."""
        return F.pixel_shuffle(self.conv(x), self.stride)


class ForMaskedImageModeling(TaskModel[I]):
    """The pixels behind masked patches (SimMIM, Xie et al. 2022); its config has ``encoder_stride``."""

    names = Names({"decoder.0": "head.conv"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = PixelHead(self.model.dim, config.num_channels, config.encoder_stride)

    def make_backbone(self, config: Config) -> I:
        """With the embedding that stands for masked patches."""
        return self.backbone_class(config, use_mask_token=True)  # type: ignore[call-arg, return-value]

    def forward(
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        *,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[ImageInputs],
    ) -> ReconstructionOutput:
        """Paint images.

        Args:
            pixel_values: (B, C, H, W).
            bool_masked_pos: (B, N), true for patches that are hidden.
            num_items_in_batch: masked pixels, once for each channel, of the whole batch, where this is a micro-batch.

        Returns:
            ``reconstruction`` (B, C, H, W), and ``loss`` where patches are hidden.

        Raises:
            InputError: patches are hidden, and the head does not paint in their size.
        """
        size, patch = self.config.encoder_stride, self.model.patch_size
        if bool_masked_pos is not None and patch != (size, size):
            raise InputError(f"`encoder_stride` ({size}) must equal `patch_size` {patch} for a loss over masked patches.")
        states = self.model(pixel_values, bool_masked_pos, return_dict=True, **inputs)
        assert pixel_values is not None
        grid = self.model.grid(*pixel_values.shape[2:])
        patches = states.last_hidden_state[:, self.model.prefix_tokens :]
        painted = self.head(patches.transpose(1, 2).reshape(len(patches), -1, *grid))
        terms = None
        if bool_masked_pos is not None:
            masked = (bool_masked_pos != 0).view(-1, *grid).repeat_interleave(size, 1).repeat_interleave(size, 2)
            terms = {"masked_pixels": masked_l1(painted, pixel_values, masked)}
        output = ReconstructionOutput(reconstruction=painted)
        return self.answer(output, states, terms, num_items_in_batch, return_dict)
