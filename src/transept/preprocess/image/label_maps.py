"""Label maps: the class of each pixel, prepared beside the pictures that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from transept.errors import InputError
from transept.preprocess.features import BatchFeature, as_numpy, needed
from transept.preprocess.image.answers import semantic_maps, taken
from transept.preprocess.image.arrays import Size
from transept.preprocess.image.base import NEAREST, BaseImageProcessor, Prepared
from transept.preprocess.media import open_image
from transept.preprocess.workers import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

IGNORED = 255  # the label that losses leave out
_LARGEST = 2**31 - 1


class SegmentationImageProcessor(BaseImageProcessor):
    """An image processor that also takes label maps, and makes maps of what a model answers.

    Args:
        do_reduce_labels: whether label maps count their classes from 1, with 0 for what belongs to none (as ADE20K does):
            0 becomes 255, which losses ignore, 255 stays, and all others are lowered by one. Older files call it
            ``reduce_labels``.
    """

    aliases: ClassVar[dict[str, str]] = {"reduce_labels": "do_reduce_labels"}

    do_reduce_labels: bool | None = False

    def __call__(
        self, images: Any, segmentation_maps: Any = None, *, return_tensors: str | None = None, **overrides: Any
    ) -> BatchFeature:
        """Prepare pictures, and the label maps that belong to them as ``labels`` (B, H, W) of int64.

        A map is resized and cropped as its picture, always to the nearest label. Where it is padded, it holds 255.

        Args:
            images: see :meth:`BaseImageProcessor.__call__`.
            segmentation_maps: a map for each picture: an array (H, W) of whole numbers, a picture of mode ``L``, ``P``
                (whose indices are the labels) or ``I``, or what such a picture can be opened from.
            return_tensors: as for pictures alone.
            overrides: settings for this call alone.

        Raises:
            InputError: also where a map has not the size of its picture, or there are more or fewer maps than pictures.
        """
        settings = self.for_call(return_tensors, overrides)
        prepared = settings.prepare(images)
        found = settings.inputs(prepared, return_tensors)
        if segmentation_maps is not None:
            found["labels"] = settings.label_maps(segmentation_maps, prepared)
        return BatchFeature(found, return_tensors)

    def label_maps(self, maps: Any, prepared: Prepared) -> list[NDArray[np.int64]]:
        """Label maps (H, W) of the size that each picture has now."""
        flat = list(_flat(maps))
        if len(flat) != len(prepared.opened):
            raise InputError(f"there are {len(flat)} segmentation maps for {len(prepared.opened)} images.")
        pairs = list(zip(flat, prepared.opened, self.canvases(prepared.resized), strict=True))
        distinct = len(set(map(id, flat))) == len(flat)
        return in_order(lambda pair: self._label_map(*pair), pairs, "segmentation map", parallel=distinct)

    def _label_map(self, source: Any, opened: Size, place: tuple[Size, Size]) -> NDArray[np.int64]:
        labels = labels_of(source)
        if labels.shape != opened:
            wrong = f"a segmentation map of {labels.shape[1]} x {labels.shape[0]} labels"
            raise InputError(f"{wrong} does not belong to an image of {opened[1]} x {opened[0]} pixels.")
        if self.do_reduce_labels:
            labels = np.where((labels == 0) | (labels == IGNORED), IGNORED, labels - 1)
        if self.do_resize:
            kind = np.int32 if labels.max() > 255 else np.uint8
            image = needed("PIL.Image", "pillow", "vision", "Preparing images").fromarray(labels.astype(kind))
            labels = np.asarray(self.resize(image, NEAREST))
        if self.do_center_crop:
            height, width = self.crop_size["height"], self.crop_size["width"]
            top, left = (labels.shape[0] - height) // 2, (labels.shape[1] - width) // 2
            labels = _moved(labels, (height, width), (-top, -left))
        return _moved(labels, *place).astype(np.int64)

    def post_process_semantic_segmentation(
        self, outputs: Any, target_sizes: Any = None, return_segmentation_scores: bool = False
    ) -> list[Any]:
        """The class of each pixel, of ``logits`` (B, K, h, w).

        Args:
            outputs: what the model returned.
            target_sizes: (height, width) of each picture, to which the logits are resized (bilinear), as a list or as a
                tensor (B, 2); the logits' own size where it is ``None``.
            return_segmentation_scores: give each picture's logits as well.

        Returns:
            A tensor (height, width) of int64 for each picture, or a mapping of that as ``segmentation`` and of
            ``segmentation_scores`` (K, height, width).
        """
        return semantic_maps(taken(outputs, "logits"), target_sizes, return_segmentation_scores)


def labels_of(source: Any) -> NDArray[Any]:
    """A label map (H, W) of whole numbers (``InputError``: it is none)."""
    if (array := as_numpy(source)) is None:
        image = open_image(source)
        array = np.asarray(image)
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[2]):
        array = array[0] if array.shape[0] == 1 else array[:, :, 0]
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"an array of shape {array.shape} is no segmentation map.", hint="Pass one label a pixel, as (H, W).")
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and not (array == np.rint(array)).all()):
        raise InputError(f"a segmentation map of {array.dtype} does not hold labels.", hint="Pass whole numbers.")
    if not 0 <= array.min() <= array.max() <= _LARGEST:
        wrong = f"a segmentation map holds labels from {array.min()} to {array.max()}."
        raise InputError(wrong, hint=f"Labels are classes from 0; {IGNORED} is ignored by losses.")
    return array.astype(np.int64) if array.dtype.kind in "bf" or array.dtype.itemsize < 4 else array


def _moved(labels: NDArray[Any], size: Size, offset: Size) -> NDArray[Any]:
    """A map on a canvas of another size, at a top and left that may lie outside of it; the rest is ignored."""
    if labels.shape == size and offset == (0, 0):
        return labels
    made = np.full(size, IGNORED, np.int64)
    into, out_of = [], []
    for length, place, side in zip(labels.shape, offset, size, strict=True):
        into.append(slice(max(0, place), max(0, min(side, place + length))))
        out_of.append(slice(max(0, -place), max(0, min(length, side - place))))
    made[tuple(into)] = labels[tuple(out_of)]
    return made


def _flat(maps: Any) -> Iterator[Any]:
    """The maps in a nest of lists and of arrays with a batch axis."""
    shape: tuple[int, ...] = getattr(maps, "shape", ())
    if isinstance(maps, list | tuple) or len(shape) > 3 or (len(shape) == 3 and 1 not in (shape[0], shape[2])):
        for each in maps:
            yield from _flat(each)
    else:
        yield maps
