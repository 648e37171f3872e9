"""Collators for pictures and sounds: hidden patches and frames, and sizes and lengths that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from transept.errors import InputError, refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.padding import PaddingCollator, default_data_collator, labels_of
from transept.training.collate.rows import Collator, DrawingCollator, Row, checked_rows, filled, listed, stacked

Grid = tuple[int, int]  # height and width in patches


def block_mask(
    grid: Grid, count: int, *, least: int = 16, aspect: float = 0.3, generator: torch.Generator | None = None
) -> Tensor:
    """BEiT's block-wise mask (Bao et al. 2022): (H, W) of bool, true in just ``count`` patches, which lie in blocks.

    ``least`` is the smallest area of a block, as long as so many patches are left; ``aspect`` the least ratio of its
    height to its width, whose inverse is the largest.
    """
    mask, (high, wide) = torch.zeros(grid, dtype=torch.bool), grid
    while (left := count - int(mask.sum())) > 0:
        area, shape, top, start = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        size = min(least, left) + area * (left - min(least, left))
        ratio = math.exp(math.log(aspect) * (1 - 2 * shape))
        height = min(max(round(math.sqrt(size * ratio)), 1), high)
        width = min(max(round(math.sqrt(size / ratio)), 1), wide)
        y, x = int(top * (high - height + 1)), int(start * (wide - width + 1))
        block = torch.zeros_like(mask)
        block[y : y + height, x : x + width] = True
        new = (block & ~mask).flatten().nonzero()[:, 0]
        mask.view(-1)[new[torch.randperm(len(new), generator=generator)[:left]] if len(new) > left else new] = True
    return mask


def random_mask(grid: Grid, share: float, unit: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """SimMIM's mask (Xie et al. 2022): (H, W) of bool, true in a share, rounded up, of squares of patches."""
    squares = grid[0] // unit, grid[1] // unit
    total = squares[0] * squares[1]
    order = torch.randperm(total, generator=generator)
    chosen = torch.zeros(total, dtype=torch.bool)
    chosen[order[: math.ceil(total * share)]] = True
    return chosen.view(squares).repeat_interleave(unit, dim=0).repeat_interleave(unit, dim=1)


