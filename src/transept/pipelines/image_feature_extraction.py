"""Pictures to the states of a backbone, for whatever is trained on top of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from transept.core.auto import AutoModel
from transept.errors import InputError, TranseptWarning
from transept.pipelines.base import chosen_options
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImagePipeline
from transept.pipelines.parts import Parts
from transept.preprocess.image.auto import AutoImageProcessor


@dataclass(frozen=True)
class ImageFeatureOptions:
    """Options of ``image-feature-extraction``.

    Args:
        pool: answer with the pooled state (1, D), and not with all states (1, T, D).
        return_tensors: answer with a tensor, and not with nested lists.
        image_processor_kwargs: settings of the image processor for this call.
    """

    pool: bool = False
    return_tensors: bool = False
    image_processor_kwargs: Mapping[str, Any] | None = None


class ImageFeatureExtractionPipeline(ImagePipeline[ImageFeatureOptions]):
    """For a picture, its states (1, T, D) or its pooled state (1, D) as nested lists or as a tensor."""

    task = "image-feature-extraction"

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the backbone and its image processor; a pooler that the checkpoint does not have is left out."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*newly initialised.* pooler", TranseptWarning)
            model = parts.model(AutoModel)
        report = model.load_report
        if report is not None and any(name.startswith("pooler.") for name in report.missing):
            model.backbone.pooler = None
        processor = parts.part("image_processor", AutoImageProcessor.from_pretrained)
        return cls(model, processor, chosen_options(ImageFeatureOptions(), options, cls.task), **batching)

    def settings(self, options: ImageFeatureOptions) -> dict[str, Any]:
        """Those of the call."""
        return dict(options.image_processor_kwargs or {})

    def forward(self, samples: Sequence[Sample], options: ImageFeatureOptions) -> Sequence[Tensor]:
        """States (T, D), or the pooled state (D), of each row.

        Raises:
            InputError: a pooled state is asked of a model without a trained pooler.
        """
        output = self.model.backbone(**self.collate(samples))
        found = output.pooler_output if options.pool else output.last_hidden_state
        if found is None:
            name = type(self.model).__name__
            raise InputError(f"`pool` is true, but this {name} has no trained pooler.", hint="Leave `pool` out.")
        return list(found.cpu())

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: ImageFeatureOptions) -> Any:
        """The states."""
        states = results[0][None]
        return states.clone() if options.return_tensors else states.tolist()
