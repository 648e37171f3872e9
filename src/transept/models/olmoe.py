"""OLMoE (Muennighoff et al. 2024): OLMo with 64 small experts in each layer, and norms of all queries and of all keys."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.config.fields import Experts, Layers, PaddingId, Positive
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers import Attention, Context, RMSNorm
from transept.layers.moe import Router
from transept.models.mixtral import MixtralModel, sparse_names
from transept.models.olmo2 import WholeNormAttention


class OlmoeConfig(BalancedConfig):
    """Settings of OLMoE; the defaults are those of OLMoE-1B-7B.

    Queries, keys and values are clipped to ``clip_qkv`` and its negative, where it is given.
    """

    model_type = "olmoe"
    aliases = {"num_local_experts": "num_experts"}

    vocab_size: int = 50304
    hidden_size: int = 2048
    intermediate_size: int = 2048
    num_hidden_layers: Layers = 16
    num_attention_heads: int = 16
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 1
    eos_token_id: int | list[int] | None = 50279
    attention_bias: bool = False
    clip_qkv: Positive | None = None
    num_experts_per_tok: int = 8
    num_experts: Experts = 64
    router_aux_loss_coef: float = 0.01  # type: ignore[misc]
    norm_topk_prob: bool = False  # whether the weights of those chosen sum to one


class ClippedNormAttention(WholeNormAttention):
    """Attention whose normed queries and keys, and values, are clipped to a range."""

    most: float | None = None

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().project(x)
        return q, k, self.clipped(v)

    def turned(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        return super().turned(self.clipped(q), self.clipped(k), ctx)

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.most is None else x.clamp(-self.most, self.most)


class OlmoeModel(MixtralModel):
    config_class = OlmoeConfig
    gguf = Layout()
    names = sparse_names({"gate": "router", "experts": "experts"})
    attention_class, qk_norm_class = ClippedNormAttention, RMSNorm
    config: OlmoeConfig

    def attention(self, layer: int, **more: Any) -> Attention:
        made: Any = super().attention(layer, **more)
        made.most = self.config.clip_qkv
        return made

    def experts(self) -> nn.Module:
        return sparse_mlp(self.config, self.config.intermediate_size, partial(Router, normalize=self.config.norm_topk_prob))


class OlmoeForCausalLM(ForSparseCausalLM[OlmoeModel]): ...
