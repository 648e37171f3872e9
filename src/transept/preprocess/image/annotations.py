"""COCO's annotations of one picture as what a detector learns from (Lin et al. 2014; Kirillov et al. 2019).

Boxes are (left, top, right, bottom) in pixels here; :func:`fitted` scales them with the picture. Shapes: n objects.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import InputError, InputTypeError, MissingExtraError
from transept.preprocess.features import needed
from transept.preprocess.image.arrays import MAX_PIXELS, Size
from transept.preprocess.media import load_image
from transept.storage.files import safe_join

if TYPE_CHECKING:
    from numpy.typing import NDArray

Target = dict[str, Any]
Rows = list[tuple[str, Mapping[str, Any]]]
_FAR = 2**20  # pixels beyond which a polygon's corners are not followed
_FINE = 5  # points a pixel and axis where polygons are drawn, as in pycocotools


def coco_objects(annotation: Any, size: Size, with_masks: bool) -> Target:
    """An annotation of detection, ``{"image_id": ..., "annotations": [...]}``, for a picture of this (height, width).

    Crowds are left out. Boxes (x, y, width, height) are clipped to the picture; those without area are left out.
    """
    every = _rows(annotation, "annotations")
    rows = [(where, row) for where, row in every if "iscrowd" not in row or not _whole(row, "iscrowd", where)]
    boxes = _numbers(rows, "bbox", (4,))
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2] = boxes[:, 0::2].clip(0, size[1])
    boxes[:, 1::2] = boxes[:, 1::2].clip(0, size[0])
    keep = (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 2] > boxes[:, 0])
    target: Target = {
        "image_id": np.array([_whole(annotation, "image_id", "the annotation")], np.int64),
        "class_labels": _wholes(rows, "category_id")[keep],
        "boxes": boxes[keep],
        "area": _numbers(rows, "area", ())[keep],
        "iscrowd": np.zeros(int(keep.sum()), np.int64),
        "orig_size": np.array(size, np.int64),
    }
    if rows and "keypoints" in rows[0][1]:
        count = 3 * (_finite(rows[0][1]["keypoints"], "keypoints", rows[0][0]).size // 3)
        target["keypoints"] = _numbers(rows, "keypoints", (count,))[keep].reshape(-1, 3)
    if with_masks:
        kept = [pair for pair, stays in zip(rows, keep, strict=True) if stays]
        masks = [mask_of(row.get("segmentation"), size, where) for where, row in kept]
        target["masks"] = np.stack(masks) if masks else np.zeros((0, *size), bool)
    return target


def coco_segments(annotation: Any, size: Size, folder: str | os.PathLike[str] | None, with_masks: bool) -> Target:
    """A panoptic annotation, ``{"image_id": ..., "file_name": ..., "segments_info": [...]}``, for a picture of this size.

    The picture ``file_name`` in ``folder`` paints each segment in the colour (r, g, b) of its id, r + 256 g + 65536 b.
    """
    rows = _rows(annotation, "segments_info")
    name = annotation.get("file_name")
    if folder is None or not isinstance(name, str):
        raise InputError("a panoptic annotation needs its picture of segments.", hint="Pass file_name in it, and masks_path.")
    colors = np.asarray(load_image(safe_join(folder, name))).astype(np.int64)
    if colors.shape[:2] != size:
        wrong = f"{name!r} has {colors.shape[1]} x {colors.shape[0]} pixels"
        raise InputError(f"{wrong}, but its image {size[1]} x {size[0]}.")
    ids = _wholes(rows, "id")
    masks = (colors @ np.array([1, 256, 65536])) == ids[:, None, None]
    for place, mask in enumerate(masks):
        if not mask.any():
            raise InputError(f"no pixel of {name!r} has the colour of the segment {ids[place]}.")
    key = "image_id" if "image_id" in annotation else "id"
    target = {
        "image_id": np.array([_whole(annotation, key, "the annotation")], np.int64),
        "class_labels": _wholes(rows, "category_id"),
        "boxes": boxes_of(masks),
        "area": _numbers(rows, "area", ()),
        "iscrowd": _wholes(rows, "iscrowd"),
        "orig_size": np.array(size, np.int64),
    }
    return target | ({"masks": masks} if with_masks else {})


def fitted(target: Target, resized: Size, padded: Size, shares: bool) -> Target:
    """A target for its picture after resizing, and padding at the right and at the bottom.

    With ``shares``, boxes become (x, y, width, height) of their centre, as shares of the padded size.
    """
    opened = target["orig_size"].tolist()
    rows, columns = (after / before for after, before in zip(resized, opened, strict=True))
    made = target | {"size": np.array(padded, np.int64), "area": target["area"] * np.float32(rows * columns)}
    boxes = target["boxes"] * np.array([columns, rows, columns, rows], np.float32)
    if shares:
        low, high = boxes[:, :2], boxes[:, 2:]
        boxes = np.concatenate([(low + high) / 2, high - low], 1)
        boxes /= np.array([padded[1], padded[0]] * 2, np.float32)
    made["boxes"] = boxes
    if "masks" in target:
        made["masks"] = np.zeros((len(boxes), *padded), bool)
        picture = needed("PIL.Image", "pillow", "vision", "Preparing masks")
        for mask, out in zip(target["masks"], made["masks"], strict=True):
            image = picture.fromarray(mask.astype(np.uint8)).resize(resized[::-1], picture.Resampling.NEAREST)
            out[: resized[0], : resized[1]] = np.asarray(image)
    return made


def boxes_of(masks: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The first and last column and row of each mask (n, H, W) that is not empty, as (n, 4)."""
    boxes = np.zeros((len(masks), 4), np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
        box[:] = columns[0], rows[0], columns[-1], rows[-1]
    return boxes


def mask_of(shape: Any, size: Size, where: str) -> NDArray[np.bool_]:
    """Polygons ``[[x, y, x, y, ...], ...]``, or COCO's runs ``{"size": ..., "counts": ...}``, as a mask (H, W).

    Polygons are drawn by pycocotools where it is installed, and else by Pillow, from which it differs at the edges.
    """
    if isinstance(shape, Mapping):
        return _unrolled(shape, size, where)
    if not isinstance(shape, list | tuple):
        raise InputTypeError(
            f"`segmentation` of {where} is {shape!r:.80}.", hint="Pass polygons, or runs with size and counts."
        )
    polygons = [_finite(polygon, "segmentation", where) for polygon in shape]
    if not all(polygon.ndim == 1 and polygon.size >= 6 and polygon.size % 2 == 0 for polygon in polygons):
        raise InputError(f"`segmentation` of {where} holds a polygon of fewer than three corners (x, y).")
    try:
        coco = needed("pycocotools.mask", "pycocotools", "vision", "Drawing polygons as COCO does")
    except MissingExtraError:
        return _drawn(polygons, size)
    found = coco.decode(coco.frPyObjects([polygon.tolist() for polygon in polygons], *size))
    return np.asarray(found.reshape(*size, -1).any(2))


def _drawn(polygons: list[NDArray[Any]], size: Size) -> NDArray[np.bool_]:
    """Polygons as Pillow draws them: finer than pixels, whose middles count."""
    made = np.zeros(size, bool)
    picture = needed("PIL.Image", "pillow", "vision", "Drawing polygons")
    pen = needed("PIL.ImageDraw", "pillow", "vision", "Drawing polygons").Draw
    for polygon in polygons:
        corners = polygon.reshape(-1, 2).clip(-_FAR, _FAR)
        left, top = (int(side) for side in np.floor(corners.min(0)).clip(0, size[::-1]))
        right, bottom = (int(side) for side in np.ceil(corners.max(0)).clip(0, size[::-1]))
        width, height = right - left, bottom - top
        if width < 1 or height < 1:
            continue
        fine = _FINE if width * height * _FINE**2 <= MAX_PIXELS else 1
        image = picture.new("L", (width * fine, height * fine))
        points = np.rint((corners - [left, top]) * fine - 0.5).astype(int)
        pen(image).polygon(points.ravel().tolist(), fill=1)
        made[top:bottom, left:right] |= np.asarray(image)[fine // 2 :: fine, fine // 2 :: fine] > 0
    return made


def _unrolled(runs: Mapping[str, Any], size: Size, where: str) -> NDArray[np.bool_]:
    """Lengths of runs, in turn outside and inside of an object, down the columns."""
    counts = runs.get("counts")
    if isinstance(counts, str | bytes):
        counts = _unpacked(counts.encode() if isinstance(counts, str) else counts)
    try:
        lengths, told = np.array(counts, np.int64), tuple(int(side) for side in runs.get("size", ()))
    except (TypeError, ValueError, OverflowError):
        lengths, told = np.zeros(0, np.int64), ()
    fits = lengths.ndim == 1 and lengths.size and lengths.min() >= 0 and lengths.max() <= math.prod(size)
    if told != size or not fits or lengths.sum() != math.prod(size):
        raise InputError(f"the runs of {where} are not those of an image of {size[1]} x {size[0]} pixels.")
    inside = np.arange(lengths.size) % 2 == 1
    return np.ascontiguousarray(np.repeat(inside, lengths).reshape(size[::-1]).T)


def _unpacked(text: bytes) -> list[int]:
    """COCO's compressed lengths: five bits a character from 48 on, the sixth to go on; from the fourth on differences."""
    lengths: list[int] = []
    value = shift = 0
    for character in text:
        bits = character - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32 and shift < 64:
            continue
        value -= (bits & 16) << (shift - 4)
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    return lengths


def _rows(annotation: Any, key: str) -> Rows:
    """The objects of an annotation, each with what messages call it."""
    rows = annotation.get(key) if isinstance(annotation, Mapping) else None
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        wrong = f"an annotation must be a mapping with a list of mappings as {key!r}, but is {annotation!r:.80}."
        raise InputTypeError(wrong, hint="`format` says whether it is one of coco_detection or of coco_panoptic.")
    return [(f"annotation {place}", row) for place, row in enumerate(rows)]


def _finite(value: Any, key: str, where: str) -> NDArray[np.float64]:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.array(math.nan)
    if not np.isfinite(array).all():
        raise InputError(f"`{key}` of {where} is {value!r:.80}.", hint="It must hold finite numbers.")
    return array


def _numbers(rows: Rows, key: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """One number, or numbers, of each object: (n, *shape)."""
    made = np.zeros((len(rows), *(shape or (1,))), np.float32)
    for out, (where, row) in zip(made, rows, strict=True):
        value = _finite(row.get(key), key, where)
        if value.shape != shape:
            raise InputError(f"`{key}` of {where} is {row[key]!r:.80}, which has not the shape {shape}.")
        out[...] = value.clip(-1e9, 1e9)
    return made.reshape(len(rows), *shape)


def _wholes(rows: Rows, key: str) -> NDArray[np.int64]:
    return np.array([_whole(row, key, where) for where, row in rows], np.int64)


def _whole(row: Mapping[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if isinstance(value, float | np.floating) and float(value).is_integer():  # libraries that augment pictures make floats
        value = int(value)
    if not isinstance(value, int | np.integer) or not -(2**63) <= value < 2**63:
        raise InputError(f"`{key}` of {where} is {value!r:.80}, which is no whole number.")
    return int(value)
