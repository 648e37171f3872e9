"""BLOOM (Le Scao et al. 2022): a pre-norm decoder that knows positions only as biases of its scores (ALiBi)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout, by_head, of_matrix
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, ByHeadAttention, Context, Pattern, PreNorm, alibi, standard_layers


class BloomConfig(Config):
    """Settings of BLOOM; ``pretraining_tp`` and ``slow_but_exact`` have no effect: they changed the rounding of a sum."""

    model_type = "bloom"
    aliases = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "n_embed": "hidden_size"}

    vocab_size: int = 250880
    hidden_size: Annotated[int, Multiple("n_head")] = 64
    n_layer: Layers = 2
    n_head: int = 8
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    apply_residual_connection_post_layernorm: bool = False
    hidden_dropout: Share = 0.0
    attention_dropout: Share = 0.0
    classifier_dropout: Share | None = None
    pretraining_tp: int = 1
    slow_but_exact: bool = False


class BloomBlock(PreNorm):
    is_prepared = True  # biases by distance are made once for all layers


class NormedResidual(BloomBlock):
    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = self.self_attn_norm(x)
        x = self.mlp_norm(x + self.dropout(self.self_attn(x, ctx)[0]))
        return x + self.dropout(self.mlp(x))


BLOOM_BLOCK: Table = {
    "input_layernorm": "self_attn_norm",
    "self_attention.query_key_value": "self_attn.qkv_proj",
    "self_attention.dense": "self_attn.o_proj",
    "post_attention_layernorm": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}


class BloomModel(CausalBackbone):
    config_class = BloomConfig
    base_model_prefix = "transformer"
    head_dropouts = ("classifier_dropout", "hidden_dropout")
    reads = ("input_ids", "past_key_values", "attention_mask", "inputs_embeds", "labels", "use_cache")
    names = Names(
        {"word_embeddings": "embed_tokens", "word_embeddings_layernorm": "embed_norm"}
        | {"h.*": ("layers.*", BLOOM_BLOCK), "ln_f": "norm"}
    )
    gguf = Layout(changes=of_matrix("attn_qkv", by_head("num_attention_heads")))

    def __init__(self, config: BloomConfig) -> None:
        super().__init__(config)
        c, norm = config, partial(nn.LayerNorm, config.hidden_size, config.layer_norm_epsilon)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.embed_norm = norm()
        kind = NormedResidual if c.apply_residual_connection_post_layernorm else BloomBlock
        heads, pattern = c.num_attention_heads, Pattern(causal=True)
        attention = partial(ByHeadAttention, c.hidden_size, heads, pattern=pattern, dropout=c.attention_dropout)
        mlp = partial(MLP, c.hidden_size, 4 * c.hidden_size, "gelu_new")  # exact to 1e-9: BLOOM rounds the root of 2 / pi
        self.layers = standard_layers(c, partial(kind, dropout=c.hidden_dropout), attention, mlp, norm)
        self.norm = norm()

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.position_bias = alibi(self.config.n_head, ctx.keys, ctx.padding, x)
        return self.embed_norm(x)


class BloomForCausalLM(language.ForCausalLM[BloomModel]): ...


class BloomForSequenceClassification(classify.ForLastTokenClassification[BloomModel]): ...


class BloomForTokenClassification(classify.ForTokenClassification[BloomModel]): ...


class BloomForQuestionAnswering(span.ForQuestionAnswering[BloomModel]):
    omits = ("past_key_values",)
