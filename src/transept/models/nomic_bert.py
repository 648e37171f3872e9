"""Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions and gated feed-forward layers, for long texts."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.gguf import POST_NORM, Layout
from transept.checkpoint.keys import Fused, Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, Share, derived
from transept.config.rotary import FOR_ALL, RotaryConfig
from transept.heads import classify, language
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Attention, Context, GatedMLP, Pooler, PostNorm
from transept.layers.rotary import rotary_tables


class RotaryEncoderConfig(RotaryConfig, EncoderConfig):
    """What encoders with rotary positions and norms behind their sublayers have in common."""

    type_vocab_size: int = 2
    head_dim: int = derived(lambda c: c.divided("hidden_size", "num_attention_heads"))
    classifier_dropout: Share | None = None


class NomicBertConfig(RotaryEncoderConfig):
    """Settings of Nomic BERT."""

    model_type = "nomic_bert"
    default_theta = 1000.0

    vocab_size: int = 30528
    hidden_act: str = "silu"
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    max_position_embeddings: int = 2048
    pad_token_id: PaddingId | None = 0


EMBEDDINGS: Table = {"word_embeddings": "embed_tokens", "token_type_embeddings": "embed_types", "LayerNorm": "embed_norm"}


FUSED_POST_NORM = Layout(
    {
        **POST_NORM.layer,
        **dict.fromkeys(("attn_q", "attn_k", "attn_v")),
        "attn_qkv": Fused(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    }
)
"""The layout of GGUF files for layers whose norms stand behind, with one product for queries, keys and values."""


def layer_names(mlp: dict[str, str]) -> Table:
    """The names of a layer's parts, with those of its feed-forward layer."""
    return {
        "post_attention_layernorm": "self_attn_norm",
        "mlp": ("mlp", mlp),
        "self_attn": ("self_attn", {name: name for name in ("q_proj", "k_proj", "v_proj", "o_proj")}),
        "post_mlp_layernorm": "mlp_norm",
    }


def file_names(attention: str, mlp: dict[str, str]) -> Table:
    """What older files call the parts: their attention has one product."""
    inner: Table = {
        f"{attention}.Wqkv": Fused(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        f"{attention}.out_proj": "self_attn.o_proj",
        "mlp": ("mlp", mlp),
        "norm1": "post_attention_layernorm",
        "norm2": "post_mlp_layernorm",
    }
    return {"emb_ln": "embeddings.LayerNorm", "encoder.layers.*": ("layers.*", inner)}


class TypedEmbeddings(nn.Module):
    """The sum of the embeddings of words and of token types, normed: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: Any, size: int) -> None:
        super().__init__()
        c = config
        self.word_embeddings = nn.Embedding(c.vocab_size, size, padding_idx=c.pad_token_id)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, size)
        self.LayerNorm, self.dropout = nn.LayerNorm(size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        words: Any = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        types = self.token_type_embeddings
        return self.dropout(self.LayerNorm(words + (types.weight[0] if token_type_ids is None else types(token_type_ids))))


class NomicBertModel(TextBackbone):
    """Nomic BERT without a head; the pooler of ``add_pooling_layer`` makes ``pooler_output``."""

    config_class: ClassVar[type[RotaryEncoderConfig]] = NomicBertConfig
    head_dropouts = ("classifier_dropout", "hidden_dropout_prob")
    pooling = "pooler"
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", EMBEDDINGS),
            "pooler": "pooler",
            "layers.*": ("layers.*", layer_names({name: name for name in ("gate_proj", "up_proj", "down_proj")})),
        },
        files=file_names("attn", {"fc11": "up_proj", "fc12": "gate_proj", "fc2": "down_proj"}),
        ignore=("inv_freq", "original_inv_freq"),
    )
    gguf = FUSED_POST_NORM
    mlp_class: ClassVar[type[MLP]] = GatedMLP
    bias: ClassVar[bool] = False
    config: RotaryEncoderConfig

    def __init__(self, config: RotaryEncoderConfig, add_pooling_layer: bool = False) -> None:
        super().__init__(config)
        self.embeddings = TypedEmbeddings(config, config.hidden_size)
        for stored, own in EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.pooler = Pooler(config.hidden_size) if add_pooling_layer else None
        self.rotary_emb = rotary_tables(config)
        attention = partial(Attention, rotary=FOR_ALL, head_dim=config.head_dim)
        options: dict[str, Any] = {"attention": attention, "mlp": self.mlp_class, "qkv_bias": self.bias, "out_bias": self.bias}
        self.layers = encoder_layers(config, PostNorm, **options)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.rotary = self.rotary_emb.tables(positions, x.dtype)
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types)


class NomicBertForMaskedLM(language.ForMaskedLM[NomicBertModel]):
    tied_bias = True
    names = language.ForMaskedLM.names | Names(
        {
            "cls.predictions": (
                "lm_head",
                {"bias": "bias", "transform.dense": "dense", "transform.layer_norm": "norm", "decoder": "decoder"},
            )
        }
    )


class NomicBertForSequenceClassification(classify.ForSequenceClassification[NomicBertModel]):
    backbone_options: ClassVar[dict[str, Any]] = {"add_pooling_layer": True}


class NomicBertForTokenClassification(classify.ForTokenClassification[NomicBertModel]): ...
