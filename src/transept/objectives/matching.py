"""The set loss of detection: predictions are matched one to one with targets, and then compared (Carion et al. 2020).

Shapes: B batch, Q queries, K classes, n targets of an image, H height, W width. Boxes are (x, y, width, height), x and y those
of the centre, as shares of the image's size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError, InputTypeError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm

Targets = Sequence[Mapping[str, Tensor]]
Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class MatchingWeights:
    """What counts how much: in the choice of pairs (``class_cost``, ``box_cost``, ``giou_cost``), and in the loss."""

    class_cost: float = 1.0
    box_cost: float = 5.0
    giou_cost: float = 2.0
    nothing: float = 0.1  # of the class of queries without a target, in the cross-entropy
    box: float = 5.0
    giou: float = 2.0
    mask: float = 1.0
    dice: float = 1.0


def corners(boxes: Tensor) -> Tensor:
    """Boxes (..., 4) as (left, top, right, bottom)."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([center - half, center + half], dim=-1)


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union of boxes (..., 4) given by their corners, and the union."""
    shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - shared
    return shared / union, union


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union, less the share of the hull that neither covers (Rezatofighi et al. 2019): (..., 4) -> (...)."""
    iou, union = overlap(a, b)
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return iou - (hull - union) / hull


def check_targets(targets: Any, batch: int, classes: int, names: Sequence[str]) -> Targets:
    """The targets of a batch, each with ``class_labels`` (n), ``boxes`` (n, 4) and what else is named, checked.

    Raises:
        InputError, InputTypeError: another number of images or tensors of other shapes, a class or a box that cannot be.
    """
    if not isinstance(targets, Sequence) or not all(isinstance(target, Mapping) for target in targets):
        raise InputTypeError("`labels` must be a list with a mapping for each image.", hint="Use the image processor's labels.")
    if len(targets) != batch:
        raise InputError(f"`labels` has targets for {len(targets)} images, but there are {batch}.")
    for image, target in enumerate(targets):
        for name in names:
            if not isinstance(target.get(name), Tensor):
                raise InputError(f"`labels` of image {image} has no tensor {name!r}.")
        labels, boxes = target["class_labels"], target["boxes"]
        if boxes.shape != (len(labels), 4):
            raise InputError(f"`boxes` of image {image} has the shape {tuple(boxes.shape)}, but must be ({len(labels)}, 4).")
        wrong = ((labels < 0) | (labels >= classes)).nonzero()
        if len(wrong):
            place = int(wrong[0])
            what = f"target {place} of image {image} is of class {int(labels[place])}, which is not one of the {classes}."
            raise InputError(what, hint="Set `num_labels`.")
        wrong = (~boxes.isfinite().all(-1) | (boxes[:, 2:] < 0).any(-1)).nonzero()
        if len(wrong):
            place = int(wrong[0])
            what = f"the box of target {place} of image {image} is {boxes[place].tolist()}."
            raise InputError(what, hint="Boxes are [x, y, width, height] of their centre, as shares of the image's size.")
    return targets


@torch.no_grad()
def matched(logits: Tensor, boxes: Tensor, targets: Targets, weights: MatchingWeights) -> Pairs:
    """For each image the queries and the targets that belong together, from logits (B, Q, K + 1) and boxes (B, Q, 4)."""
    from scipy.optimize import linear_sum_assignment

    pairs = []
    shares, boxes = widened(logits).softmax(-1), widened(boxes)
    for share, box, target in zip(shares, boxes, targets, strict=True):
        wanted = target["boxes"].to(box)
        cost = weights.box_cost * torch.cdist(box, wanted, p=1) - weights.class_cost * share[:, target["class_labels"]]
        cost = cost - weights.giou_cost * generalized_iou(corners(box)[:, None], corners(wanted)[None])
        most = torch.finfo(cost.dtype).max
        queries, found = linear_sum_assignment(cost.nan_to_num(nan=most, posinf=most, neginf=most).cpu().numpy())
        pairs.append((torch.as_tensor(queries, device=logits.device), torch.as_tensor(found, device=logits.device)))
    return pairs


