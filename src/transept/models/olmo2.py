"""OLMo 2 (OLMo et al. 2024): Llama whose norms come after each sublayer, and that norms all queries, and all keys, as one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transept.checkpoint.gguf import NORMED_OUTPUTS
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, Context, OutputNorm
from transept.layers.norm import WideRMSNorm
from transept.models import llama


class Olmo2Config(DecoderConfig):
    """Settings of OLMo 2; the defaults are those of OLMo 2 with 7 billion parameters."""

    model_type = "olmo2"

    vocab_size: int = 50304
    hidden_act: str = "silu"
    pad_token_id: PaddingId | None = 1
    eos_token_id: int | list[int] | None = 50279
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False


class WholeNormAttention(Attention):
    """Attention whose norms are of the queries, and of the keys, of all heads as one vector."""

    heads_apart = False

    def head_norm(self, make: Callable[..., nn.Module], heads: int) -> nn.Module:
        return make(heads * self.head_dim)

    def placed(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        q, k = (x.transpose(1, 2).flatten(2) for x in (q, k))
        return self.turned(self.split(self.q_norm(q)), self.split(self.k_norm(k)), ctx)


OUTPUT_NORMS: Table = {"post_attention_layernorm": "self_attn_norm", "post_feedforward_layernorm": "mlp_norm"}
OLMO2_BLOCK: Table = {"self_attn": ("self_attn", llama.ATTENTION), "mlp": "mlp", **OUTPUT_NORMS}


class Olmo2Model(llama.LlamaModel):
    config_class = Olmo2Config
    gguf = NORMED_OUTPUTS
    names = llama.LlamaModel.names | Names({"layers.*": ("layers.*", OLMO2_BLOCK)})
    block_class, attention_class = OutputNorm, WholeNormAttention
    norm_class = qk_norm_class = WideRMSNorm


class Olmo2ForCausalLM(ForCausalLM[Olmo2Model]): ...


class Olmo2ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Olmo2Model): ...
