"""StarCoder 2 (Lozhkov et al. 2024): Llama with biases, layer norms and feed-forward layers without gates."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Share
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import MLP, Block, Context
from transept.models import llama


class Starcoder2Config(GroupedConfig):
    """Settings of StarCoder 2; the defaults are those of the one with 3 billion parameters.

    ``sliding_window`` is how many positions a query sees, itself included. With ``use_bias`` all projections have biases.
    """

    model_type = "starcoder2"

    vocab_size: int = 49152
    hidden_size: int = 3072
    intermediate_size: int = 12288
    num_hidden_layers: Layers = 30
    num_attention_heads: int = 24
    num_key_value_heads: int = 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 4096
    initializer_range: Deviation = 0.018042
    norm_epsilon: float = 1e-5
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    sliding_window: Count | None = None
    residual_dropout: Share = 0.0
    embedding_dropout: Share = 0.0
    use_bias: bool = True
    tie_word_embeddings: bool = True

    attention_bias = mlp_bias = property(lambda self: self.use_bias)

    def window(self, layer: int) -> int | None:
        return self.sliding_window


STARCODER2_MLP: Table = {"c_fc": "up_proj", "c_proj": "down_proj"}


class Starcoder2Model(llama.LlamaModel):
    config_class = Starcoder2Config
    gguf = Layout()
    names = llama.LlamaModel.names | Names({"layers.*": ("layers.*", {**llama.LLAMA_BLOCK, "mlp": ("mlp", STARCODER2_MLP)})})
    mlp_class = MLP
    config: Starcoder2Config

    def __init__(self, config: Starcoder2Config) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.embedding_dropout)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return super().embed(self.dropout(x), types, positions, ctx)

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, dropout=self.config.residual_dropout, **more)

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.norm_epsilon)


class Starcoder2ForCausalLM(ForCausalLM[Starcoder2Model]): ...


class Starcoder2ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Starcoder2Model): ...


class Starcoder2ForTokenClassification(llama.LlamaForTokenClassification, backbone=Starcoder2Model): ...
