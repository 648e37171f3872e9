"""GLM-4.5 and GLM-4.6 (GLM-4.5 Team 2025): the experts of DeepSeek-V3 with grouped heads, half of each of which turns."""

from __future__ import annotations

from typing import Any

from transept.checkpoint.gguf import Layout
from transept.config.fields import Experts, Layers, derived
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import SharedExpertsConfig
from transept.layers import Attention, RMSNorm
from transept.models.deepseek_v3 import SHARED_EXPERTS, DeepseekV3Model
from transept.models.llama import LlamaModel
from transept.models.mixtral import sparse_names
from transept.storage.gguf import GGUF


class Glm4MoeConfig(SharedExpertsConfig):
    """Settings of GLM-4.5; the defaults are those of GLM-4.5-Air. ``use_qk_norm`` norms each head's queries and keys."""

    model_type = "glm4_moe"
    aliases = {"num_mtp_layers": "num_nextn_predict_layers"}
    default_share = 0.5

    vocab_size: int = 151552
    intermediate_size: int = 10944
    num_hidden_layers: Layers = 46
    num_attention_heads: int = 96
    num_key_value_heads: int = 8
    head_dim: int = derived(lambda c: c.hidden_size // c.num_attention_heads)  # the defaults leave a rest
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    use_qk_norm: bool = False
    n_routed_experts: Experts | None = 128
    moe_intermediate_size: int = 1408
    first_k_dense_replace: int = 1
    num_nextn_predict_layers: int = 1

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        parts = {"use_qk_norm": "attn_q_norm.weight", "attention_bias": "attn_q.bias"}
        return values | {name: f"blk.0.{part}" in gguf.tensors for name, part in parts.items()}


class Glm4MoeModel(DeepseekV3Model):
    config_class = Glm4MoeConfig
    names = sparse_names(SHARED_EXPERTS, exact=("correction_bias",))
    gguf = Layout({"ffn_norm": None, "post_attention_norm": "mlp_norm"})
    config: Glm4MoeConfig

    def attention(self, layer: int, **more: Any) -> Attention:
        norm = {} if self.config.use_qk_norm else {"qk_norm": None}
        return LlamaModel.attention(self, layer, out_bias=False, **norm, **more)

    qk_norm_class = RMSNorm


class Glm4MoeForCausalLM(ForSparseCausalLM[Glm4MoeModel]): ...
