"""DeepSeek-V3 (DeepSeek-AI 2024): latent attention, and many small experts of which sigmoids choose, beside shared ones.

Experts are balanced by a bias that is added to their scores when they are chosen, and not by a loss. R1 is this too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch import nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Layers
from transept.config.model import Config
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import LatentConfig, latent_attention
from transept.kinds.experts import SharedExpertsConfig, sparse_mlp
from transept.layers import Attention, GatedMLP
from transept.layers.moe import Router, SigmoidRouter
from transept.models.llama import LLAMA_BLOCK, LlamaForSequenceClassification, LlamaForTokenClassification
from transept.models.mixtral import MixtralModel, sparse_names


class DeepseekV3Config(LatentConfig, SharedExpertsConfig):
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


class DeepseekV3Model(MixtralModel):
    config_class: ClassVar[type[SharedExpertsConfig]] = DeepseekV3Config
    names = sparse_names(SHARED_EXPERTS, LATENT_BLOCK, exact=("correction_bias",))
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
