"""Qwen2-VL's image processor (Wang et al. 2024, arXiv:2409.12191): pictures keep their shape and become rows of patches.

Shapes: N patches of all pictures, P pictures, T frames of a patch, C channels, m patches that become one feature along a side.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from transept.config.fields import Count, Positive, Range, derived
from transept.errors import InputError
from transept.preprocess.features import BatchFeature
from transept.preprocess.image.arrays import Size, checked_target, size_dict
from transept.preprocess.image.base import BICUBIC, BaseImageProcessor, Pixels, flat_images
from transept.preprocess.image.clip import CLIP_MEAN, CLIP_STD
from transept.preprocess.settings import find_section
from transept.preprocess.video import Metadata, chosen, open_frames, videos_of
from transept.preprocess.workers import MAX_THREADS, in_order
from transept.storage.files import load_object
from transept.storage.source import Source, model_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ASPECT = 200
MAX_VIDEO_PIXELS = 256_000 * 28 * 28  # of all frames as the model sees them: 128,000 tokens of two frames each


def smart_resize(height: int, width: int, factor: int = 28, min_pixels: int = 56**2, max_pixels: int = 28**2 * 1280) -> Size:
    """The size nearest to a picture's whose sides are multiples of ``factor``, with so many pixels.

    Raises:
        InputError: one side is more than 200 times as long as the other.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        what = f"a picture of {width} x {height} pixels is more than {MAX_ASPECT} times as long as wide."
        raise InputError(what, hint="Crop it, or cut it into pieces.")
    sides = round(height / factor) * factor, round(width / factor) * factor
    if sides[0] * sides[1] > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        sides = tuple(max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))  # type: ignore[assignment]
    elif sides[0] * sides[1] < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        sides = tuple(math.ceil(side * grow / factor) * factor for side in (height, width))  # type: ignore[assignment]
    return checked_target((height, width), sides)


@dataclass(slots=True)
class Patches:
    """Frames of pictures before rescaling, and what is known of each picture."""

    frames: list[list[Pixels]]  # of each picture; an image has one
    grids: list[tuple[int, int, int]]  # steps in time, rows and columns of patches


