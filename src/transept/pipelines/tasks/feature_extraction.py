"""Texts and pictures to the states of a backbone, for whatever is trained on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from transept.core.auto import AutoModel
from transept.errors import InputError
from transept.pipelines.base import Options, Pipeline, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImagePipeline
from transept.pipelines.text import TextOptions, TextPipeline, unpadded


class StateOptions(Options):
    """Options of tasks that answer with states.

    Args:
        return_tensors: answer with a tensor, and not with nested lists.
    """

    return_tensors: bool = False


class FeatureExtractionOptions(StateOptions, TextOptions):
    """Options of ``feature-extraction``; those of :class:`TextOptions` may come in a mapping ``tokenize_kwargs``, too."""


class ImageFeatureOptions(StateOptions):
    """Options of ``image-feature-extraction``.

    Args:
        pool: answer with the pooled state (1, D), and not with all states (1, T, D).
        image_processor_kwargs: settings of the image processor for this call.
    """

    pool: bool = False
    image_processor_kwargs: Mapping[str, Any] | None = None


class StatesPipeline(Pipeline[Any]):
    """A task that answers with states (1, T, D) as nested lists or as a tensor."""

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        states = torch.as_tensor(results[0])[None]
        return states.clone() if options.return_tensors else states.tolist()


class FeatureExtractionPipeline(TextPipeline, StatesPipeline):
    """For a text of T tokens, the last states (1, T, D) as nested lists or as a tensor; special tokens are among them."""

    task, auto, options_class = "feature-extraction", AutoModel, FeatureExtractionOptions
    nested = "tokenize_kwargs"

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        return unpadded(to_numpy(self.run(self.collate(samples), self.model.backbone).last_hidden_state), samples)


class ImageFeatureExtractionPipeline(ImagePipeline, StatesPipeline):
    """For a picture, its states (1, T, D) or its pooled state (1, D) as nested lists or as a tensor."""

    task, auto, options_class = "image-feature-extraction", AutoModel, ImageFeatureOptions

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        """States (T, D), or the pooled state (D), of each row; an ``InputError`` where the model has no trained pooler."""
        output = self.run(self.collate(samples), self.model.backbone)
        found = output.pooler_output if options.pool else output.last_hidden_state
        if found is None:
            problem = f"`pool` is true, but this {type(self.model).__name__} has no trained pooler."
            raise InputError(problem, hint="Leave `pool` out.")
        return list(found.cpu())
