"""Pipelines over pictures and over sounds: opening them side by side, and batches of them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transept.core.model import Backbone
from transept.errors import InputError, TranseptError
from transept.kinds.audio import SoundBackbone
from transept.kinds.image import ImageBackbone, PatchBackbone
from transept.kinds.spectrograms import SpectrogramBackbone
from transept.pipelines.base import Options, TaskPipeline
from transept.pipelines.batching import Sample, attempt
from transept.preprocess.workers import in_order

# Media weigh far more than texts, so that few are read ahead, and fewer where the files are large.
MOST_ITEMS = 32
MOST_BYTES = 64 * 2**20
_PATCH = 16  # pixels to a side of what counts as a position where a network has no patches


class AudioOptions(Options):
    """Options of tasks over sounds.

    Args:
        sampling_rate: the rate of arrays that come without one, in Hz; the model's when absent, with a warning.
    """

    sampling_rate: int | None = None


class ImageOptions(Options):
    """Options of tasks over pictures.

    Args:
        image_processor_kwargs: settings of the image processor for this call.
        timeout: taken for the reference's sake: it waits for web addresses, which are not fetched here.
    """

    image_processor_kwargs: Mapping[str, Any] | None = None
    timeout: float | None = None


class MediaPipeline(TaskPipeline[Any]):
    """A task over files or arrays of one kind."""

    noun: ClassVar[str]
    reads: ClassVar[type[Backbone]]
    axes: ClassVar[int]  # of an array that is one input, at most
    most_items, most_bytes = MOST_ITEMS, MOST_BYTES

    def check_model(self) -> None:
        self.need(isinstance(self.model.body, self.reads), f"reads {self.noun}s")

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        """As of every pipeline; an array with a batch axis is a list of inputs."""
        batch = hasattr(inputs, "ndim") and not self.is_one(inputs)
        return super().__call__(list(inputs) if batch else inputs, **options)

    def is_one(self, inputs: Any) -> bool:
        axes = getattr(inputs, "ndim", None)
        return axes <= self.axes if axes is not None else hasattr(inputs, "read") or super().is_one(inputs)

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        objects = [each for each in map(self.medium, items) if not isinstance(each, str | bytes | os.PathLike)]
        distinct = len(set(map(id, objects))) == len(objects)  # no two threads may decode one object
        return in_order(lambda item: attempt(self.read, item, options), items, self.noun, parallel=distinct)

    def medium(self, item: Any) -> Any:
        """The file or the array of one input."""
        return item

    @abstractmethod
    def read(self, item: Any, options: Any) -> list[Sample]:
        """The rows for the model that one input becomes."""


class ImagePipeline(MediaPipeline):
    """A task over pictures; its options may have ``image_processor_kwargs``, settings of the image processor."""

    noun, reads, axes = "image", ImageBackbone, 3
    components: ClassVar[tuple[str, ...]] = ("image_processor",)
    image_processor: Any

    def read(self, item: Any, options: Any) -> list[Sample]:
        """The row of a picture: its ``pixel_values`` (C, H, W), and ``pixel_mask`` (H, W) where some of them are padding."""
        settings = getattr(options, "image_processor_kwargs", None) or {}
        prepared = self.image_processor(item, **settings)
        values = prepared["pixel_values"]
        if len(values) != 1:
            raise InputError(f"an input must be one image, but holds {len(values)}.", hint="Pass a flat list of images.")
        inputs, masks = {"pixel_values": values[0]}, prepared.get("pixel_mask")
        if masks is not None and "pixel_mask" in self.model.body.reads and not np.all(masks[0]):
            inputs["pixel_mask"] = masks[0]
        return [Sample(inputs, self.positions(*values[0].shape[1:]), group=(values[0].shape, *inputs))]

    def positions(self, height: int, width: int) -> int:
        """How much a picture counts in a batch: its patches with what stands before them, or as many as a ViT would have."""
        backbone = self.model.body
        if not isinstance(backbone, PatchBackbone):
            return -(-height // _PATCH) * -(-width // _PATCH)
        rows, columns = backbone.grid(height, width)
        return backbone.prefix_tokens + rows * columns

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        names = [name for name in samples[0].inputs if name.startswith("pixel_")]
        stacked = {name: np.stack([sample.inputs[name] for sample in samples]) for name in names}
        return {name: torch.from_numpy(values).to(self.model.device) for name, values in stacked.items()}


class AudioPipeline(MediaPipeline):
    """A task over sounds, with :class:`AudioOptions`; its model reads waveforms or spectrograms of one size."""

    noun, reads, axes = "sound", SoundBackbone, 2
    components: ClassVar[tuple[str, ...]] = ("feature_extractor",)
    feature_extractor: Any

    def check_model(self) -> None:
        super().check_model()
        # A norm over a whole row counts its padding in, so that such rows may only be batched with their like.
        self.paddable = not any(isinstance(module, nn.GroupNorm) for module in self.model.modules())

    def is_one(self, inputs: Any) -> bool:
        """Whether this is one sound; so are ``(array, rate)`` and a list of samples."""
        if isinstance(inputs, list | tuple) and inputs:
            rated = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], int | np.integer)
            return rated or isinstance(inputs[0], int | float | np.number)
        return super().is_one(inputs)

    def read(self, item: Any, options: Any) -> list[Sample]:
        """The rows of a sound, which must be at least as long as one frame (``InputError``)."""
        sound: NDArray[np.float32] = self.feature_extractor.load([item], options.sampling_rate)[0]
        rate, backbone = self.feature_extractor.sampling_rate, self.model.body
        if isinstance(backbone, SpectrogramBackbone):
            name = backbone.main_input_name
            values = self.feature_extractor(sound, sampling_rate=rate, return_tensors="np")[name][0]
            return [Sample({name: values}, max(values.shape))]
        least = backbone.receptive_field
        if len(sound) < least:
            short = f"the sound has {len(sound)} samples at {rate} Hz, but the model needs at least {least} for one frame."
            raise InputError(short, hint="Leave it out, or pad it with silence.")
        return self.rows(item, sound, options)

    def rows(self, item: Any, samples: NDArray[np.float32], options: Any) -> list[Sample]:
        return [self.row(samples)]

    def row(self, samples: NDArray[np.float32], **more: Any) -> Sample:
        """A row of samples; its length is its number of frames."""
        group = None if self.paddable else len(samples)
        return Sample({"samples": samples, **more}, self.model.body.feature_lengths(len(samples)), group)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Rows as (B, S) on the model's device, each normalised as if alone; no mask where nothing is padded.

        Spectrograms are put one upon the other.
        """
        if "samples" not in samples[0].inputs:
            stacked = {name: np.stack([sample.inputs[name] for sample in samples]) for name in samples[0].inputs}
            return {name: torch.from_numpy(values).to(self.model.device) for name, values in stacked.items()}
        rows = [sample.inputs["samples"] for sample in samples]
        padded, rate = len(set(map(len, rows))) > 1, self.feature_extractor.sampling_rate
        how = {"padding": padded, "return_attention_mask": padded, "return_tensors": "pt", "sampling_rate": rate}
        return {name: value.to(self.model.device) for name, value in self.feature_extractor(rows, **how).items()}