class PatchProcessor(BaseImageProcessor):
    """RGB, bicubic to a size near the picture's own; CLIP's means and standard deviations; a row of numbers for each patch.

    Args:
        size: ``shortest_edge`` and ``longest_edge`` are how many pixels a picture has at least and at most.
        min_pixels, max_pixels: the same by their older names; where they are given, they count.
        patch_size: pixels of a patch along a side.
        temporal_patch_size: frames of a patch; an image is repeated.
        merge_size: patches along a side that become one feature.
    """

    unwritten = frozenset({"min_pixels", "max_pixels"})
    inputs_named: ClassVar[tuple[str, str]]

    do_convert_rgb: bool | None = True
    resample: int = BICUBIC
    image_mean: float | list[float] = field(default_factory=lambda: list(CLIP_MEAN))
    image_std: float | list[float] = field(default_factory=lambda: list(CLIP_STD))
    patch_size: Annotated[int, Range(1, 1024)] = 14
    temporal_patch_size: Annotated[int, Range(1, 64)] = 2
    merge_size: Annotated[int, Range(1, 64)] = 2
    min_pixels: Count = derived(lambda c: c.size["shortest_edge"])
    max_pixels: Count = derived(lambda c: c.size["longest_edge"])

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values, size = super().upgrade(values), values.get("size")
        if isinstance(size, dict) and "min_pixels" in size:  # as the first files had it
            values = {name: size[name] for name in ("min_pixels", "max_pixels") if name in size} | values
            del values["size"]
        return values

    def validate(self) -> None:
        self.size = size_dict(self.size, "size", square=False)
        names = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
        found = {key: name for key, name in names.items() if name in self.__dict__}
        if found:
            self.size = self.size | {key: getattr(self, name) for key, name in found.items()}
            for name in found.values():
                setattr(self, name, None)  # they follow from the size again
        if self.size.keys() != {"shortest_edge", "longest_edge"} or self.size["shortest_edge"] > self.size["longest_edge"]:
            self.fail("size", "must hold shortest_edge and longest_edge, pixels at least and at most")
        super().validate()

    def target(self, height: int, width: int) -> Size:
        return smart_resize(height, width, self.patch_size * self.merge_size, self.min_pixels, self.max_pixels)

    def fixed_size(self) -> Size | None:
        return None

    def grid(self, size: Size, frames: int) -> tuple[int, int, int]:
        """Steps in time, rows and columns of patches of frames of this size."""
        block = self.patch_size * self.merge_size
        if size[0] % block or size[1] % block:
            what = f"a picture of {size[1]} x {size[0]} pixels has no whole blocks of {block} x {block}."
            raise InputError(what, hint="Leave do_resize on.")
        return -(-frames // self.temporal_patch_size), size[0] // self.patch_size, size[1] // self.patch_size

    def placed(self, found: Patches) -> dict[str, Any]:
        """All patches (N, C * T * patch_size^2) as one array, and the grids (P, 3)."""
        counts = [math.prod(grid) for grid in found.grids]
        first = found.frames[0][0]
        channels, kind = len(first.values), np.dtype(np.float32) if first.table is None else first.table.dtype
        numbers = channels * self.temporal_patch_size * self.patch_size**2
        out = np.empty((sum(counts), numbers), kind)
        starts = np.cumsum([0, *counts])

        def one(index: int) -> None:
            rows = out[starts[index] : starts[index + 1]]
            self._spread(found.frames[index], found.grids[index], rows)

        in_order(one, range(len(counts)), "image")
        return dict(zip(self.inputs_named, (out, np.array(found.grids, np.int64)), strict=True))

    def _spread(self, frames: Sequence[Pixels], grid: tuple[int, int, int], rows: NDArray[Any]) -> None:
        """Write the patches of one picture, the patches of one feature one after the other."""
        side, merge, time = self.patch_size, self.merge_size, self.temporal_patch_size
        blocks = (grid[1] // merge, grid[2] // merge)
        out = rows.reshape(grid[0], *blocks, merge, merge, -1, time, side, side)
        for number, pixels in enumerate(frames):
            step, first = divmod(number, time)
            places = range(first, time if number == len(frames) - 1 else first + 1)  # the last frame again where one lacks
            for channel, plane in enumerate(pixels.values):
                cells = plane.reshape(blocks[0], merge, side, blocks[1], merge, side).transpose(0, 3, 1, 4, 2, 5)
                for row, levels in enumerate(cells):  # in pieces that stay in the processor's cache
                    band = levels if pixels.table is None else np.take(pixels.table[channel], levels, mode="clip")
                    for place in places:
                        out[step, row, :, :, :, channel, place] = band


class Qwen2VLImageProcessor(PatchProcessor):
    """``pixel_values`` (N, C * T * patch_size^2) of patches of all images, and ``image_grid_thw`` (P, 3)."""

    model_types = ("qwen2_5_vl", "qwen2_vl")
    model_input_names: ClassVar[list[str]] = ["pixel_values", "image_grid_thw"]
    inputs_named = ("pixel_values", "image_grid_thw")

    size: Any = field(default_factory=lambda: {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})

    def prepare(self, images: Any) -> Any:
        every = list(flat_images(images))
        if not every:
            raise InputError("the batch holds no image.")
        frames = in_order(self.read_pixels, every, "image", parallel=len(set(map(id, every))) == len(every))
        return Patches([[frame] for frame in frames], [self.grid(frame.size, 1) for frame in frames])

    def inputs(self, prepared: Any, return_tensors: str | None) -> dict[str, Any]:
        return self.placed(prepared)

    def get_number_of_image_patches(self, height: int, width: int, images_kwargs: dict[str, Any] | None = None) -> int:
        """How many patches an image of this size has, with settings for this call alone."""
        settings = self.with_settings(**images_kwargs or {})
        return math.prod(settings.grid(settings.target(height, width), 1))


Qwen2VLImageProcessorFast = Qwen2VLImageProcessor


class Qwen2VLVideoProcessor(PatchProcessor):
    """``pixel_values_videos`` (N, C * T * patch_size^2) of patches of all videos, and ``video_grid_thw`` (P, 3).

    Args:
        do_sample_frames: take some of the frames only: ``num_frames``, or ``fps`` a second, which are between ``min_frames``
            and ``max_frames``.
        cap_pixels_per_frame: whether frames share the pixels of ``max_video_tokens`` tokens, of which a tenth is kept for text.
    """

    model_types = ("qwen2_5_vl", "qwen2_vl")
    section = noun = "video_processor"
    file_name = "video_preprocessor_config.json"
    model_input_names: ClassVar[list[str]] = ["pixel_values_videos", "video_grid_thw"]
    inputs_named = ("pixel_values_videos", "video_grid_thw")

    size: Any = field(default_factory=lambda: {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768})
    do_sample_frames: bool | None = False
    fps: Positive | None = None
    num_frames: Count | None = None
    min_frames: Count = 4
    max_frames: Count = 768
    cap_pixels_per_frame: bool | None = True
    max_video_tokens: Count = 128000

    @classmethod
    def read(cls, name_or_path: Any, hub: dict[str, Any], file_name: str | None = None) -> tuple[dict[str, Any], Path]:
        """The settings of videos in a file of any layout, or those of images where a model has no others."""
        own = None if os.path.isfile(name_or_path) else Source(model_name(name_or_path), **hub).find(cls.file_name)
        if own is not None:
            return load_object(own), own
        sections = (find_section(name_or_path, section, **hub) for section in (cls.section, "image_processor"))
        return next((found for found in sections if found is not None), None) or super().read(name_or_path, hub)

    def __call__(  # type: ignore[override]
        self,
        videos: Any,
        *,
        return_tensors: str | None = None,
        video_metadata: Any = None,
        return_metadata: bool = False,
        **overrides: Any,
    ) -> BatchFeature:
        """Prepare one video or many.

        Args:
            videos: arrays (F, H, W, C) or (F, C, H, W), lists of pictures, or video files (which need PyAV), or one of these.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for arrays.
            video_metadata: for each video a mapping with its ``fps``, where that is no file.
            return_metadata: whether to return what is known of the videos as ``video_metadata``.
            overrides: settings for this call alone.

        Raises:
            InputError, FormatError: a video that cannot be used, with its place in the batch.
            MissingExtraError: a file, where PyAV is not installed.
        """
        settings, batch = self.for_call(return_tensors, overrides), videos_of(videos)
        told = [None] * len(batch) if video_metadata is None else video_metadata
        told = told if isinstance(told, list | tuple) else [told]
        if len(told) != len(batch):
            raise InputError(f"`video_metadata` is for {len(told)} videos, but there are {len(batch)}.")
        found = in_order(lambda pair: settings._video(*pair), list(zip(batch, told, strict=True)), "video", parallel=False)
        made = settings.placed(Patches([frames for frames, _, _ in found], [grid for _, grid, _ in found]))
        output = BatchFeature(made, return_tensors)
        if return_metadata:
            output["video_metadata"] = [metadata for _, _, metadata in found]
        return output

    def _video(self, video: Any, told: Any) -> tuple[list[Pixels], tuple[int, int, int], Metadata]:
        """The frames of one video that are taken, its grid, and what is known of it."""
        with open_frames(video, self.choose, told) as (taken, metadata):
            count, settings = len(metadata.frames_indices or ()), self
            if self.cap_pixels_per_frame:
                shared = int(self.max_video_tokens * (self.patch_size * self.merge_size) ** 2 * 0.9)
                share = shared * self.temporal_patch_size // count
                least = int(self.size["shortest_edge"] * 1.05)
                settings = self.with_settings(max_pixels=max(min(self.size["longest_edge"], share), least))
            frames = settings._resized(taken, count)
        return frames, settings.grid(frames[0].size, len(frames)), metadata

    def _resized(self, taken: Iterator[Any], count: int) -> list[Pixels]:
        """So many frames, a few of them at a time, so that those of full size need not all be held."""
        frames: list[Pixels] = []
        while some := list(islice(taken, MAX_THREADS)):
            frames += in_order(self.read_pixels, some, "frame", first=len(frames))
            if len({frame.size for frame in frames}) > 1:
                raise InputError("a video has frames of different sizes.", hint="Give all frames one size.")
            height, width = frames[0].size
            if count * height * width > MAX_VIDEO_PIXELS:
                what = f"a video of {count} frames of {width} x {height} has more than the {MAX_VIDEO_PIXELS} pixels allowed."
                raise InputError(what, hint="Take some of them: do_sample_frames=True, and num_frames= or fps=.")
        return frames

    def choose(self, metadata: Metadata) -> Sequence[int]:
        """The numbers of the frames that are looked at."""
        if not self.do_sample_frames:
            return range(metadata.total_num_frames)
        limits = {"least": self.min_frames, "most": self.max_frames, "step": self.temporal_patch_size}
        return chosen(metadata, fps=self.fps, num_frames=self.num_frames, **limits)
