"""GLM-4 (Team GLM 2024): Llama with fused gates, in which neighbouring elements of a half of each head turn together."""

from __future__ import annotations

from typing import Any, ClassVar

from transept.checkpoint.gguf import Layout
from transept.config.fields import Layers, PaddingId, derived
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, FusedGatedMLP, InterleavedAttention
from transept.models import llama
from transept.storage.gguf import GGUF


class GlmConfig(DecoderConfig):
    """Settings of GLM-4; the defaults are those of GLM-4 with 9 billion parameters. Half of each head turns."""

    model_type = "glm"
    default_share = 0.5

    vocab_size: int = 151552
    intermediate_size: int = 13696
    num_hidden_layers: Layers = 40
    num_key_value_heads: int = 2
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-7
    pad_token_id: PaddingId | None = 151329
    eos_token_id: int | list[int] | None = derived(lambda c: [151329, 151336, 151338])
    attention_bias: bool = True

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "attention_bias": any(name.endswith(("attn_q.bias", "attn_qkv.bias")) for name in gguf.tensors)
        }
        gathered, heads = gguf.tensors.get("blk.0.attn_output.weight"), values.get("num_attention_heads")
        if "head_dim" not in values and gathered is not None and heads:  # older files do not say it
            found["head_dim"] = gathered.shape[-1] // heads
        return values | found


class GlmModel(llama.LlamaModel):
    config_class: ClassVar[type[GlmConfig]] = GlmConfig
    gguf = Layout({"ffn_up": "mlp.gate_up_proj"}, architecture="chatglm")
    attention_class, mlp_class = InterleavedAttention, FusedGatedMLP

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, out_bias=False, **more)


class GlmForCausalLM(ForCausalLM[GlmModel]): ...


class GlmForSequenceClassification(llama.LlamaForSequenceClassification, backbone=GlmModel): ...


class GlmForTokenClassification(llama.LlamaForTokenClassification, backbone=GlmModel): ...
