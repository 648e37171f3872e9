"""Command R7B and Command A (Cohere 2024): Command R with windows, where layers that see all have no rotary positions."""

from __future__ import annotations

from torch import nn

from transept.config.fields import Count, Layers, PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import LayeredConfig
from transept.layers import InterleavedAttention, SharedNormParallel
from transept.models import llama
from transept.models.cohere import CohereForCausalLM, CohereModel


class Cohere2Config(LayeredConfig):
    """Settings of Command R7B and Command A; the sizes are those of Command R.

    Without ``layer_types`` one layer in ``sliding_window_pattern`` sees all, and has no rotary positions.
    """

    model_type = "cohere2"

    vocab_size: int = 256000
    hidden_size: int = 8192
    intermediate_size: int = 22528
    logit_scale: float = 0.0625
    num_hidden_layers: Layers = 40
    num_attention_heads: int = 64
    hidden_act: str = "silu"
    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 5
    eos_token_id: int | list[int] | None = 255001
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    sliding_window_pattern: Count = 4

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0

    def rope_kind(self, layer: int) -> str | None:
        return super().rope_kind(layer) if self.window(layer) is not None else None


class Cohere2Model(llama.LlamaModel):
    config_class = Cohere2Config
    names = CohereModel.names
    block_class, attention_class = SharedNormParallel, InterleavedAttention

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.layer_norm_eps, bias=False)


class Cohere2ForCausalLM(CohereForCausalLM, ForCausalLM[Cohere2Model]): ...
