"""Pictures to the states of a backbone, for whatever is trained on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from transept.core.auto import AutoModel
from transept.errors import InputError
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImagePipeline


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

    task, auto, options_class = "image-feature-extraction", AutoModel, ImageFeatureOptions

    def settings(self, options: ImageFeatureOptions) -> dict[str, Any]:
        return dict(options.image_processor_kwargs or {})

    def forward(self, samples: Sequence[Sample], options: ImageFeatureOptions) -> Sequence[Tensor]:
        """States (T, D), or the pooled state (D), of each row.

        Raises:
            InputError: a pooled state is asked of a model without a trained pooler.
        """
        output = self.run(self.collate(samples), self.model.backbone)
        found = output.pooler_output if options.pool else output.last_hidden_state
        if found is None:
            name = type(self.model).__name__
            raise InputError(f"`pool` is true, but this {name} has no trained pooler.", hint="Leave `pool` out.")
        return list(found.cpu())

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: ImageFeatureOptions) -> Any:
        states = results[0][None]
        return states.clone() if options.return_tensors else states.tolist()
