"""FlexOlmo (Shi et al. 2025): OLMo 2 with experts that were trained apart, each on data of its own."""

from __future__ import annotations

from functools import partial

from torch import nn

from transept.config.fields import Experts, PaddingId
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers import OutputNorm
from transept.layers.moe import Router
from transept.layers.norm import WideRMSNorm
from transept.models.mixtral import MixtralModel, sparse_names
from transept.models.olmo2 import OLMO2_BLOCK, WholeNormAttention


class FlexOlmoConfig(BalancedConfig):
    """Settings of FlexOlmo; the defaults are those of its checkpoint with seven experts."""

    model_type = "flex_olmo"
    aliases = {"num_local_experts": "num_experts"}
    default_theta = 5e5

    vocab_size: int = 100352
    max_position_embeddings: int = 4096
    pad_token_id: PaddingId | None = 100277
    eos_token_id: int | list[int] | None = 100257
    attention_bias: bool = False
    num_experts_per_tok: int = 5
    num_experts: Experts = 7
    router_aux_loss_coef: float = 0.01  # type: ignore[misc]
    norm_topk_prob: bool = False  # whether the weights of those chosen sum to one


class FlexOlmoModel(MixtralModel):
    config_class = FlexOlmoConfig
    names = sparse_names({"gate": "router", "experts": "experts"}, OLMO2_BLOCK)
    block_class, attention_class = OutputNorm, WholeNormAttention
    norm_class = qk_norm_class = WideRMSNorm
    config: FlexOlmoConfig

    def experts(self) -> nn.Module:
        return sparse_mlp(self.config, self.config.intermediate_size, partial(Router, normalize=self.config.norm_topk_prob))


class FlexOlmoForCausalLM(ForSparseCausalLM[FlexOlmoModel]): ...
