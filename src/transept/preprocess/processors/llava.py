"""LLaVA's processor (Liu et al. 2023, arXiv:2304.08485): pictures, and the texts about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from transept.config.fields import Count
from transept.errors import InputError
from transept.preprocess.features import BatchFeature
from transept.preprocess.processor import Processor


class LlavaProcessor(Processor):
    """An image processor and a tokenizer; each picture becomes as many tokens as the model has features for it.

    Args:
        patch_size: of the vision model.
        vision_feature_select_strategy: ``"default"`` leaves out the class token, ``"full"`` keeps it, as the model does.
        image_token: the placeholder of a picture.
        num_additional_image_tokens: tokens of the vision model beside the patches, such as the class token.
    """

    model_types = ("llava",)
    parts = {"image_processor": (), "tokenizer": ()}

    patch_size: Count | None = None
    vision_feature_select_strategy: Literal["default", "full"] | None = None
    image_token: str = "<image>"  # noqa: S105 (no secret)
    num_additional_image_tokens: int = 0

    image_token_id = property(lambda self: self.tokenizer.convert_tokens_to_ids(self.image_token))

    def replacements(self, kind: str, inputs: BatchFeature, options: Mapping[str, Any]) -> list[str]:
        if self.patch_size is None:
            hint = "Set processor.patch_size = model.config.vision_config.patch_size."
            raise InputError("`patch_size` is not set, so that nobody knows how many tokens a picture has.", hint=hint)
        found, more = [], self.num_additional_image_tokens - (self.vision_feature_select_strategy == "default")
        last = options.get("data_format", self.image_processor.data_format) == "channels_last"
        for pixels in inputs["pixel_values"]:
            height, width = pixels.shape[:2] if last else pixels.shape[1:]
            found.append(self.image_token * ((height // self.patch_size) * (width // self.patch_size) + more))
        return found
