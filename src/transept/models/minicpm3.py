"""MiniCPM3 (Hu et al. 2024): Llama with latent attention, and factors for embeddings, for what is added, and for logits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.names import Names
from transept.config.fields import Layers, derived
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import LatentConfig, latent_attention
from transept.layers import Attention, Block
from transept.models.deepseek_v3 import LATENT_BLOCK
from transept.models.granite import Multiplier
from transept.models.llama import LlamaForSequenceClassification, LlamaModel


class MiniCPM3Config(LatentConfig):
    """Settings of MiniCPM3; the defaults are those of MiniCPM3-4B.

    Embeddings are multiplied by ``scale_emb``, what a sublayer adds by ``scale_depth`` over the root of the number of layers;
    logits are divided by how many times ``dim_model_base`` the hidden size is. ``None`` leaves these as they are.
    """

    model_type = "minicpm3"

    vocab_size: int = 73448
    hidden_size: int = 2560
    intermediate_size: int = 6400
    num_hidden_layers: Layers = 62
    num_attention_heads: int = 40
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    initializer_range: float = 0.1
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    pretraining_tp: int | None = 1
    kv_lora_rank: int = 256
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 32
    v_head_dim: int = derived(lambda c: c.divided("hidden_size", "num_attention_heads"))
    scale_emb: float = 12.0
    scale_depth: float | None = 1.4
    dim_model_base: int | None = 256

    @property
    def logits_scaling(self) -> float:
        return self.hidden_size / (self.dim_model_base or self.hidden_size)


class FactorEmbedding(nn.Embedding):
    """Embeddings times a ``factor``."""

    factor: float = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.factor


class MiniCPM3Model(LlamaModel):
    config_class = MiniCPM3Config
    embedding_class = FactorEmbedding
    names = LlamaModel.names | Names({"layers.*": ("layers.*", LATENT_BLOCK)})
    gguf = Layout()
    embed_tokens: FactorEmbedding
    config: MiniCPM3Config

    def __init__(self, config: MiniCPM3Config) -> None:
        super().__init__(config)
        self.embed_tokens.factor = config.scale_emb

    def block(self, layer: int, **more: Any) -> Block:
        depth, root = self.config.scale_depth, math.sqrt(self.config.num_hidden_layers)
        return super().block(layer, branch=partial(Multiplier, 1.0 if depth is None else depth / root), **more)

    def attention(self, layer: int, **more: Any) -> Attention:
        return latent_attention(self.config, layer, interleaved=False)


class MiniCPM3ForCausalLM(ForCausalLM[MiniCPM3Model]):
    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden / self.config.logits_scaling)


class MiniCPM3ForSequenceClassification(LlamaForSequenceClassification, backbone=MiniCPM3Model): ...
