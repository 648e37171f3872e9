"""Prompts with a common prefix, such as one system prompt: it is read once, and its KV cache serves them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transept.core.model import Model
from transept.core.seq2seq import Stack
from transept.core.text import TextBackbone
from transept.layers.cache import DynamicCache
from transept.layers.rotary import Rotary
from transept.pipelines.batching import Sample

# A shorter prefix is not worth a pass of its own.
MIN_PREFIX = 32


@dataclass(eq=False)
class PrefixCache:
    """The first tokens of several prompts, and their KV cache until the last of so many (``left``) prompts is asked for."""

    ids: list[int]
    left: int
    cache: DynamicCache | None = None

    def read(self, model: Any, prompts: int) -> DynamicCache:
        """The cache of one row, for so many prompts."""
        cache = self.cache
        if cache is None:
            cache = DynamicCache()
            model(torch.tensor([self.ids], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        self.left -= prompts
        self.cache = cache if self.left > 0 else None
        return cache


def reusable(model: Model) -> bool:
    """Whether the cache of a prefix is the same wherever that stands in a batch and whatever follows it."""
    backbone = model.backbone
    if not isinstance(backbone, TextBackbone) or not backbone.causal or backbone.cache_class is not DynamicCache:
        return False
    if isinstance(backbone, Stack):  # half of an encoder–decoder counts padding too
        return False
    return not any(isinstance(part, Rotary) and part.frequencies.by_length for part in backbone.modules())


def share_prefixes(samples: Sequence[Sample]) -> None:
    """Give prompts with a common prefix its :class:`PrefixCache`, which keeps them in batches of their own.

    Their length becomes that of what is left to read. Prompts that differ from the others stay as they are.
    """
    for members in group_by_prefix([sample.inputs["input_ids"] for sample in samples]):
        first: list[int] = samples[members[0]].inputs["input_ids"]
        # The model must have something to go on from, also where a prompt is the prefix of another.
        shortest = min(samples[index].length for index in members) - 1
        same = min(common_prefix(first, samples[members[-1]].inputs["input_ids"]), shortest)
        prefix = PrefixCache(first[:same], len(members))
        for index in members:
            samples[index].group = prefix
            samples[index].length -= same


def group_by_prefix(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Groups of two or more prompts, as indices in the prompts' order, with a common prefix of ``MIN_PREFIX`` tokens or more.

    A prompt joins those before it only where they lose no more than half of what they have in common.
    """
    order = sorted((index for index, ids in enumerate(prompts) if len(ids) > MIN_PREFIX), key=lambda index: prompts[index])
    groups: list[list[int]] = []
    shared = 0
    for index in order:
        same = common_prefix(prompts[groups[-1][0]], prompts[index]) if groups else 0
        if same >= MIN_PREFIX and (len(groups[-1]) == 1 or 2 * same >= shared):
            groups[-1].append(index)
            shared = same
        else:
            groups.append([index])
    return [group for group in groups if len(group) > 1]


def common_prefix(one: list[int], other: list[int]) -> int:
    """How many tokens two prompts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
