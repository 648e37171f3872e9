"""GPT-NeoX (Black et al. 2022): a decoder whose attention and feed-forward layers read the same input, side by side.

A part of each head turns with its position. Pythia is this too.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout, by_head, of_matrix
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.rotary import FOR_ALL, RotaryConfig
from transept.core.inputs import PER_TOKEN
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, ByHeadAttention, Context, Parallel, Pattern, PreNorm, standard_layers
from transept.layers.rotary import rotary_tables


class GPTNeoXConfig(RotaryConfig):
    """Settings of GPT-NeoX; the defaults are those of its checkpoint with 20 billion parameters.

    A quarter of each head turns unless ``partial_rotary_factor`` says otherwise.
    """

    model_type = "gpt_neox"
    aliases = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    default_share = 0.25
    gguf_keys = {"use_parallel_residual": "use_parallel_residual"}

    vocab_size: int = 50432
    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 6144
    num_hidden_layers: Layers = 44
    num_attention_heads: int = 64
    intermediate_size: int = 24576
    hidden_act: str = "gelu"
    attention_dropout: Share = 0.0
    hidden_dropout: Share = 0.0
    classifier_dropout: Share = 0.1
    max_position_embeddings: int = 2048
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-5
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True
    attention_bias: bool = True
    is_decoder: bool = False


GPT_NEOX_BLOCK: Table = {
    "input_layernorm": "self_attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "attention": ("self_attn", {"query_key_value": "qkv_proj", "dense": "o_proj"}),
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}


class GPTNeoXModel(CausalBackbone):
    config_class = GPTNeoXConfig
    infers_texts = True
    head_dropouts = ("classifier_dropout",)
    reads = ("input_ids", "attention_mask", *PER_TOKEN[1:], "past_key_values", "labels", "use_cache", *PER_TOKEN[:1])
    names = Names(
        {"embed_in": "embed_tokens", "layers.*": ("layers.*", GPT_NEOX_BLOCK), "final_layer_norm": "norm"},
        legacy={"lm_head": "embed_out"},
        ignore=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    )
    gguf = Layout(changes=of_matrix("attn_qkv", by_head("num_attention_heads")))

    def __init__(self, config: GPTNeoXConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.dropout = nn.Dropout(c.hidden_dropout)
        norm = partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps)
        block = partial(Parallel if c.use_parallel_residual else PreNorm, dropout=c.hidden_dropout)
        options: dict[str, Any] = {"bias": c.attention_bias, "dropout": c.attention_dropout, "rotary": FOR_ALL}
        attention = partial(ByHeadAttention, c.hidden_size, c.num_attention_heads, pattern=Pattern(causal=True), **options)
        mlp = partial(MLP, c.hidden_size, c.intermediate_size, c.hidden_act)
        self.layers = standard_layers(c, block, attention, mlp, norm)
        self.norm = norm()
        self.rotary_emb = rotary_tables(c)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.rotary = self.rotary_emb.tables(positions, x.dtype)
        return self.dropout(x)


class GPTNeoXForCausalLM(language.ForCausalLM[GPTNeoXModel]):
    names = Names({"lm_head": "lm_head"}, files={"embed_out": "lm_head"}, ties=language.ForCausalLM.names.ties)


class GPTNeoXForSequenceClassification(classify.ForLastTokenClassification[GPTNeoXModel]): ...


class GPTNeoXForTokenClassification(classify.ForTokenClassification[GPTNeoXModel]):
    reads = ("input_ids", "past_key_values", "attention_mask", *PER_TOKEN, "labels", "use_cache")


class GPTNeoXForQuestionAnswering(span.ForQuestionAnswering[GPTNeoXModel]):
    reads = ("input_ids", "attention_mask", *PER_TOKEN, "start_positions", "end_positions")
