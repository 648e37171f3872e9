"""The processors of Qwen2-VL (Wang et al. 2024, arXiv:2409.12191) and 2.5: pictures, videos, and the texts about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transept.preprocess.features import BatchFeature
from transept.preprocess.processor import Processor


class Qwen2VLProcessor(Processor):
    """An image processor, a tokenizer and a video processor; each picture becomes as many tokens as it has features."""

    model_types = ("qwen2_vl",)
    parts = {"image_processor": ("Qwen2VLImageProcessor",), "tokenizer": (), "video_processor": ("Qwen2VLVideoProcessor",)}
    return_mm_token_type_ids: ClassVar[bool] = True
    image_token: ClassVar[str] = "<|image_pad|>"  # noqa: S105 (no secret)
    video_token: ClassVar[str] = "<|video_pad|>"  # noqa: S105

    image_token_id = property(lambda self: self.tokenizer.convert_tokens_to_ids(self.image_token))
    video_token_id = property(lambda self: self.tokenizer.convert_tokens_to_ids(self.video_token))

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, "mm_token_type_ids"]

    def replacements(self, kind: str, inputs: BatchFeature, options: Mapping[str, Any]) -> list[str]:
        part, noun = (self.image_processor, "image") if kind == "images" else (self.video_processor, "video")
        merged = options.get("merge_size", part.merge_size) ** 2
        return [self.placeholders[kind] * (int(grid.prod()) // merged) for grid in inputs[f"{noun}_grid_thw"]]


class Qwen2_5_VLProcessor(Qwen2VLProcessor):  # noqa: N801 (the reference's name)
    """The same; of videos ``second_per_grid_ts`` tells how many seconds a step in time takes."""

    model_types = ("qwen2_5_vl",)
    defaults = {"videos": {"return_metadata": True}}

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, "second_per_grid_ts"]

    def joined(self, found: Mapping[str, Any]) -> BatchFeature:
        output = super().joined(found)
        if (metadata := output.pop("video_metadata", None)) is not None:
            frames = self.video_processor.temporal_patch_size
            output["second_per_grid_ts"] = [frames / each.sampled_fps for each in metadata]
        return output
