"""Texts to the states of a backbone, one vector a token, for whatever is trained on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from transept.pipelines.base import chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.parts import Parts
from transept.pipelines.text import TextOptions, TextPipeline, flattened
from transept.preprocess.text.auto import AutoTokenizer


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

    task = "feature-extraction"

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the backbone and its tokenizer."""
        model, tokenizer = parts.backbone(), parts.part("tokenizer", AutoTokenizer.from_pretrained)
        chosen = chosen_options(FeatureExtractionOptions(), flattened(options, "tokenize_kwargs"), cls.task)
        return cls(model, tokenizer, chosen, **batching)

    def with_options(self, given: Mapping[str, Any]) -> FeatureExtractionOptions:
        """The options of one call."""
        return super().with_options(flattened(given, "tokenize_kwargs"))

    def forward(self, samples: Sequence[Sample], options: FeatureExtractionOptions) -> Sequence[NDArray[np.float32]]:
        """States (T, D) of each row, without its padding."""
        states = to_numpy(self.run(self.collate(samples), self.model.backbone).last_hidden_state)
        return [row[: sample.length].copy() for row, sample in zip(states, samples, strict=True)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: FeatureExtractionOptions) -> Any:
        """The states."""
        states = results[0][None]
        return torch.from_numpy(states) if options.return_tensors else states.tolist()
