"""The rows of an update in parts of like length, so that little padding is computed.

The loss of most tasks over text is a sum over rows, which may be summed in any parts: all rows of an update are
sorted by length and cut where more padding would cost more than another pass does. Where the family can compute rows
that stand one behind the other, they are run together without padding. The update stays the same but for rounding
and dropout masks. Shapes: B rows, N choices, T positions, T' of a decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.core.inputs import Packing
from transept.core.model import Model
from transept.objectives.classification import IGNORED
from transept.training.objective import Batch, task_of

# What a pass costs beside its rows, in positions: a constant, since short products are slow, and the start of the
# operations of a layer, which is more positions the smaller layers are. Measured on CPU cores; an accelerator
# computes FASTER times as many positions in the time of a start.
PASS, START, FASTER = 120, 4e6, 500
FEWEST = 1e12  # the cost of a pass that leads to as few of them as there can be
Bounds = list[tuple[int, int]]  # the first row of each part, and the one after its last


@dataclass(frozen=True)
class _Columns:
    text: set[str]  # the inputs that have something for each position (B, ..., T)
    decoder: set[str]  # and for each of the decoder's (B, T')


class Ragged(dict[str, Any]):
    """A batch that is to be run without its padding (:func:`transept.kinds.text.unpadded`)."""


def split_by_length(
    model: nn.Module, batches: Sequence[Batch], cost: float | None = None, *, ragged: bool = False
) -> list[Any]:
    """The rows of one update in parts of like length, the longest first, without columns at the end that are padding.

    The sum of the loss terms over the parts equals that over the batches. No part has more positions, padding
    included, than the largest batch. The batches stay as they are for tasks whose loss is no sum over rows, or
    depends on padding (question answering, whose softmax is over all positions), and where they are not of padded
    texts and labels alone. Rows that are padded on the left keep their length. With ``ragged``, parts are
    :class:`Ragged` where that costs less. ``cost`` is that of a further pass, in positions; by the model when absent.
    """
    whole = [dict(batch) for batch in batches]
    task = task_of(model)
    if task is None or not task.rows_apart or not all(stack.rows_apart for stack in task.stacks):
        return whole
    columns, names = _columns_of(task, whole[0]), whole[0].keys()
    if columns is None or any(batch.keys() != names or _columns_of(task, batch) != columns for batch in whole[1:]):
        return whole
    if len({_shapes_by_row(batch, columns) for batch in whole}) > 1:
        return whole
    cost = cost_of_pass(task) if cost is None else cost
    padding = sum(int((batch["attention_mask"] == 0).sum()) for batch in whole)
    if "labels" in columns.decoder:
        padding += sum(int((batch["labels"] == IGNORED).sum()) for batch in whole)
    if padding < cost:
        return whole  # a search would cost more than it could save
    rows = _rows(whole, columns)
    any_decoder = next(iter(columns.decoder), None)
    widths = [0 if any_decoder is None else batch[any_decoder].shape[1] for batch in whole]
    masks = [batch["attention_mask"] for batch in whole]
    most = max(mask.numel() + len(mask) * width for mask, width in zip(masks, widths))
    bounds = cheapest(rows[:, 2:], cost, most)
    kind: type[dict[str, Any]] = dict
    if ragged and _may_be_ragged(task, whole, columns):
        fewest = cheapest(rows[:, 2:], FEWEST, most)
        if _ragged_costs_less(rows[:, 2], fewest, bounds, cost):
            bounds, kind = fewest, Ragged
    padding_id = getattr(task.config, "pad_token_id", None) or 0
    return [kind(_part(whole, rows[start:stop], columns, padding_id)) for start, stop in bounds]


def _may_be_ragged(task: Model, batches: Sequence[Batch], columns: _Columns) -> bool:
    """Whether rows can stand one behind the other without padding, which must be at their ends and have no labels."""
    is_able = task.device.type == "cpu" and all(getattr(stack, "ragged", False) for stack in task.stacks)
    if columns.decoder or not is_able:
        return False
    for batch in batches:
        mask = batch["attention_mask"]
        if "labels" in columns.text and ((batch["labels"] != IGNORED) & (mask == 0)).any():
            return False
        if mask.ndim != 2 or Packing.of_padded(mask) is None:
            return False
    return True


def _ragged_costs_less(lengths: Any, ragged: Bounds, padded: Bounds, cost: float) -> bool:
    """Whether a pass without padding, where attention is computed for each length by itself, costs less."""
    groups = sum(len(np.unique(lengths[start:stop])) for start, stop in ragged)
    without_padding = lengths.sum() + cost * len(ragged) + max(cost - PASS, 0.0) * groups
    return bool(without_padding < sum((stop - start) * lengths[start] + cost for start, stop in padded))


def cost_of_pass(model: nn.Module) -> float:
    """What a pass through the model costs beside its rows, as so many positions."""
    task = task_of(model)
    layers = [layer for stack in (() if task is None else task.stacks) for layer in stack.layers]
    size = sum(weight.numel() for layer in layers for weight in layer.parameters()) / max(len(layers), 1)
    start = START / max(size, 1.0)
    return PASS + start * (1 if task is None or task.device.type == "cpu" else FASTER)


def cheapest(lengths: Any, cost: float, most: float) -> Bounds:
    """Where to cut rows so that the sum over parts of rows times longest, plus ``cost`` for each part, is smallest.

    The longest of a part is the sum over K of its largest ``lengths`` (R, K). Rows times longest is ``most`` at most,
    but for a row by itself.
    """
    count = len(lengths)
    best, before = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    for stop in range(1, count + 1):
        longest = np.maximum.accumulate(lengths[:stop][::-1])[::-1].sum(axis=1)
        size = np.arange(stop, 0, -1) * longest
        size = np.where((size <= most) | (np.arange(stop) == stop - 1), size, np.inf)
        costs = best[:stop] + size + cost
        before[stop] = costs.argmin()
        best[stop] = costs[before[stop]]
    bounds = []
    while count:
        bounds.append((int(before[count]), count))
        count = before[count]
    return bounds[::-1]


def _columns_of(task: Model, batch: Batch) -> _Columns | None:
    """The inputs by position; ``None`` where rows cannot be taken apart."""
    mask, text = batch.get("attention_mask"), batch.get("input_ids")
    shape = text.shape if isinstance(text, Tensor) else getattr(batch.get("inputs_embeds"), "shape", (0,))[:-1]
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 3) or mask.shape != shape:
        return None
    columns, has_decoder = _Columns(set(), set()), bool(task.config.is_encoder_decoder)
    by_position = {"attention_mask", "labels"}.union(*(getattr(stack, "by_position", ()) for stack in task.stacks))
    for name, value in batch.items():
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[0] != mask.shape[0]:
            return None
        if has_decoder and (name.startswith("decoder_") or name == "labels"):
            if value.ndim > 1:
                columns.decoder.add(name)
        elif value.shape[: mask.ndim] == mask.shape and not name.startswith("encoder_"):
            if name not in by_position:
                return None  # it is not known what its columns are
            columns.text.add(name)
    return columns if len({batch[name].shape[1] for name in columns.decoder}) < 2 else None


def _shapes_by_row(batch: Batch, columns: _Columns) -> tuple[Any, ...]:
    """The shapes, for one row, of the inputs that have nothing for each position."""
    others = sorted(batch.keys() - columns.text - columns.decoder)
    return tuple(None if batch[name] is None else batch[name].shape[1:] for name in others)


def _rows(batches: Sequence[Batch], columns: _Columns) -> Any:
    """(R, 4), the longest first: a row's batch, its place there, and the positions that it and its decoder need."""
    rows_of_batches = []
    for number, batch in enumerate(batches):
        text = _lengths(batch, columns.text)
        decoder = _lengths(batch, columns.decoder) if columns.decoder else torch.zeros_like(text)
        place = torch.arange(len(text), device=text.device)
        rows_of_batches.append(torch.stack([torch.full_like(place, number), place, text, decoder], dim=1))
    rows = torch.cat(rows_of_batches).cpu().numpy()
    return rows[np.argsort(-rows[:, 2:].sum(axis=1), kind="stable")]


