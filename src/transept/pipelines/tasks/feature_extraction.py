"""Texts and pictures to the states of a backbone, for whatever is trained on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModel
from transept.errors import InputError
from transept.pipelines.base import Options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImagePipeline
from transept.pipelines.text import TextOptions, TextPipeline, unpadded


@dataclass(frozen=True)
class FeatureExtractionOptions(TextOptions):
    """Options of ``feature-extraction``; those of :class:`TextOptions` may come in a mapping ``tokenize_kwargs``, too.

    Args:
        return_tensors: answer with a tensor, and not with nested lists.
    """

    return_tensors: bool = False


@dataclass(frozen=True)
class ImageFeatureOptions(Options):
    """Options of ``image-feature-extraction``.

    Args:
        pool: answer with the pooled state (1, D), and not with all states (1, T, D).
        return_tensors: answer with a tensor, and not with nested lists.
        image_processor_kwargs: settings of the image processor for this call.
    """

    pool: bool = False
    return_tensors: bool = False
    image_processor_kwargs: Mapping[str, Any] | None = None


class FeatureExtractionPipeline(TextPipeline):
    """For a text of T tokens, the last states (1, T, D) as nested lists or as a tensor; special tokens are among them."""

    task, auto, options_class = "feature-extraction", AutoModel, FeatureExtractionOptions
    nested = "tokenize_kwargs"

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        """States (T, D) of each row, without its padding."""
        return unpadded(to_numpy(self.run(self.collate(samples), self.model.backbone).last_hidden_state), samples)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        states = results[0][None]
        return torch.from_numpy(states) if options.return_tensors else states.tolist()


class ImageFeatureExtractionPipeline(ImagePipeline):
    """For a picture, its states (1, T, D) or its pooled state (1, D) as nested lists or as a tensor."""

    task, auto, options_class = "image-feature-extraction", AutoModel, ImageFeatureOptions

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Tensor]:
        """States (T, D), or the pooled state (D), of each row; an ``InputError`` where the model has no trained pooler."""
        output = self.run(self.collate(samples), self.model.backbone)
        found = output.pooler_output if options.pool else output.last_hidden_state
        if found is None:
            name = type(self.model).__name__
            raise InputError(f"`pool` is true, but this {name} has no trained pooler.", hint="Leave `pool` out.")
        return list(found.cpu())

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        states = results[0][None]
        return states.clone() if options.return_tensors else states.tolist()
