"""Hunyuan (Tencent 2025), the models with experts: beside those that a router chooses, each layer has one for all tokens."""

from __future__ import annotations

from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.config.fields import Experts
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import SparseConfig, sparse_mlp
from transept.layers import GatedMLP, RMSNorm
from transept.layers.moe import Router, wide
from transept.models.hunyuan_v1_dense import HUNYUAN_BLOCK, HunYuanDenseV1Config, LateNormAttention
from transept.models.llama import LlamaForSequenceClassification
from transept.models.mixtral import MixtralModel, sparse_names


class HunYuanMoEV1Config(HunYuanDenseV1Config, SparseConfig):
    """Settings of Hunyuan's models with experts; a checkpoint states these.

    ``moe_topk`` is how many are chosen, in all layers or, as a list, in each.
    """

    model_type = "hunyuan_v1_moe"
    aliases = {"num_local_experts": "num_experts", "num_experts_per_tok": "moe_topk"}

    sep_token_id: int | None = 4
    num_experts: Experts = 1
    moe_topk: int | list[int] = 1

    def in_gguf(self) -> Self:
        """With one number for all layers, where they are alike."""
        chosen = {self.chosen(layer) for layer in range(self.num_hidden_layers)}
        return self.with_settings(moe_topk=chosen.pop()) if len(chosen) == 1 else self

    def to_gguf(self) -> dict[str, Any]:
        sizes = dict.fromkeys(("expert_feed_forward_length", "expert_shared_feed_forward_length"), self.intermediate_size)
        return super().to_gguf() | sizes | {"expert_shared_count": 1}

    def chosen(self, layer: int) -> int:
        """How many experts work on a token in a layer."""
        return self.moe_topk if isinstance(self.moe_topk, int) else self.moe_topk[layer]

    def check_experts(self) -> None:
        layers = self.num_hidden_layers
        if isinstance(self.moe_topk, list) and len(self.moe_topk) < layers:
            self.fail("moe_topk", f"must have a number for each of {layers} layers")
        if not all(1 <= self.chosen(layer) <= self.num_experts for layer in range(layers)):
            self.fail("moe_topk", f"must be between 1 and `num_experts` ({self.num_experts})")


class WideRouter(Router):
    """A router whose logits are of float32 at least."""

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(wide(x), wide(self.weight))


HUNYUAN_EXPERTS: Table = {"gate": ("router", {"wg.weight": "weight"}), "experts": "experts", "shared_mlp": "shared"}


class HunYuanMoEV1Model(MixtralModel):
    config_class = HunYuanMoEV1Config
    names = sparse_names(HUNYUAN_EXPERTS, HUNYUAN_BLOCK)
    gguf = Layout({"ffn_gate_inp": None, "ffn_gate_inp.weight": "mlp.router.weight"})
    attention_class, qk_norm_class = LateNormAttention, RMSNorm
    config: HunYuanMoEV1Config

    def feed_forward(self, layer: int) -> nn.Module:
        c = self.config
        sizes: Any = c.hidden_size, c.intermediate_size, c.hidden_act
        shared = GatedMLP(*sizes, chunk_size=c.chunk_size_feed_forward)
        return sparse_mlp(c, c.intermediate_size, WideRouter, top=c.chosen(layer), shared=shared)


class HunYuanMoEV1ForCausalLM(ForSparseCausalLM[HunYuanMoEV1Model]): ...


class HunYuanMoEV1ForSequenceClassification(LlamaForSequenceClassification, backbone=HunYuanMoEV1Model): ...
