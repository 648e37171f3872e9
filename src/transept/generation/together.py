"""Writing in several processes whose passes need each other, until the last of them is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def pass_together(model: Any, wanted: bool | None) -> bool:
    """Whether processes make each pass together: where it is wanted, or each has a shard of the weights (``fully_shard``)."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return several and (hasattr(model, "unshard") if wanted is None else wanted)


@contextmanager
def in_step(model: Any) -> Iterator[None]:
    """Inside, each pass of a model waits for those of the others; at the end passes are made until nobody writes."""
    given: dict[str, Any] = {}

    def begin(module: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        _anybody_writes(True, model.device)
        given.update(inputs)

    handle = model.register_forward_pre_hook(begin, with_kwargs=True, prepend=True)  # before weights are collected
    try:
        yield
    finally:
        handle.remove()
    states = given.get("encoder_outputs")
    rows = 1 if states is None else states[0].shape[0]
    name = "input_ids" if states is None else "decoder_input_ids"
    short: dict[str, Any] = {name: torch.zeros(rows, 1, dtype=torch.long, device=model.device), "use_cache": False}
    short |= {} if states is None else {"encoder_outputs": states, "attention_mask": given.get("attention_mask")}
    while _anybody_writes(False, model.device):
        model(**short)


def _anybody_writes(writes: bool, device: torch.device) -> bool:
    flag = torch.tensor([writes], dtype=torch.int32, device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