def detection_terms(
    logits: Tensor,
    boxes: Tensor,
    targets: Targets,
    weights: MatchingWeights,
    masks: Tensor | None = None,
    suffix: str = "",
) -> dict[str, LossTerm]:
    """The parts of the set loss; each part's name ends in ``suffix``.

    Args:
        logits: (B, Q, K + 1), the last class for queries without a target.
        boxes: (B, Q, 4).
        targets: those of the B images.
        masks: (B, Q, H, W) logits, where targets have ``masks`` (n, H', W').
    """
    pairs = matched(logits, boxes, targets, weights)
    rows = torch.cat([torch.full_like(queries, row) for row, (queries, _) in enumerate(pairs)])
    queries = torch.cat([queries for queries, _ in pairs])
    classes = torch.full(logits.shape[:2], logits.shape[-1] - 1, device=logits.device)
    device = logits.device
    classes[rows, queries] = torch.cat([t["class_labels"].to(device)[found] for t, (_, found) in zip(targets, pairs)])
    share = torch.ones(logits.shape[-1], dtype=widened(logits).dtype, device=device)
    share[-1] = weights.nothing
    loss = F.cross_entropy(widened(logits).flatten(0, 1), classes.flatten(), share, reduction="sum")
    terms = {"loss_ce": LossTerm(loss, share[classes].sum())}
    wanted = torch.cat([t["boxes"].to(boxes)[found] for t, (_, found) in zip(targets, pairs)])
    given = boxes[rows, queries]
    count = torch.tensor(sum(len(target["boxes"]) for target in targets), device=device)
    terms["loss_bbox"] = LossTerm((given - wanted).abs().sum(), count, weights.box, least=1.0)
    giou = generalized_iou(corners(given), corners(wanted))
    terms["loss_giou"] = LossTerm((1 - giou).sum(), count, weights.giou, least=1.0)
    if masks is not None:
        found = [t["masks"].to(masks)[found] for t, (_, found) in zip(targets, pairs)]
        terms |= mask_terms(masks[rows, queries], found, count, weights)
    return {f"{name}{suffix}": term for name, term in terms.items()}


def count_detections(
    targets: Targets, queries: int, weights: MatchingWeights, *, masks: bool = False, suffix: str = ""
) -> dict[str, Tensor]:
    """The items of :func:`detection_terms` with so many queries: objects, and queries by the weights of their classes."""
    objects = [len(target["boxes"]) for target in targets]
    found = sum(min(number, queries) for number in objects)
    terms = {"loss_ce": torch.tensor(found + weights.nothing * (queries * len(objects) - found), dtype=torch.float64)}
    names = ("loss_bbox", "loss_giou", *(("loss_mask", "loss_dice") if masks else ()))
    terms |= dict.fromkeys(names, torch.tensor(sum(objects)))
    return {f"{name}{suffix}": count for name, count in terms.items()}


def mask_terms(masks: Tensor, wanted: list[Tensor], count: Tensor, weights: MatchingWeights) -> dict[str, LossTerm]:
    """Focal loss (Lin et al. 2017) and dice loss of logits (N, H, W) of masks, resized to the wanted ones (n, H', W')."""
    height, width = (max(each.shape[axis] for each in wanted) for axis in (1, 2))
    target = torch.cat([F.pad(each, (0, width - each.shape[2], 0, height - each.shape[1])) for each in wanted]).flatten(1)
    given = F.interpolate(masks[:, None], size=(height, width), mode="bilinear", align_corners=False)[:, 0].flatten(1)
    share = given.sigmoid()
    right = share * target + (1 - share) * (1 - target)
    alpha = 0.25 * target + 0.75 * (1 - target)
    focal = alpha * (1 - right) ** 2 * F.binary_cross_entropy_with_logits(given, target, reduction="none")
    dice = 1 - (2 * (share * target).sum(1) + 1) / (share.sum(1) + target.sum(1) + 1)
    return {
        "loss_mask": LossTerm(focal.mean(1).sum(), count, weights.mask, least=1.0),
        "loss_dice": LossTerm(dice.sum(), count, weights.dice, least=1.0),
    }


@torch.no_grad()
def cardinality_error(logits: Tensor, targets: Targets) -> Tensor:
    """How far the number of queries that find something is from that of the targets, on average; shown, and not trained on."""
    found = (logits.argmax(-1) != logits.shape[-1] - 1).sum(1)
    counts = torch.tensor([len(target["class_labels"]) for target in targets], device=logits.device)
    return (found - counts).abs().float().mean()
