"""OLMo (Groeneveld et al. 2024): Llama with layer norms that have no weights, and bounded queries, keys and values."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.config.fields import PaddingId, Positive
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import Attention
from transept.models import llama


class OlmoConfig(GroupedConfig):
    """Settings of OLMo; the defaults are those of OLMo with 7 billion parameters.

    Queries, keys and values are clipped to ``clip_qkv`` and its negative, where it is given.
    """

    model_type = "olmo"

    vocab_size: int = 50304
    hidden_act: str = "silu"
    pad_token_id: PaddingId | None = 1
    eos_token_id: int | list[int] | None = 50279
    attention_bias: bool = False
    clip_qkv: Positive | None = None


class ClippedAttention(Attention):
    """Attention whose queries, keys and values are clipped to a range."""

    most: float | None = None

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        found = super().project(x)
        return found if self.most is None else tuple(part.clamp(-self.most, self.most) for part in found)


class OlmoModel(llama.LlamaModel):
    config_class = OlmoConfig
    gguf = llama.LlamaModel.gguf
    attention_class = ClippedAttention

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, eps=1e-5, elementwise_affine=False)

    def attention(self, layer: int, **more: Any) -> Attention:
        made: Any = super().attention(layer, **more)
        made.most = self.config.clip_qkv
        return made


class OlmoForCausalLM(ForCausalLM[OlmoModel]): ...


class OlmoForSequenceClassification(llama.LlamaForSequenceClassification, backbone=OlmoModel): ...
