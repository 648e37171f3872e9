"""ERNIE 4.5 (Baidu 2025): Llama in which neighbouring elements of a head turn together."""

from __future__ import annotations

from transept.checkpoint.gguf import Layout
from transept.config.fields import Layers, PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import InterleavedAttention
from transept.models import llama


class Ernie4_5Config(DecoderConfig):  # noqa: N801 (the reference's name)
    """Settings of ERNIE 4.5; the defaults are those of ERNIE 4.5 with 0.3 billion parameters.

    With ``use_bias`` all projections have biases.
    """

    model_type = "ernie4_5"
    default_theta = 5e5

    vocab_size: int = 103424
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: Layers = 18
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True
    use_bias: bool | None = False

    attention_bias = mlp_bias = property(lambda self: bool(self.use_bias))


class Ernie4_5Model(llama.LlamaModel):  # noqa: N801
    config_class = Ernie4_5Config
    gguf = Layout()
    attention_class = InterleavedAttention


class Ernie4_5ForCausalLM(ForCausalLM[Ernie4_5Model]): ...  # noqa: N801