def _lengths(batch: Batch, names: set[str]) -> Tensor:
    """Where the needed positions of each row end (B): the real and the labelled ones, or all where nothing tells."""
    needed = [batch[name] != 0 for name in names if name.endswith("attention_mask")]
    needed += [batch["labels"] != IGNORED] if "labels" in names else []
    if not needed:
        value = batch[next(iter(names))]
        needed = [torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)]
    used = torch.stack([mask.flatten(1, -2).any(dim=1) if mask.ndim > 2 else mask for mask in needed]).any(dim=0)
    numbers = torch.arange(1, used.shape[1] + 1, device=used.device)
    return (numbers * used).amax(dim=1).clamp(min=1)


def _part(batches: Sequence[Batch], rows: Any, columns: _Columns, padding_id: int) -> dict[str, Any]:
    text_length, decoder_length = (int(most) for most in rows[:, 2:].max(axis=0))
    text_axis = batches[0]["attention_mask"].ndim - 1
    part: dict[str, Any] = {}
    for name, value in batches[0].items():
        pieces = []
        for number in np.unique(rows[:, 0]) if value is not None else ():
            whole = batches[number][name]
            piece = whole[torch.from_numpy(rows[rows[:, 0] == number, 1]).to(whole.device)]
            if name in columns.text or name in columns.decoder:
                axis, length = (text_axis, text_length) if name in columns.text else (1, decoder_length)
                more = length - piece.shape[axis]
                fill = padding_id if name.endswith("input_ids") else IGNORED if name == "labels" else 0
                padding = (0, 0) * (piece.ndim - axis - 1) + (0, more)
                piece = F.pad(piece, padding, value=fill) if more > 0 else piece.narrow(axis, 0, length)
            pieces.append(piece)
        part[name] = torch.cat(pieces) if len(pieces) > 1 else pieces[0] if pieces else None
    return part
