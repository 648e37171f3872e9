"""What code of the reference does with models beside calling them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transept.checkpoint.store import PickleStore, TensorStore
from transept.errors import refuse
from transept.layers.links import Layer
from transept.layers.rotary import FREQUENCIES, RotaryTables, head_size, rotary_tables
from transept.objectives.classification import IGNORED, cross_entropy, sequence_classification, spans
from transept.objectives.terms import Items, total


def unwrap_model(model: nn.Module, recursive: bool = False) -> nn.Module:
    """The model that was wrapped for several processes, or compiled."""
    while (inner := getattr(model, "module", getattr(model, "_orig_mod", None))) is not None and isinstance(inner, nn.Module):
        model = inner
    return model


@contextmanager
def no_init_weights() -> Iterator[None]:
    """Within it nothing is different: models that are loaded are never initialised first."""
    yield


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], map_location: str | torch.device = "cpu", weights_only: bool = True
) -> dict[str, Tensor]:
    """The tensors of one file of weights by name, of safetensors or read by PyTorch's weights-only reader.

    ``FormatError``: the file holds anything else. ``InputError``: ``weights_only=False``.
    """
    refuse(not weights_only, "weights_only=False would run code of the file.", "Load it with torch.load, if you trust it.")
    path = Path(checkpoint_file)
    store = TensorStore([path]) if path.suffix == ".safetensors" else PickleStore([path])
    return {name: store[name].to(map_location) for name in store}


class _OrLayer(type):
    """Layers of this library count as instances: a model's ``gradient_checkpointing_enable()`` reaches them."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (cls.__module__ == __name__ and isinstance(instance, Layer))


class GradientCheckpointingLayer(nn.Module, metaclass=_OrLayer):
    """A layer that is computed again in the backward pass where its ``gradient_checkpointing`` is set, in place of being kept.

    Such as a layer of one's own, with ``gradient_checkpointing`` set on it; layers of this library are told by the model's
    ``gradient_checkpointing_enable()``.
    """

    gradient_checkpointing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.gradient_checkpointing and self.training):
            return super().__call__(*args, **kwargs)
        return checkpoint(partial(super().__call__, **kwargs), *args, use_reentrant=False)


class RotaryEmbedding(RotaryTables):
    """The rotary layers of a config, under the name that each family's file of the reference has for them."""

    def __init__(self, config: Any, device: Any = None) -> None:
        super().__init__(dict(rotary_tables(config).items()))


def _rope(name: str) -> Callable[..., tuple[Tensor, float]]:
    def parameters(config: Any, device: Any = None, seq_len: int | None = None, **kwargs: Any) -> tuple[Tensor, float]:
        frequencies = FREQUENCIES[name](head_size(config), {**config.rope(), **kwargs})
        length = None if seq_len is None else torch.tensor(seq_len, device=device)
        return frequencies.inverse(length).to(device), frequencies.scale

    return parameters


ROPE_INIT_FUNCTIONS = {name: _rope(name) for name in FREQUENCIES}


def cross_entropy_loss(
    source: Tensor, target: Tensor, num_items_in_batch: Items | None = None, ignore_index: int = IGNORED, **kwargs: Any
) -> Tensor:
    """The cross-entropy of logits (..., C) and labels (...), as a scalar.

    It is the mean over labels that are not ``ignore_index``, or their sum divided by ``num_items_in_batch``, which counts the
    labels of the whole batch. Other arguments have no effect, here and below: models pass on all that they were called with.
    """
    return total({"loss": cross_entropy(source, target, ignore_index=ignore_index)}, num_items_in_batch)


def masked_lm_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Items | None = None,
    ignore_index: int = IGNORED,
    **kwargs: Any,
) -> Tensor:
    """The loss of logits (..., ``vocab_size``) and the labels of the same positions."""
    return cross_entropy_loss(logits.view(-1, vocab_size), labels.view(-1), num_items_in_batch, ignore_index)


def causal_lm_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Items | None = None,
    ignore_index: int = IGNORED,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """The loss of logits (B, T, ``vocab_size``) against the next labels (B, T), or ``shift_labels``, shifted already."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return masked_lm_loss(logits, shift_labels.contiguous(), vocab_size, num_items_in_batch, ignore_index)


def token_classification_loss(logits: Tensor, labels: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """The loss of logits (B, T, ``config.num_labels``) and labels (B, T); see :func:`cross_entropy_loss`."""
    return cross_entropy_loss(logits.view(-1, config.num_labels), labels.view(-1), **kwargs)


def sequence_classification_loss(labels: Tensor, pooled_logits: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """The loss of a classifier of sequences, by ``config.problem_type`` or what the labels are."""
    return sequence_classification(pooled_logits, labels, config.problem_type).mean


def question_answering_loss(
    start_logits: Tensor, end_logits: Tensor, start_positions: Tensor | None, end_positions: Tensor | None, **kwargs: Any
) -> Tensor | None:
    """The mean of the losses of both ends of a span, of logits (B, T); ``None`` where an end is."""
    if start_positions is None or end_positions is None:
        return None
    return total(spans(start_logits, end_logits, start_positions, end_positions), kwargs.get("num_items_in_batch"))


LOSSES = {
    "ForCausalLM": causal_lm_loss,
    "ForMaskedLM": masked_lm_loss,
    "ForQuestionAnswering": question_answering_loss,
    "ForSequenceClassification": sequence_classification_loss,
    "ForTokenClassification": token_classification_loss,
}


def prune_linear_layer(layer: nn.Linear, index: Tensor, dim: int = 0) -> nn.Linear:
    """A linear layer with those rows (``dim`` 0) or columns (1) of another's weight alone, on its device."""
    weight = layer.weight.detach().index_select(dim, index.to(layer.weight.device)).clone()
    pruned = nn.Linear(weight.shape[1], weight.shape[0], layer.bias is not None, weight.device, weight.dtype)
    pruned.weight = nn.Parameter(weight)
    if layer.bias is not None:
        bias = layer.bias.detach()
        pruned.bias = nn.Parameter((bias if dim == 1 else bias[index.to(bias.device)]).clone())
    return pruned


def find_pruneable_heads_and_indices(
    heads: list[int] | set[int], n_heads: int, head_size: int, already_pruned_heads: set[int]
) -> tuple[set[int], Tensor]:
    """The heads that are not pruned yet, and the positions of the elements that stay when they go."""
    new = set(heads) - already_pruned_heads
    # A head's place among those that are left.
    places = {head - sum(pruned < head for pruned in already_pruned_heads) for head in new}
    kept = [place for place in range(n_heads) if place not in places]
    index = torch.arange(n_heads * head_size).view(n_heads, head_size)[kept].flatten()
    return new, index


def id_tensor_storage(tensor: Tensor) -> tuple[torch.device, int, int]:
    """What two tensors have in common that share their memory: the device, the address of the memory, and its size in bytes."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr(), storage.nbytes()


# The classes of norms, whose weights are not decayed.
ALL_LAYERNORM_LAYERS: list[type[nn.Module]] = [nn.LayerNorm]
