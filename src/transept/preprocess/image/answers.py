"""What models answer about pictures, turned into maps, depths and boxes. torch is imported when it is needed.

Shapes: B batch, Q queries, K classes, (h, w) of a model's answer, (H, W) of a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import BatchFeature, as_numpy

if TYPE_CHECKING:
    from torch import Tensor

    from transept.preprocess.image.arrays import Size


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


def semantic_maps(scores: Tensor, target_sizes: Any, with_scores: bool) -> list[Any]:
    """The best class of each pixel, of scores (B, K, h, w) that are first resized to the targets."""
    sizes = sizes_of(target_sizes, len(scores))
    each = list(scores) if sizes is None else [resized(x, size, "bilinear") for x, size in zip(scores, sizes, strict=True)]
    maps = [x.argmax(0) for x in each]
    if not with_scores:
        return maps
    pairs = zip(maps, each, strict=True)
    return [BatchFeature({"segmentation": labels, "segmentation_scores": x}) for labels, x in pairs]


def depth_maps(depth: Tensor, target_sizes: Any) -> list[dict[str, Tensor]]:
    """Depths (B, h, w), resized to the targets by bicubic interpolation."""
    sizes = sizes_of(target_sizes, len(depth))
    each = list(depth) if sizes is None else [resized(x[None], s, "bicubic")[0] for x, s in zip(depth, sizes, strict=True)]
    return [{"predicted_depth": x} for x in each]
