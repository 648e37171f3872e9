"""What models answer about pictures, turned into maps, depths and boxes. torch is imported when it is needed.

Shapes: B batch, Q queries, K classes, (h, w) of a model's answer, (H, W) of a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import BatchFeature, as_numpy

if TYPE_CHECKING:
    from torch import Tensor

    from transept.preprocess.image.arrays import Size

_AT_ONCE = 2**23  # scores of a picture that are resized at a time


def sizes_of(target_sizes: Any, count: int) -> list[Size] | None:
    """``target_sizes`` as a pair of whole numbers for each of ``count`` pictures (``InputError``: they are none)."""
    if target_sizes is None:
        return None
    array = as_numpy(target_sizes)
    rows = target_sizes if array is None else array.tolist()
    if not isinstance(rows, list | tuple):
        raise InputTypeError(f"target_sizes is {rows!r:.80}.", hint="Pass (height, width) of each image.")
    if len(rows) != count:
        raise InputError(f"target_sizes holds {len(rows)} sizes for {count} images.")
    found = []
    for place, row in enumerate(rows):
        pair = as_numpy(row)
        sides = (
            list(row) if pair is None and isinstance(row, list | tuple) else [] if pair is None else pair.reshape(-1).tolist()
        )
        try:
            height, width = (int(side) for side in sides)
        except (TypeError, ValueError, OverflowError):
            raise InputTypeError(f"target size {place} is {row!r:.80}, and not (height, width).") from None
        if height < 1 or width < 1:
            raise InputError(f"target size {place} is {height} x {width}.", hint="Sides are positive.")
        found.append((height, width))
    return found


def resized(x: Tensor, size: Size, mode: str) -> Tensor:
    """(K, h, w) -> (K, H, W), corners not aligned."""
    from torch.nn.functional import interpolate

    return interpolate(x[None], size=size, mode=mode, align_corners=False)[0]


def taken(outputs: Any, name: str) -> Tensor:
    """One of a model's answers (``InputError``: it gave none)."""
    value: Tensor | None = getattr(outputs, name, None)
    if value is None:
        raise InputError(f"these outputs have no {name!r}.", hint="Pass what a model with the head for this task returned.")
    return value


def semantic_maps(scores: Tensor, target_sizes: Any, with_scores: bool) -> list[Any]:
    """The best class of each pixel, of scores (B, K, h, w) that are first resized to the targets."""
    sizes = sizes_of(target_sizes, len(scores))
    if sizes is not None and not with_scores:
        return [best_classes(x, size) for x, size in zip(scores, sizes, strict=True)]
    each = list(scores) if sizes is None else [resized(x, size, "bilinear") for x, size in zip(scores, sizes, strict=True)]
    maps = [x.argmax(0) for x in each]
    if not with_scores:
        return maps
    return [BatchFeature({"segmentation": labels, "segmentation_scores": x}) for labels, x in zip(maps, each, strict=True)]


def best_classes(scores: Tensor, size: Size) -> Tensor:
    """The best class (H, W) of each pixel, of scores (K, h, w) resized to (H, W)."""
    import torch

    return torch.cat([rows.max(0).indices for rows in strips(scores, size)])  # faster than `argmax`


