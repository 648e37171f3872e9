"""Hunyuan (Tencent 2025), the dense models: Llama whose queries and keys are normed after they have turned."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.config.rotary import FOR_ALL
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, Context, RMSNorm
from transept.models import llama


class HunYuanDenseV1Config(DecoderConfig):
    """Settings of Hunyuan's dense models; the defaults are those of one with 7 billion parameters.

    Rotary parameters of the type ``dynamic`` with an ``alpha`` raise the base once and for all. ``eod_token_id`` and
    ``pretraining_tp`` are kept and have no effect.
    """

    model_type = "hunyuan_v1_dense"

    vocab_size: int = 290943
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    eod_token_id: int | None = 3
    pretraining_tp: int = 1
    attention_bias: bool = False

    def rope(self, kind: str = FOR_ALL) -> dict[str, Any]:
        rope = super().rope(kind)
        if rope.get("rope_type") != "dynamic" or not (alpha := rope.get("alpha")):
            return rope
        raised = rope["rope_theta"] * alpha ** (self.head_dim / (self.head_dim - 2))
        return rope | {"rope_type": "default", "rope_theta": raised}


class LateNormAttention(Attention):
    """Attention whose queries and keys are normed after they have turned."""

    def placed(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        q, k = self.turned(q, k, ctx)
        return self.q_norm(q), self.k_norm(k)


PROJECTIONS: Table = {name: name for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
HUNYUAN_ATTENTION: Table = {**PROJECTIONS, "query_layernorm": "q_norm", "key_layernorm": "k_norm"}
HUNYUAN_BLOCK: Table = {**llama.LLAMA_BLOCK, "self_attn": ("self_attn", HUNYUAN_ATTENTION)}


class HunYuanDenseV1Model(llama.LlamaModel):
    config_class = HunYuanDenseV1Config
    names = llama.LlamaModel.names | Names({"layers.*": ("layers.*", HUNYUAN_BLOCK)})
    gguf = Layout()
    attention_class, qk_norm_class = LateNormAttention, RMSNorm


class HunYuanDenseV1ForCausalLM(ForCausalLM[HunYuanDenseV1Model]): ...


class HunYuanDenseV1ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=HunYuanDenseV1Model): ...
