"""A dry run: examples as the model will see them, and what training will take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from transept.training.data.table import TableDataset
from transept.training.recipes.run import Run
from transept.training.run import RunLength

EXAMPLES, TIMED = 3, 3
STATE_BYTES = 8  # of AdamW, a parameter


def preview(run: Run) -> dict[str, Any]:
    """Look at a prepared run without training it.

    Returns:
        ``examples``, three rows of a batch in words; ``rows``; ``parameters``, all and trainable; ``updates``; ``tokens``, of
        an epoch, where rows are tokens; ``bytes``, the memory expected of weights, gradients, optimizer and activations, of a
        batch of the longest rows; ``seconds``, by three batches that were timed.
    """
    trainer = run.make_trainer(run.settings.output or "dry-run")
    model, rows = run.recipe.model, run.train_rows
    batch = run.recipe.collator()([rows[index] for index in range(min(EXAMPLES, len(rows)))])
    examples = [run.recipe.shown(batch, index) for index in range(_rows_of(batch))]
    loader = trainer.get_train_dataloader()
    updates = RunLength.of(trainer.args, loader).max_steps
    parameters = [each.numel() for each in model.parameters()]
    trainable = sum(each.numel() for each in model.parameters() if each.requires_grad)
    width = next(model.parameters()).element_size()
    lengths = rows.lengths("input_ids").tolist() if isinstance(rows, TableDataset) and "input_ids" in rows.column_names else []
    longest = sorted(range(len(rows)), key=lambda index: -lengths[index]) if lengths else range(len(rows))
    widest = [rows[index] for index in longest[: trainer.args.train_batch_size]]
    with torch.random.fork_rng():
        activations = _activations(trainer, widest)
        seconds = _seconds(trainer, loader)
    model.eval()
    return {
        "examples": examples,
        "rows": {"train": len(rows), "eval": len(run.eval_rows)},
        "parameters": {"all": sum(parameters), "trainable": trainable},
        "updates": updates,
        "tokens": sum(lengths) or None,
        "bytes": {
            "weights": sum(parameters) * width,
            "gradients": trainable * width,
            "optimizer": trainable * STATE_BYTES,
            "activations": activations,
        },
        "seconds": seconds * updates * trainer.args.gradient_accumulation_steps,
    }


def _rows_of(batch: Mapping[str, Any]) -> int:
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim)


def _inputs(trainer: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    known = {*trainer._signature_columns, *trainer.label_names}
    return {name: value.to(trainer.args.device) for name, value in batch.items() if name in known and isinstance(value, Tensor)}


def _activations(trainer: Any, rows: list[Any]) -> int:
    """Bytes that a forward pass keeps for the backward pass, but for the weights."""
    own = {each.untyped_storage().data_ptr() for each in trainer.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    trainer.model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.compute_loss(trainer.model, _inputs(trainer, trainer.data_collator(rows)))
    return sum(kept.values())


def _seconds(trainer: Any, loader: Any) -> float:
    """How long a micro-batch takes, of the first ones."""
    took = []
    for batch in islice(iter(loader), TIMED):
        began = time.perf_counter()
        trainer.compute_loss(trainer.model, _inputs(trainer, batch)).backward()
        took.append(time.perf_counter() - began)
    trainer.model.zero_grad(set_to_none=True)
    return sorted(took)[len(took) // 2]
