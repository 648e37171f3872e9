"""Texts to the states of a backbone, one vector a token, for whatever is trained on top of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transept.core.auto import AutoModel
from transept.pipelines.base import to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.text import TextOptions, TextPipeline, unpadded


@dataclass(frozen=True)
class FeatureExtractionOptions(TextOptions):
    """Options of ``feature-extraction``, beside those of :class:`transept.pipelines.text.TextOptions`.

    The latter may also come together in a mapping ``tokenize_kwargs``.

    Args:
        return_tensors: answer with a tensor, and not with nested lists.
    """

    return_tensors: bool = False


class FeatureExtractionPipeline(TextPipeline[FeatureExtractionOptions]):
    """For a text of T tokens, the last states (1, T, D) as nested lists or as a tensor; special tokens are among them."""

    task, auto, options_class = "feature-extraction", AutoModel, FeatureExtractionOptions
    nested = "tokenize_kwargs"

    def forward(self, samples: Sequence[Sample], options: FeatureExtractionOptions) -> Sequence[NDArray[np.float32]]:
        """States (T, D) of each row, without its padding."""
        return unpadded(to_numpy(self.run(self.collate(samples), self.model.backbone).last_hidden_state), samples)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: FeatureExtractionOptions) -> Any:
        states = results[0][None]
        return torch.from_numpy(states) if options.return_tensors else states.tolist()
