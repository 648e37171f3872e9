"""Pipelines over pictures and over sounds: opening them side by side, and batches of them.

Media weigh far more than texts, so that few are read ahead, and fewer where the files are large.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transept.core.model import Backbone
from transept.core.pixels import ImageBackbone
from transept.core.waves import AudioBackbone
from transept.errors import InputError, InputTypeError, TranseptError
from transept.pipelines.base import Pipeline
from transept.pipelines.batching import Sample, attempt, read_ahead
from transept.preprocess.workers import in_order

O = TypeVar("O")  # noqa: E741 (the options of a task, a dataclass)

MOST_ITEMS = 32
MOST_BYTES = 64 * 2**20


class MediaPipeline(Pipeline[O]):
    """A task over files or arrays of one kind; see :class:`transept.pipelines.base.Pipeline`.

    Raises:
        InputTypeError: the model reads something else.
    """

    noun: ClassVar[str]
    reads: ClassVar[type[Backbone]]
    axes: ClassVar[int]
    """Axes of an array that is one input at most."""

    def check_model(self) -> None:
        if not isinstance(self.model.backbone, self.reads):
            name = type(self.model).__name__
            raise InputTypeError(f"the task {self.task!r} needs a model that reads {self.noun}s, and {name} does not.")

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """As of every pipeline; an array with a batch axis is a list of inputs."""
        batch = hasattr(inputs, "ndim") and not self.is_one(inputs)
        return super().__call__(list(inputs) if batch else inputs, **options)

    def is_one(self, inputs: Any) -> bool:
        """Whether this is one input: a file, a file object, an array without a batch axis, ..."""
        axes = getattr(inputs, "ndim", None)
        return axes <= self.axes if axes is not None else hasattr(inputs, "read") or super().is_one(inputs)

    def read_ahead(self, items: Iterable[Any]) -> Iterator[list[Any]]:
        return read_ahead(items, MOST_ITEMS, MOST_BYTES)

    def opened(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """``function`` of each item, or the error of ours that it raised, on several threads."""
        objects = [item for item in items if not isinstance(item, str | bytes | os.PathLike)]
        distinct = len(set(map(id, objects))) == len(objects)  # no two threads may decode one object
        return in_order(lambda item: attempt(function, item), items, self.noun, parallel=distinct)


class ImagePipeline(MediaPipeline[O]):
    """A task over pictures, of a model with a backbone over patches and its image processor."""

    noun, reads, axes = "image", ImageBackbone, 3
    components: ClassVar[tuple[str, ...]] = ("image_processor",)
    image_processor: Any

    def prepare(self, items: Sequence[Any], options: O) -> list[list[Sample] | TranseptError]:
        """One row a picture; rows of one size make a batch."""
        return self.opened(lambda item: [self.row(item, options)], items)

    def row(self, item: Any, options: O) -> Sample:
        """The ``pixel_values`` (C, H, W) of one picture; its length is its number of patches, with what stands before them."""
        values = self.image_processor(item, **self.settings(options))["pixel_values"]
        if len(values) != 1:
            raise InputError(f"an input must be one image, but holds {len(values)}.", hint="Pass a flat list of images.")
        backbone = self.model.backbone
        assert isinstance(backbone, ImageBackbone)
        rows, columns = backbone.grid(*values[0].shape[1:])
        return Sample({"pixel_values": values[0]}, backbone.prefix_tokens + rows * columns, group=values[0].shape)

    def settings(self, options: O) -> dict[str, Any]:
        return {}

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Rows as (B, C, H, W) on the model's device."""
        values = torch.from_numpy(np.stack([sample.inputs["pixel_values"] for sample in samples]))
        return {"pixel_values": values.to(self.model.device)}


class AudioPipeline(MediaPipeline[O]):
    """A task over sounds, of a model with a backbone over frames of a waveform and its feature extractor.

    Its options have ``sampling_rate``, that of arrays without one.
    """

    noun, reads, axes = "sound", AudioBackbone, 2
    components: ClassVar[tuple[str, ...]] = ("feature_extractor",)
    feature_extractor: Any

    def check_model(self) -> None:
        super().check_model()
        # A norm over a whole row counts its padding in, so that such rows may only be batched with their like.
        self.paddable = not any(isinstance(module, nn.GroupNorm) for module in self.model.modules())

    @property
    def frames(self) -> AudioBackbone:
        """The model's backbone, which knows how many frames there are."""
        assert isinstance(self.model.backbone, AudioBackbone)
        return self.model.backbone

    def is_one(self, inputs: Any) -> bool:
        """Whether this is one sound; so are ``(array, rate)`` and a list of samples."""
        if isinstance(inputs, list | tuple) and inputs:
            rated = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], int | np.integer)
            return rated or isinstance(inputs[0], int | float | np.number)
        return super().is_one(inputs)

    def prepare(self, items: Sequence[Any], options: O) -> list[list[Sample] | TranseptError]:
        return self.opened(lambda item: self.rows(item, self.samples(item, options), options), items)

    def samples(self, item: Any, options: Any) -> NDArray[np.float32]:
        """One sound (S) at the model's rate.

        Raises:
            InputError: it is shorter than one frame.
        """
        sound: NDArray[np.float32] = self.feature_extractor.load([item], options.sampling_rate)[0]
        least, rate = self.frames.receptive_field, self.feature_extractor.sampling_rate
        if len(sound) < least:
            raise InputError(
                f"the sound has {len(sound)} samples at {rate} Hz, but the model needs at least {least} for one frame.",
                hint="Leave it out, or pad it with silence.",
            )
        return sound

    def rows(self, item: Any, samples: NDArray[np.float32], options: O) -> list[Sample]:
        """The rows for the model that one sound (S) becomes."""
        return [self.row(samples)]

    def row(self, samples: NDArray[np.float32], **more: Any) -> Sample:
        """A row of samples; its length is its number of frames."""
        group = None if self.paddable else len(samples)
        return Sample({"samples": samples, **more}, self.frames.feature_lengths(len(samples)), group)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Rows as (B, S) on the model's device, each normalised as if alone; no mask where nothing is padded."""
        rows = [sample.inputs["samples"] for sample in samples]
        padded = len(set(map(len, rows))) > 1
        rate = self.feature_extractor.sampling_rate
        batch = self.feature_extractor(
            rows, padding=padded, return_attention_mask=padded, return_tensors="pt", sampling_rate=rate
        )
        return {name: value.to(self.model.device) for name, value in batch.items()}
