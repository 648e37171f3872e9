"""Gemma (Mesnard et al. 2024): Llama with large heads, scaled embeddings and norms whose weights are centred at one."""

from __future__ import annotations

from typing import Any

from transept.checkpoint.gguf import NORMS, PLUS_ONE, Layout
from transept.config.fields import Layers, PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import CAUSAL_ONLY, DecoderConfig
from transept.layers.norm import CenteredRMSNorm
from transept.models import llama
from transept.models.gemma2 import ScaledEmbedding


class GemmaConfig(DecoderConfig):
    """Settings of Gemma; the defaults are those of Gemma with 7 billion parameters.

    ``"gelu"`` as ``hidden_act`` of older files means ``"gelu_pytorch_tanh"``, which those models were trained with.
    """

    model_type = "gemma"

    vocab_size: int = 256000
    hidden_size: int = 3072
    intermediate_size: int = 24576
    num_hidden_layers: Layers = 28
    num_attention_heads: int = 16
    head_dim: int = 256
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    attention_bias: bool = False
    use_bidirectional_attention: bool | None = None

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        return values | {"hidden_act": "gelu_pytorch_tanh"} if values.get("hidden_act") == "gelu" else values

    def validate(self) -> None:
        super().validate()
        if self.use_bidirectional_attention:
            self.fail("use_bidirectional_attention", CAUSAL_ONLY)


class GemmaModel(llama.LlamaModel):
    config_class = GemmaConfig
    norm_class, embedding_class = CenteredRMSNorm, ScaledEmbedding
    gguf = Layout(changes=dict.fromkeys(NORMS, PLUS_ONE))


class GemmaForCausalLM(ForCausalLM[GemmaModel]): ...


class GemmaForSequenceClassification(llama.LlamaForSequenceClassification, backbone=GemmaModel): ...


class GemmaForTokenClassification(llama.LlamaForTokenClassification, backbone=GemmaModel): ...
