"""DeepSeek-V2 (DeepSeek-AI 2024): latent attention, and many small experts, beside shared ones; a softmax chooses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.config.fields import Experts
from transept.config.gguf import SOFTMAX
from transept.heads.language import ForSparseCausalLM
from transept.layers.moe import Router, in_best_groups, wide
from transept.models.deepseek_v3 import DeepseekConfig, DeepseekV3Model
from transept.models.llama import LlamaForSequenceClassification
from transept.storage.gguf import GGUF


class DeepseekV2Config(DeepseekConfig):
    """Settings of DeepSeek-V2; the defaults are those of the reference, and of no checkpoint.

    ``topk_method`` is ``greedy``, or ``group_limited_greedy``: experts are chosen from the ``topk_group`` groups with the best
    ones. ``norm_topk_prob`` has no effect.
    """

    model_type = "deepseek_v2"
    rope_interleave = True
    gating, ungrouped = SOFTMAX, None
    grouped = {160: (8, 3)}
    aliases = {"num_experts": "n_routed_experts"}

    vocab_size: int = 102400
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    attention_bias: bool = False
    mlp_bias: bool = False
    pretraining_tp: int | None = 1
    n_shared_experts: int | None = 2
    n_routed_experts: Experts | None = 64
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int = 1407
    norm_topk_prob: bool = False
    n_group: int | None = None
    topk_group: int | None = None
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        found = super().from_gguf(gguf, values)
        return found | {"topk_method": "greedy" if found["n_group"] in (None, 1) else "group_limited_greedy"}


class GroupRouter(Router):
    """Chooses the most probable experts, of the best ``top_groups`` of ``groups`` alone."""

    def __init__(self, *sizes: int, groups: int, top_groups: int, **options: Any) -> None:
        super().__init__(*sizes, normalize=False, **options)
        self.groups, self.top_groups = groups, top_groups

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(wide(x), wide(self.weight))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = in_best_groups(F.softmax(logits, dim=-1), self.groups, self.top_groups, counted=1, otherwise=0.0)
        weights, experts = torch.topk(scores, self.top, dim=-1)
        return self.weigh(weights), experts


class DeepseekV2Model(DeepseekV3Model):
    config_class = DeepseekV2Config
    gguf = DeepseekV3Model.gguf
    config: DeepseekV2Config

    def router(self) -> Callable[..., Router]:
        c = self.config
        grouped = c.topk_method == "group_limited_greedy"
        groups, top = (c.n_group or 1, c.topk_group or 1) if grouped else (1, 1)
        return partial(GroupRouter, groups=groups, top_groups=top, scale=c.routed_scaling_factor)


class DeepseekV2ForCausalLM(ForSparseCausalLM[DeepseekV2Model]): ...


class DeepseekV2ForSequenceClassification(LlamaForSequenceClassification, backbone=DeepseekV2Model): ...
