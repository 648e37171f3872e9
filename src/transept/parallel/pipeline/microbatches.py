"""Batches as a pipeline takes them: rows that are divisible by the micro-batches.

PyTorch's schedules wait forever for rows that are left over. So the last row is repeated, and the last stage leaves the copies
out before there is a loss. Shapes: B rows, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transept.core.inputs import BOUNDS, Packing, given_states, places_within, told_texts
from transept.core.model import Model
from transept.core.text import TextBackbone
from transept.errors import InputError, UnsupportedError
from transept.layers.context import within
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm, total
from transept.outputs import ModelOutput

_BETWEEN = ("past_key_values", "encoder_outputs", "lengths")


def rows_of(model: Model, batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch's tensors with B rows each, and what else is told, without what is absent.

    Raises:
        InputError: no tensor at all, tensors of other numbers of rows, or inputs that cannot be divided by rows.
    """
    found = {name: value for name, value in batch.items() if value is not None}
    for name in _BETWEEN:
        if name in found:
            raise InputError(f"`{name}` cannot go through a pipeline, whose micro-batches are rows of inputs.")
    backbone = model.backbone
    if isinstance(backbone, TextBackbone) and (texts := told_texts(found)) is not None:
        found = {name: value for name, value in found.items() if name not in BOUNDS} | {"seq_idx": texts}
        if "position_ids" in backbone.reads:
            found = {"position_ids": places_within(texts) + backbone.first_position} | found
    main = next((value for value in found.values() if isinstance(value, Tensor) and value.ndim > 1), None)
    main = found.get(model.main_input_name, main)
    if not isinstance(main, Tensor):
        raise InputError(f"the batch holds no tensor `{model.main_input_name}`, but {', '.join(found) or 'nothing'}.")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            continue
        if value.ndim == 0:
            found[name] = value.item()
        elif value.shape[0] == 1 < main.shape[0]:
            found[name] = value.expand(main.shape[0], *value.shape[1:])
        elif value.shape[0] != main.shape[0]:
            what = f"`{name}` has the shape {tuple(value.shape)}, but the batch has {main.shape[0]} rows."
            raise InputError(what, hint="A pipeline divides all inputs by rows.")
    return found


def spread_texts(model: Model, batch: dict[str, Any], parts: int) -> dict[str, Any]:
    """A batch whose texts are packed into fewer rows than M, in M rows; as it is, where that could change the loss.

    Raises:
        UnsupportedError: packed texts for a family that has to unpack them, which makes states of another shape each time.
    """
    backbone = model.backbone
    # Stages make no cache, beside which texts would not be inferred.
    texts = backbone.find_texts(batch | {"use_cache": False}) if isinstance(backbone, TextBackbone) else None
    if texts is None or not isinstance(backbone, TextBackbone):
        return batch
    given: Any = given_states(batch)
    texts = texts.expand(len(given), -1)
    packing = Packing.of_texts(texts, batch.get("attention_mask")) if texts.any() else None
    if packing is None:
        return batch
    batch = batch | {"seq_idx": texts}  # what was inferred would not be, beside a mask
    if not backbone.ragged:
        what = f"{type(backbone).__name__} cannot be trained on packed texts in a pipeline."
        raise UnsupportedError(what, hint="Pass one text in each row.")
    lengths, labels = torch.tensor(packing.lengths), batch.get("labels")
    starts = lengths.cumsum(0) - lengths
    if packing.shape[0] >= parts or len(lengths) < parts:
        return batch
    if isinstance(labels, Tensor) and (
        labels.shape != packing.shape or bool((packing.flat(labels)[0, starts] != IGNORED).any())
    ):
        return batch  # the first token of a text may be predicted from the text before it
    rows = ((starts + lengths / 2) * parts / lengths.sum()).long()
    sizes = [size for row in range(parts) if (size := int(lengths[rows == row].sum()))]
    padding = model.config.pad_token_id or 0
    fill = {"labels": IGNORED, "input_ids": padding, "position_ids": backbone.first_position}
    found = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.shape[:2] == packing.shape:
            pieces = torch.split(packing.flat(value)[0], sizes)
            found[name] = pad_sequence(list(pieces), batch_first=True, padding_value=fill.get(name, 0))
    device = packing.places.device
    return found | {"attention_mask": within(torch.tensor(sizes, device=device), max(sizes)).long()}


def padded_rows(batch: Mapping[str, Any], parts: int) -> tuple[dict[str, Any], list[int]]:
    """A batch whose rows are divisible by M, filled up by its last row, and how many rows of each part are real.

    It also has ``part`` (B), the number of each row's micro-batch.
    """
    by_row = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    first = next(iter(by_row.values()))
    rows, of_part = len(first), -(-len(first) // parts)
    if more := of_part * parts - rows:
        by_row = {name: torch.cat([value, value[-1:].expand(more, *value.shape[1:])]) for name, value in by_row.items()}
    part = torch.arange(parts, device=first.device).repeat_interleave(of_part)
    real = [min(max(rows - of_part * number, 0), of_part) for number in range(parts)]
    return {**batch, **by_row, "part": part}, real


def joined(outputs: list[ModelOutput]) -> ModelOutput:
    """The output for a batch, of those for its micro-batches: rows behind one another, and sums of losses."""
    first, fields = outputs[0], dict[str, Any]()
    for name, value in first.items():
        if name != "loss" and all(isinstance(leaf, Tensor) and leaf.ndim for leaf in pytree.tree_leaves(value)):
            parts = [output[name] for output in outputs[1:]]
            fields[name] = pytree.tree_map(lambda *leaves: torch.cat(leaves), value, *parts)
    whole = type(first)(**fields)
    if all_terms := [terms for output in outputs if (terms := getattr(output, "loss_terms", None))]:
        terms = {name: _added([terms[name] for terms in all_terms]) for name in all_terms[0]}
        whole["loss"], whole["loss_terms"] = total(terms), terms
    return whole


def _added(terms: Sequence[LossTerm]) -> LossTerm:
    sums, counts = (torch.stack(values).sum(0) for values in zip(*((term.sum, term.count) for term in terms)))
    return replace(terms[0], sum=sums, count=counts)