@dataclass
class DataCollatorForPatchMasking(DrawingCollator):
    """Stacks pictures and hides patches of them: ``pixel_values`` (B, C, H, W) and ``bool_masked_pos`` (B, N).

    With ``codebook``, or a column ``visual_tokens`` (N) in the rows, ``labels`` are the visual tokens of hidden
    patches, row by row, as BEiT takes them.

    Args:
        patch_size: the side of the model's patches, in pixels; it divides the sides of pictures.
        mask_ratio: the share of patches that are hidden.
        kind: ``block``, BEiT's blocks (:func:`block_mask`), or ``random``, SimMIM's squares (:func:`random_mask`).
        mask_patch_size: the side of squares in pixels for ``random``; that of a patch when absent.
        min_block: the least number of patches in a block.
        codebook: makes tokens (B, N) of ``pixel_values``.
    """

    patch_size: int = 16
    mask_ratio: float = 0.4
    kind: Literal["block", "random"] = "block"
    mask_patch_size: int | None = None
    min_block: int = 16
    codebook: Callable[[Tensor], Tensor] | None = None
    return_tensors: str = "pt"
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        share = self.mask_ratio
        refuse(not 0 < share <= 1, f"`mask_ratio` must be above 0 and at most 1, but is {share!r}.")
        refuse(self.kind not in ("block", "random"), f"`kind` must be 'block' or 'random', but is {self.kind!r}.")
        patch, square = self.patch_size, self.mask_patch_size or self.patch_size
        message = f"`mask_patch_size` is {square}, but must be a multiple of `patch_size`, which is {patch}."
        refuse(patch < 1 or square % patch, message)

    def collate(self, features: Any) -> Any:
        batch = default_data_collator(checked_rows(features, "pixel_values"))
        rows, _, height, width = batch["pixel_values"].shape
        square = (self.mask_patch_size if self.kind == "random" else None) or self.patch_size
        message = f"pictures of {height} x {width} pixels have no whole number of squares of {square} x {square}."
        refuse(height % square or width % square, message)
        masks = [self.mask((height // self.patch_size, width // self.patch_size)) for _ in range(rows)]
        hidden = batch["bool_masked_pos"] = torch.stack(masks).flatten(1)
        tokens = batch.pop("visual_tokens", None)
        if tokens is None and self.codebook is not None:
            tokens = self.codebook(batch["pixel_values"])
        if tokens is not None:
            shape, wanted = tuple(tokens.shape), tuple(hidden.shape)
            refuse(shape != wanted, f"visual tokens have the shape {shape}, but the patches {wanted}.")
            batch["labels"] = tokens[hidden]
        return batch

    def mask(self, grid: Grid) -> Tensor:
        """Which patches of a grid (H, W) are hidden."""
        if self.kind == "random":
            unit = (self.mask_patch_size or self.patch_size) // self.patch_size
            return random_mask(grid, self.mask_ratio, unit, self.generator)
        count = max(1, int(self.mask_ratio * grid[0] * grid[1]))
        return block_mask(grid, count, least=self.min_block, generator=self.generator)


@dataclass
class DataCollatorForObjectDetection(Collator):
    """Pictures of several sizes in one batch, filled up with zeros at the right and the bottom, and their boxes.

    The batch has ``pixel_values`` (B, C, H, W), ``pixel_mask`` (B, H, W), 1 for real pixels, and ``labels``, a list
    with a mapping for each picture: ``class_labels`` (n), ``boxes`` (n, 4) and what else a row's ``labels`` have.

    Height and width are multiples of ``pad_to_multiple_of``; boxes are shares of the picture's sides, from 0 to 1.
    """

    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features, "pixel_values")
        pictures = [torch.as_tensor(np.asarray(row["pixel_values"])) for row in rows]
        for number, picture in enumerate(pictures):
            shape, wrong = tuple(picture.shape), picture.ndim != 3 or picture.shape[0] != pictures[0].shape[0]
            refuse(wrong, f"row {number}: `pixel_values` has the shape {shape}, but must be (C, H, W).")
        step = self.pad_to_multiple_of or 1
        height, width = (-(-max(picture.shape[axis] for picture in pictures) // step) * step for axis in (1, 2))
        pixels = pictures[0].new_zeros(len(rows), pictures[0].shape[0], height, width)
        mask = torch.zeros(len(rows), height, width, dtype=torch.long)
        for number, picture in enumerate(pictures):
            pixels[number, :, : picture.shape[1], : picture.shape[2]] = picture
            mask[number, : picture.shape[1], : picture.shape[2]] = 1
        batch: dict[str, Any] = {"pixel_values": pixels, "pixel_mask": mask}
        if "labels" in rows[0]:
            batch["labels"] = [_targets(row["labels"], number) for number, row in enumerate(rows)]
        return batch


def _targets(labels: Any, number: int) -> dict[str, Tensor]:
    if not isinstance(labels, Mapping) or not {"class_labels", "boxes"} <= labels.keys():
        raise InputError(f"row {number}: `labels` must have `class_labels` and `boxes`, but is {str(labels)[:60]!r}.")
    targets = {name: stacked(name, [value])[0] for name, value in labels.items()}
    classes, boxes = targets["class_labels"].long(), targets["boxes"].float()
    boxes = boxes if boxes.numel() else boxes.reshape(-1, 4)
    shape, count, inside = tuple(boxes.shape), len(classes), bool(((boxes >= 0) & (boxes <= 1)).all())
    refuse(shape != (count, 4), f"row {number}: `boxes` has the shape {shape} for {count} `class_labels`.")
    hint = "They are the middle, width and height as shares of the picture's: the image processor makes them."
    refuse(not inside, f"row {number}: `boxes` must be from 0 to 1.", hint=hint)
    return targets | {"class_labels": classes, "boxes": boxes}


@dataclass
class DataCollatorForAudio(PaddingCollator):
    """Pads sounds by their feature extractor, and labels that are lists by ``label_pad_token_id``.

    Args:
        tokenizer: the feature extractor, or a processor with one.
        label_pad_token_id: the label of padding.
        decoder_start_token_id: a token that is dropped where all rows' labels begin with it; models put it there.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    decoder_start_token_id: int | None = None
    return_tensors: str = "pt"

    def __post_init__(self) -> None:
        self.tokenizer = getattr(self.tokenizer, "feature_extractor", self.tokenizer)

    def pad_labels(self, labels: list[Any], rows: list[Row], batch: Any) -> Tensor:
        lists, start = [listed(label) for label in labels], self.decoder_start_token_id
        if not isinstance(lists[0], list | tuple):
            return labels_of("labels", labels)
        if start is not None and all(isinstance(row, list | tuple) and list(row[:1]) == [start] for row in lists):
            lists = [row[1:] for row in lists]
        return filled("labels", lists, fill=self.label_pad_token_id)


@dataclass
class DataCollatorForWav2Vec2Pretraining(DrawingCollator):
    """Pads waves, and draws which frames are hidden and what each is told from (Baevski et al. 2020).

    The batch has the model's ``mask_time_indices`` (B, T) and ``sampled_negative_indices`` (B, T, K).

    Args:
        model: one with ``sample_targets``, whose config says how much is hidden and how many negatives there are.
        feature_extractor: what pads.
    """

    model: Any
    feature_extractor: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    seed: int | None = None
    return_tensors: str = "pt"

    def __post_init__(self) -> None:
        self.tokenizer = self.feature_extractor

    def collate(self, features: Any) -> Any:
        batch = self.pad(checked_rows(features), self.padding, self.max_length)
        batch.update(self.model.sample_targets(batch["input_values"], batch.get("attention_mask"), self.generator))
        return batch
