"""Llama (Touvron et al. 2023): a pre-norm decoder with rotary positions, grouped keys and values, and gated MLPs.

The most copied decoder there is: Mistral, Qwen and Gemma differ from it by a few settings or one sublayer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout, in_pairs, of_matrix
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.heads import classify, language, span
from transept.kinds.decoder import DecoderConfig, GroupedConfig, gated_mlp, grouped_attention
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Block, Context, GatedMLP, PreNorm, RMSNorm
from transept.layers.rotary import RotaryTables, rotary_tables


class LlamaConfig(DecoderConfig):
    """Settings of Llama; the defaults are those of Llama 1 with 7 billion parameters.

    ``pretraining_tp`` has no effect: it changed the rounding of some early checkpoints only.
    """

    model_type = "llama"

    hidden_act: str = "silu"
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    attention_bias: bool = False
    mlp_bias: bool = False
    pretraining_tp: int | None = 1


ATTENTION: Table = {name: name for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")}
NORMS: Table = {"input_layernorm": "self_attn_norm", "post_attention_layernorm": "mlp_norm"}
LLAMA_BLOCK: Table = {"self_attn": ("self_attn", ATTENTION), "mlp": "mlp", **NORMS}


class LlamaModel(CausalBackbone):
    config_class: ClassVar[type[GroupedConfig]] = LlamaConfig
    base_model_prefix = "model"
    infers_texts: ClassVar[bool] = True
    head_dropouts: ClassVar[tuple[str | float, ...]] = ("classifier_dropout", 0.1)
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "labels"),
        "use_cache",
    )
    names = Names({"layers.*": ("layers.*", LLAMA_BLOCK)}, legacy={"transformer": "model"}, ignore=("rotary_emb.inv_freq",))
    gguf = Layout(
        changes=of_matrix("attn_q", in_pairs("num_attention_heads")) | of_matrix("attn_k", in_pairs("num_key_value_heads"))
    )
    block_class: ClassVar[type[Block]] = PreNorm
    attention_class: ClassVar[type[Attention]] = Attention
    mlp_class: ClassVar[type[MLP]] = GatedMLP
    norm_class: ClassVar[type[RMSNorm]] = RMSNorm
    embedding_class: ClassVar[type[nn.Embedding]] = nn.Embedding
    qk_norm_class: ClassVar[type[RMSNorm] | None] = None  # norms each head's queries and keys before they turn
    config: GroupedConfig

    def __init__(self, config: GroupedConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = self.embedding_class(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        self.layers = nn.ModuleList(self.block(layer) for layer in range(c.num_hidden_layers))
        self.norm = self.make_norm()
        self.rotary_emb = self.make_rotary()

    def block(self, layer: int, **more: Any) -> Block:
        return self.block_class(self.attention(layer), self.feed_forward(layer), self.make_norm, **more)

    def make_norm(self) -> nn.Module:
        return self.norm_class(self.config.hidden_size, self.config.rms_norm_eps)

    def make_rotary(self) -> RotaryTables:
        return rotary_tables(self.config)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.rotary = self.rotary_emb.tables(positions, x.dtype)
        return x

    def attention(self, layer: int, **more: Any) -> Attention:
        norm = self.qk_norm_class and partial(self.qk_norm_class, eps=self.config.rms_norm_eps)
        options: dict[str, Any] = {"kind": self.attention_class, "bias": self.config.attention_bias, "qk_norm": norm}
        return grouped_attention(self.config, layer, **options | more)

    def feed_forward(self, layer: int) -> nn.Module:
        return gated_mlp(self.config, self.config.hidden_act, self.mlp_class)


class LlamaForCausalLM(language.ForCausalLM[LlamaModel]): ...


class LlamaForSequenceClassification(classify.ForLastTokenClassification[LlamaModel]): ...


class LlamaForTokenClassification(classify.ForTokenClassification[LlamaModel]):
    names = Names({"score": "head.out_proj"})


class LlamaForQuestionAnswering(span.ForQuestionAnswering[LlamaModel]):
    base_model_prefix = "transformer"
