"""Estimating depth: a distance for each pixel.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from transept.core.task import B
from transept.heads.task import Task
from transept.layers.links import Linked
from transept.layers.reassemble import stretched
from transept.objectives.depth import scale_invariant
from transept.objectives.terms import LossTerm
from transept.outputs import DepthOutput


class DepthHead(Linked):
    """Three convolutions, (B, C, H, W) -> (B, H', W'), with ``inner`` channels before the last one.

    Depths are positive numbers; with ``sigmoid``, between 0 and 1. They are multiplied by ``unit``. With ``projects`` another
    convolution comes first.
    """

    def __init__(
        self, channels: int, inner: int = 32, *, sigmoid: bool = False, unit: float = 1.0, projects: bool = False
    ) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, channels, 3, padding=1) if projects else None
        self.conv1 = nn.Conv2d(channels, channels // 2, 3, padding=1)
        self.conv2 = nn.Conv2d(channels // 2, inner, 3, padding=1)
        self.conv3 = nn.Conv2d(inner, 1, kernel_size=1)
        self.sigmoid, self.unit = sigmoid, unit

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        if self.project is not None:
            x = F.relu(self.project(x))
        x = self.conv3(F.relu(self.conv2(stretched(self.conv1(x), size)))).squeeze(1)
        return (x.sigmoid() if self.sigmoid else F.relu(x)) * self.unit


class ForDepthEstimation(Task[B]):
    """A depth for each pixel: ``predicted_depth`` (B, H', W'), of a size of the family's own.

    ``labels`` (B, H, W) are depths in the units of the model, those of relative models inverse ones; a pixel whose label is
    not positive and finite is not known, and left out. The predictions are resized to them. The loss is the scale-invariant
    logarithmic one (Eigen et al. 2014), which is not a sum over pixels: micro-batches have their own.
    """

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"depth": scale_invariant(output.predicted_depth, labels[0])}

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {}

    def predict(self, states: Any, inputs: dict[str, Any]) -> DepthOutput:
        return DepthOutput(predicted_depth=self.depth(states, inputs["pixel_values"].shape[2:]))

    def depth(self, states: Any, size: Sequence[int]) -> Tensor:
        """(B, H', W'), of the backbone's output and the size of the images."""
        raise NotImplementedError
