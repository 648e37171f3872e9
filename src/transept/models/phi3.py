"""Phi-3 (Abdin et al. 2024): Llama with fused projections, dropout on the residual stream, and two lists of rotary factors.

Texts of up to ``original_max_position_embeddings`` positions turn by the short factors, longer ones by the long factors.
Phi-4 (mini) is this too, with heads of which a part turns.
"""

from __future__ import annotations

from typing import Any

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId, Share
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Block, FusedAttention, FusedGatedMLP
from transept.models import llama


class Phi3Config(DecoderConfig):
    """Settings of Phi-3; the defaults are those of Phi-3-mini with 4096 positions.

    ``sliding_window`` is how many positions a query sees, itself included; without it, all before it. ``embd_pdrop`` is kept
    and has no effect. The types ``su`` and ``yarn`` of rotary parameters in older files mean ``longrope``.
    """

    model_type = "phi3"
    default_share = 1.0
    gguf_keys = {"rope.scaling.original_context_length": "original_max_position_embeddings"}

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    resid_pdrop: Share = 0.0
    embd_pdrop: Share = 0.0
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    original_max_position_embeddings: Count = 4096
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 32000
    pad_token_id: PaddingId | None = 32000
    sliding_window: Count | None = None

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        found = super().complete(rope)
        return found | {"rope_type": "longrope"} if found.get("rope_type") in ("su", "yarn") else found

    def window(self, layer: int) -> int | None:
        return self.sliding_window


FUSED: Table = {name: name for name in ("o_proj", "qkv_proj")}
PHI3_BLOCK: Table = {**llama.LLAMA_BLOCK, "self_attn": ("self_attn", FUSED)}


class Phi3Model(llama.LlamaModel):
    config_class = Phi3Config
    names = llama.LlamaModel.names | Names({"layers.*": ("layers.*", PHI3_BLOCK)})
    attention_class, mlp_class = FusedAttention, FusedGatedMLP
    gguf = Layout({"ffn_up": "mlp.gate_up_proj"})
    config: Phi3Config

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, dropout=self.config.resid_pdrop, **more)


class Phi3ForCausalLM(ForCausalLM[Phi3Model]): ...


class Phi3ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Phi3Model): ...


class Phi3ForTokenClassification(llama.LlamaForTokenClassification, backbone=Phi3Model): ...
