"""Qwen3.5's model of texts with experts (Qwen Team 2026), one of which all tokens share."""

from __future__ import annotations

from transept.config.fields import Experts, Layers
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig
from transept.models.mixtral import sparse_names
from transept.models.qwen3_5_text import DELTA_FILES, SplitDeltaMixer
from transept.models.qwen3_next import DELTA_BLOCK, SHARED, DeltaConfig, Qwen3NextModel


class Qwen3_5MoeTextConfig(DeltaConfig, BalancedConfig):
    """Settings of Qwen3.5 with experts; the defaults are those of a checkpoint with 35 billion parameters."""

    model_type = "qwen3_5_moe_text"
    aliases = {"num_local_experts": "num_experts"}

    vocab_size: int = 248320
    num_hidden_layers: Layers = 40
    num_attention_heads: int = 16
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts_per_tok: int = 8
    num_experts: Experts = 256


class Qwen3_5MoeTextModel(Qwen3NextModel):
    config_class = Qwen3_5MoeTextConfig
    names = sparse_names(SHARED, DELTA_BLOCK, legacy={"language_model": ""}, ignore=("mtp", "visual"))
    gguf = DELTA_FILES
    mixer_class = SplitDeltaMixer


class Qwen3_5MoeForCausalLM(ForSparseCausalLM[Qwen3_5MoeTextModel]): ...
