"""MiniMax-M2 (MiniMax 2025): Mixtral with many small experts, which sigmoids choose, and norms of all queries and all keys."""

from __future__ import annotations

from typing import Any

from torch import nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Experts, Layers
from transept.config.gguf import SIGMOID
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers import RMSNorm
from transept.layers.moe import SigmoidRouter
from transept.models.llama import LLAMA_BLOCK, LlamaModel
from transept.models.mixtral import MixtralModel, experts_files
from transept.models.olmo2 import WholeNormAttention


class MiniMaxM2Config(BalancedConfig):
    """Settings of MiniMax-M2; the defaults are those of its checkpoint.

    ``rotary_dim`` of its files is how many elements of a head turn.
    """

    model_type = "minimax_m2"
    aliases = {"num_experts": "num_local_experts"}
    default_theta = 5e6

    vocab_size: int = 200064
    hidden_size: int = 3072
    intermediate_size: int = 1536
    num_hidden_layers: Layers = 62
    num_attention_heads: int = 48
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 196608
    bos_token_id: int | None = 200034
    eos_token_id: int | list[int] | None = 200020
    num_local_experts: Experts = 256
    num_experts_per_tok: int = 8
    router_jitter_noise: float = 0.0

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"expert_gating_func": SIGMOID, "expert_feed_forward_length": self.intermediate_size}

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        turned, size = values.get("rotary_dim"), values.get("head_dim") or cls.head_dim
        if isinstance(turned, int) and isinstance(size, int) and size > 0:
            values["rope_parameters"] = {"partial_rotary_factor": turned / size} | values["rope_parameters"]
        return values


MINIMAX_EXPERTS: Table = {"gate": "router", "experts": "experts", "e_score_correction_bias": "router.correction_bias"}
MINIMAX_FILES: Table = {**experts_files("w1", "w3", "w2"), "e_score_correction_bias": "e_score_correction_bias"}


class MiniMaxM2Model(MixtralModel):
    config_class = MiniMaxM2Config
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", {**LLAMA_BLOCK, "mlp": ("mlp", MINIMAX_EXPERTS)})},
        files={"layers.*.block_sparse_moe": ("layers.*.mlp", MINIMAX_FILES)},
        legacy={f"layers.*.mlp.{part}": f"layers.*.block_sparse_moe.{part}" for part in MINIMAX_EXPERTS},
        exact=("correction_bias",),
    )
    gguf = Layout()
    attention_class, qk_norm_class = WholeNormAttention, RMSNorm
    config: MiniMaxM2Config

    def experts(self) -> nn.Module:
        return sparse_mlp(self.config, self.config.intermediate_size, SigmoidRouter, jitter=self.config.router_jitter_noise)


class MiniMaxM2ForCausalLM(ForSparseCausalLM[MiniMaxM2Model]): ...
