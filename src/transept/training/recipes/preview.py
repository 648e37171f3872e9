"""A dry run: examples as the model will see them, and what training will take."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from transept.tables.dataset import TableDataset
from transept.training.recipes.run import Run, parameter_counts
from transept.training.run import RunLength

EXAMPLES, TIMED = 3, 3
STATE_BYTES = 8  # of AdamW, a parameter


def preview(run: Run) -> dict[str, Any]:
    """Look at a prepared run without training it.

    Returns:
        ``examples``, three rows of a batch in words; ``rows``; ``parameters``, all and trainable; ``updates``;
        ``tokens``, of an epoch, where rows are tokens; ``bytes``, the memory expected of weights, gradients, optimizer
        and activations, of a batch of the longest rows; ``seconds``, by three batches that were timed.
    """
    trainer = run.make_trainer(run.settings.output or "dry-run")
    recipe, rows = run.recipe, run.train_rows
    some = [rows[index] for index in range(min(EXAMPLES, len(rows)))]
    batch = trainer.data_collator(some)
    width = next(len(value) for value in batch.values() if isinstance(value, Tensor))  # packed rows are one
    examples = [recipe.shown(batch, index) for index in range(min(len(some), width))]
    loader = trainer.get_train_dataloader()
    updates = RunLength.of(trainer.args, loader).max_steps
    lengths = []
    if isinstance(rows, TableDataset) and "input_ids" in rows.column_names:
        lengths = rows.lengths("input_ids").tolist()
    longest = sorted(range(len(rows)), key=lambda index: -lengths[index]) if lengths else range(len(rows))
    widest = trainer.data_collator([rows[index] for index in longest[: trainer.args.train_batch_size]])
    with torch.random.fork_rng():
        activations = activation_bytes(trainer, widest)
        seconds = seconds_of_pass(trainer, loader)
    recipe.model.eval()
    parameters, bytes_each = parameter_counts(recipe.model), next(recipe.model.parameters()).element_size()
    return {
        "examples": examples,
        "rows": {"train": len(rows), "eval": len(run.eval_rows)},
        "parameters": parameters,
        "updates": updates,
        "tokens": sum(lengths) or None,
        "bytes": {
            "weights": parameters["all"] * bytes_each,
            "gradients": parameters["trainable"] * bytes_each,
            "optimizer": parameters["trainable"] * STATE_BYTES,
            "activations": activations,
        },
        "seconds": seconds * updates * trainer.args.gradient_accumulation_steps,
    }


def loss_of(trainer: Any, batch: Any) -> Tensor:
    if not trainer._takes_any:
        read = {*trainer._signature_columns, *trainer.label_names}
        batch = {name: value for name, value in batch.items() if name in read}
    loss: Tensor = trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))
    return loss


def activation_bytes(trainer: Any, batch: Any) -> int:
    """Bytes that a forward pass keeps for the backward pass, but for the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in trainer.model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    trainer.model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(trainer, batch)
    return sum(sizes.values())


def seconds_of_pass(trainer: Any, loader: Any) -> float:
    """How long a micro-batch takes, of the first ones."""
    seconds = []
    for batch in islice(loader, TIMED):
        began = time.perf_counter()
        loss_of(trainer, batch).backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - began)
    trainer.model.zero_grad(set_to_none=True)
    return sorted(seconds)[len(seconds) // 2]