def strips(scores: Tensor, size: Size) -> Iterator[Tensor]:
    """Scores (K, h, w) resized to (H, W) as by :func:`resized`, some rows (K, n, W) at a time from the top down.

    All at once, those of many classes or queries in the size of a large picture would fill the memory.
    """
    import torch

    height, width = size
    if len(scores) * height * width <= _AT_ONCE:
        yield resized(scores, size, "bilinear")
        return
    places = ((torch.arange(height) + 0.5) * (len(scores[0]) / height) - 0.5).clamp(min=0)
    above = places.long().clamp(max=len(scores[0]) - 1)
    below = (above + 1).clamp(max=len(scores[0]) - 1)
    shares, rows = (places - above).to(scores)[:, None], max(1, _AT_ONCE // (len(scores) * width))
    for top in range(0, height, rows):
        strip = slice(top, top + rows)
        first, last = int(above[top]), int(below[strip][-1])
        wide = resized(scores[:, first : last + 1], (last + 1 - first, width), "bilinear")
        yield torch.lerp(wide[:, above[strip] - first], wide[:, below[strip] - first], shares[strip])


def depth_maps(depth: Tensor, target_sizes: Any) -> list[dict[str, Tensor]]:
    """Depths (B, h, w), resized to the targets by bicubic interpolation."""
    sizes = sizes_of(target_sizes, len(depth))
    each = list(depth) if sizes is None else [resized(x[None], s, "bicubic")[0] for x, s in zip(depth, sizes, strict=True)]
    return [{"predicted_depth": x} for x in each]


def found_boxes(logits: Tensor, boxes: Tensor, threshold: float, target_sizes: Any) -> list[dict[str, Tensor]]:
    """What queries (B, Q, K + 1) see whose best class, but the last, is above the threshold.

    Boxes (B, Q, 4), (x, y, width, height) of their centre as shares, become (left, top, right, bottom), in the pixels of the
    targets where these are given.
    """
    import torch

    sizes = sizes_of(target_sizes, len(logits))
    scores, labels = logits.softmax(-1)[..., :-1].max(-1)
    center, side = boxes[..., :2], boxes[..., 2:]
    corners = torch.cat([center - 0.5 * side, center + 0.5 * side], -1)
    if sizes is not None:
        scale = torch.tensor([[width, height] * 2 for height, width in sizes], dtype=corners.dtype, device=corners.device)
        corners = corners * scale[:, None]
    found = []
    for score, label, box in zip(scores, labels, corners, strict=True):
        keep = score > threshold
        found.append({"scores": score[keep], "labels": label[keep], "boxes": box[keep]})
    return found


def class_scores(logits: Tensor, masks: Tensor) -> Tensor:
    """Scores (B, K, h, w) of classes, of queries' classes (B, Q, K + 1) and masks (B, Q, h, w)."""
    import torch

    return torch.einsum("bqk,bqhw->bkhw", logits.softmax(-1)[..., :-1], masks.sigmoid())


@dataclass(frozen=True)
class Segmenter:
    """Gives each pixel to one query, and makes segments of the queries that keep most of their pixels.

    Args:
        threshold: a query counts whose best class has a higher probability.
        mask_threshold: from this probability on, times the class's, a pixel is one of the query's own.
        overlap: a query becomes a segment if it wins more pixels than this share of its own.
        fused: classes of which all segments of a picture are one.
    """

    threshold: float
    mask_threshold: float
    overlap: float
    fused: frozenset[int] = frozenset()

    def __call__(self, logits: Tensor, masks: Tensor, target_sizes: Any) -> list[dict[str, Any]]:
        """Maps of segments for each picture, of queries' classes (B, Q, K + 1) and masks (B, Q, h, w)."""
        given = sizes_of(target_sizes, len(logits))
        sizes: list[Size | None] = [None] * len(logits) if given is None else [*given]
        scores, labels = logits.softmax(-1).max(-1)
        keep = (labels != logits.shape[-1] - 1) & (scores > self.threshold)
        return [
            self.segments(mask[kept].sigmoid(), score[kept], label[kept], size)
            for mask, score, label, kept, size in zip(masks, scores, labels, keep, sizes, strict=True)
        ]

    def segments(self, masks: Tensor, scores: Tensor, labels: Tensor, size: Size | None) -> dict[str, Any]:
        """The map of one picture, and what its segments are, of the queries (Q) that count."""
        import torch

        if not len(masks):
            nothing = torch.full(size or masks.shape[1:], -1, dtype=torch.int32, device=masks.device)
            return {"segmentation": nothing, "segments_info": []}
        pieces: list[Tensor] = []
        own = torch.zeros(len(masks), dtype=torch.int64, device=masks.device)
        for rows in [masks] if size is None else strips(masks, size):
            shown = rows * scores[:, None, None]
            pieces.append(shown.max(0).indices.to(torch.int32))
            own += (shown >= self.mask_threshold).flatten(1).sum(1)
        winners = torch.cat(pieces)
        won = torch.bincount(winners.flatten(), minlength=len(masks))
        lives = ((won > 0) & (own > 0)).tolist()
        shares = (won / own).tolist()
        numbers, shared = [0] * len(masks), dict[int, int]()
        infos: list[dict[str, Any]] = []
        for query, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
            if not lives[query] or not shares[query] > self.overlap:
                continue
            fuses = label in self.fused
            if label in shared:
                numbers[query] = shared[label]
                continue
            numbers[query] = len(infos) + 1
            infos.append({"id": numbers[query], "label_id": label, "was_fused": fuses, "score": round(score, 6)})
            if fuses:
                shared[label] = numbers[query]
        table = torch.tensor(numbers, dtype=torch.int32, device=masks.device)
        return {"segmentation": table[winners], "segments_info": infos}


def run_lengths(segmentation: Tensor) -> list[list[int]]:
    """For each number in a map, in rising order, where its runs begin (from 1, along the rows) and how long they are.

    These are not COCO's runs, which go down the columns and tell lengths alone.
    """
    pixels = segmentation.flatten().cpu().numpy()
    starts = np.flatnonzero(np.diff(pixels, prepend=pixels[:1] - 1))
    lengths = np.diff(starts, append=pixels.size)
    values, pairs = pixels[starts], np.stack([starts + 1, lengths], 1)
    return [pairs[values == value].ravel().tolist() for value in np.unique(values)]
