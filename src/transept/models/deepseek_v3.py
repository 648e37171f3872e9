"""DeepSeek-V3 (DeepSeek-AI 2024): latent attention, and many small experts of which sigmoids choose, beside shared ones.

Experts are balanced by a bias that is added to their scores when they are chosen, and not by a loss. R1 is this too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import Joined, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Layers
from transept.config.gguf import SIGMOID
from transept.config.model import Config
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import LatentConfig, latent_attention
from transept.kinds.experts import SharedExpertsConfig, sparse_mlp
from transept.layers import Attention, GatedMLP
from transept.layers.moe import Router, SigmoidRouter
from transept.models.llama import LLAMA_BLOCK, LlamaForSequenceClassification, LlamaForTokenClassification
from transept.models.mixtral import MixtralModel, sparse_names
from transept.storage.gguf import GGUF


class DeepseekConfig(LatentConfig, SharedExpertsConfig):
    """What DeepSeek-V2 and V3 have in common: the settings that GGUF files have for both."""

    gguf_keys, gguf_head = {"attention.value_length_mla": "v_head_dim"}, "attention.key_length_mla"
    gating: ClassVar[int] = SIGMOID
    ungrouped: ClassVar[int | None] = 1  # how many groups there are of experts that are chosen from all
    grouped: ClassVar[Mapping[int, tuple[Any, Any]]] = {256: (8, 4)}  # numbers of experts whose files leave out their groups

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        count: Any = values.get("n_routed_experts")
        others: dict[str, Any] = {"q_lora_rank": None, "norm_topk_prob": False}
        others |= dict(zip(("n_group", "topk_group"), cls.grouped.get(count, (cls.ungrouped, cls.ungrouped)), strict=True))
        found = others | super().from_gguf(gguf, values)
        found |= {"num_key_value_heads": values.get("num_attention_heads"), "num_nextn_predict_layers": 0}
        weight = gguf.get("deepseek2.rope.scaling.yarn_log_multiplier", float)
        if weight and (rope := values.get("rope_scaling")):
            found["rope_scaling"] = rope | dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * weight, 4))
        return found

    def to_gguf(self) -> dict[str, Any]:
        rank = self.kv_lora_rank
        keys = {"key_length": rank + self.qk_rope_head_dim, "value_length": rank, "head_count_kv": 1}
        own: dict[str, Any] = {f"attention.{key}": value for key, value in keys.items()}
        rope = self.rope_parameters or {}
        if weight := rope.get("mscale_all_dim"):
            own["rope.scaling.yarn_log_multiplier"] = 0.1 * weight
        return super().to_gguf() | own | {"expert_gating_func": self.gating}


class DeepseekV3Config(DeepseekConfig):
    """Settings of DeepSeek-V3; the defaults are those of its checkpoint with 671 billion parameters.

    With ``rope_interleave`` elements of a head that are neighbours turn together.
    """

    model_type = "deepseek_v3"
    aliases = {"num_mtp_layers": "num_nextn_predict_layers"}

    vocab_size: int = 129280
    hidden_size: int = 7168
    intermediate_size: int = 18432
    num_hidden_layers: Layers = 61
    num_attention_heads: int = 128
    max_position_embeddings: int = 4096
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    attention_bias: bool = False
    pretraining_tp: int | None = 1
    rope_interleave: bool = True
    first_k_dense_replace: int = 3
    routed_scaling_factor: float = 2.5
    n_group: int | None = 8
    topk_group: int | None = 4
    num_nextn_predict_layers: int = 1


LATENT_ATTENTION: Table = {
    "q_proj": "q_proj",
    "q_a_proj": "q_a_proj",
    "q_a_layernorm": "q_a_norm",
    "q_b_proj": "q_b_proj",
    "kv_a_proj_with_mqa": "kv_a_proj",
    "kv_a_layernorm": "kv_a_norm",
    "kv_b_proj": "kv_b_proj",
    "o_proj": "o_proj",
}
LATENT_BLOCK: Table = {**LLAMA_BLOCK, "self_attn": ("self_attn", LATENT_ATTENTION)}
SHARED_EXPERTS: Table = {
    "experts": "experts",
    "gate": ("router", {"e_score_correction_bias": "correction_bias"}),
    "shared_experts": "shared",
}


# What expands latents to keys is stored apart from what expands them to values, transposed and by heads.
LATENT_FILES = Layout(
    joined={
        "attn_kv_b.weight": Joined(
            ("attn_k_b.weight", "attn_v_b.weight"),
            lambda parts, config: torch.cat([parts[0].mT, parts[1]], dim=1).flatten(0, 1),
            lambda tensor, config: _keys_and_values(tensor, config),
        )
    }
)


def _keys_and_values(tensor: Tensor, config: Any) -> tuple[Tensor, Tensor]:
    by_head = tensor.unflatten(0, (config.num_attention_heads, -1))  # type: ignore[no-untyped-call]
    keys, values = torch.split(by_head, [config.qk_nope_head_dim, config.v_head_dim], dim=1)
    return keys.mT, values


class DeepseekV3Model(MixtralModel):
    config_class: ClassVar[type[SharedExpertsConfig]] = DeepseekV3Config
    names = sparse_names(SHARED_EXPERTS, LATENT_BLOCK, exact=("correction_bias",))
    gguf = LATENT_FILES
    config: SharedExpertsConfig

    @classmethod
    def names_of(cls, config: Config) -> Names:
        first, count = config.num_hidden_layers, config.num_nextn_predict_layers
        return super().names_of(config) | Names(ignore=tuple(f"layers.{layer}" for layer in range(first, first + count)))

    def attention(self, layer: int, **more: Any) -> Attention:
        c: Any = self.config  # a kin with other attention has not its settings
        return latent_attention(c, layer, interleaved=c.rope_interleave)

    def router(self) -> Callable[..., Router]:
        """What makes a router of D, E and K."""
        c = self.config
        groups = {"groups": c.n_group or 1, "top_groups": c.topk_group or 1}
        return partial(SigmoidRouter, normalize=c.norm_topk_prob, scale=c.routed_scaling_factor, **groups)

    def experts(self) -> nn.Module:
        c, inner = self.config, self.config.moe_intermediate_size
        options: dict[str, Any] = {"bias": c.mlp_bias, "chunk_size": c.chunk_size_feed_forward}
        shared = GatedMLP(c.hidden_size, inner * c.n_shared_experts, c.hidden_act, **options) if c.n_shared_experts else None
        return sparse_mlp(c, inner, self.router(), shared=shared)


class DeepseekV3ForCausalLM(ForSparseCausalLM[DeepseekV3Model]): ...


class DeepseekV3ForSequenceClassification(LlamaForSequenceClassification, backbone=DeepseekV3Model): ...


class DeepseekV3ForTokenClassification(LlamaForTokenClassification, backbone=DeepseekV3Model): ...
