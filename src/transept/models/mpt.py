"""MPT (MosaicML 2023): a decoder without any biases, which knows positions only as biases of its scores (ALiBi)."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Range, Share
from transept.config.model import Config
from transept.core.parts import CompositeConfig
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Context, FusedAttention, Pattern, PreNorm, alibi, standard_layers
from transept.storage.gguf import GGUF


class MptAttentionConfig(Config):
    """Settings of MPT's attention.

    ``attn_pdrop`` is for all dropouts of a layer, ``clip_qkv`` the largest number of queries, keys and values, and
    ``alibi_bias_max`` says how steep biases are. Those without a word here, but for ``softmax_scale``, have no effect.
    """

    attn_type: Literal["multihead_attention", "multiquery_attention"] = "multihead_attention"
    attn_pdrop: Annotated[int | float, Range(0, 1)] = 0
    attn_impl: str = "torch"
    clip_qkv: float | None = None
    softmax_scale: float | None = None
    prefix_lm: bool = False
    qk_ln: bool = False
    attn_uses_sequence_id: bool = False
    alibi: bool = True
    alibi_bias_max: int = 8


class MptConfig(CompositeConfig):
    """Settings of MPT; the defaults are those of the reference.

    Models have no dropout but ``attn_config.attn_pdrop``, no biases, no scale of logits, and feed-forward layers that are four
    times as wide as states: what the others of these settings say has no effect.
    """

    model_type = "mpt"
    aliases = {"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"}
    parts: ClassVar[dict[str, Any]] = {"attn_config": MptAttentionConfig}

    d_model: Annotated[int, Multiple("n_heads")] = 2048
    n_heads: int = 16
    n_layers: Layers = 24
    expansion_ratio: int = 4
    max_seq_len: int = 2048
    vocab_size: int = 50368
    resid_pdrop: Share = 0.0
    layer_norm_epsilon: float = 1e-5
    emb_pdrop: Share = 0.0
    learned_pos_emb: bool = True
    attn_config: MptAttentionConfig = field(default_factory=MptAttentionConfig)
    init_device: str = "cpu"
    logit_scale: float | str | None = None
    no_bias: bool = True
    embedding_fraction: float = 1.0
    norm_type: str = "low_precision_layernorm"
    use_cache: bool = False
    initializer_range: Deviation = 0.02

    gguf_keys = {"context_length": "max_seq_len"}

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        own = {"clip_qkv": "clamp_kqv", "alibi_bias_max": "max_alibi_bias"}
        found = {name: gguf.get(f"mpt.attention.{key}", float) for name, key in own.items()}
        most = found["alibi_bias_max"]
        return values | {"attn_config": found | {"alibi_bias_max": 8 if most is None else int(most)}}

    def to_gguf(self) -> dict[str, Any]:
        own = self.attn_config
        clip = {} if own.clip_qkv is None else {"attention.clamp_kqv": own.clip_qkv}
        return super().to_gguf() | clip | {"attention.max_alibi_bias": float(own.alibi_bias_max)}


class MptBlock(PreNorm):
    is_prepared = True  # biases by distance are made once for all layers


class ClippedAttention(FusedAttention):
    """Attention whose queries, keys and values have no number beyond ``clip``."""

    def __init__(self, dim: int, heads: int, clip: float | None, **options: Any) -> None:
        super().__init__(dim, heads, **options)
        self.clip = clip

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        found = super().project(x)
        return tuple(part.clamp(-self.clip, self.clip) for part in found) if self.clip else found


MPT_BLOCK: Table = {
    "norm_1": "self_attn_norm",
    "attn": ("self_attn", {"Wqkv": "qkv_proj", "out_proj": "o_proj"}),
    "norm_2": "mlp_norm",
    "ffn": ("mlp", {"up_proj": "up_proj", "down_proj": "down_proj"}),
}


class MptModel(CausalBackbone):
    config_class = MptConfig
    base_model_prefix = "transformer"
    head_dropouts = (0.1,)
    reads = ("input_ids", "past_key_values", "attention_mask", "inputs_embeds", "labels", "use_cache")
    names = Names({"wte": "embed_tokens", "blocks.*": ("layers.*", MPT_BLOCK), "norm_f": "norm"})
    gguf = Layout()

    def __init__(self, config: MptConfig) -> None:
        super().__init__(config)
        c, settings = config, config.attn_config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        norm = partial(nn.LayerNorm, c.d_model, c.layer_norm_epsilon, bias=False)
        options: dict[str, Any] = {"bias": False, "pattern": Pattern(causal=True), "dropout": settings.attn_pdrop}
        attention = partial(ClippedAttention, c.d_model, c.n_heads, settings.clip_qkv, scale=settings.softmax_scale, **options)
        mlp = partial(MLP, c.d_model, 4 * c.d_model, "gelu", bias=False)
        self.layers = standard_layers(c, partial(MptBlock, dropout=settings.attn_pdrop), attention, mlp, norm)
        self.norm = norm()

    @property
    def max_positions(self) -> int | None:
        return None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.position_bias = alibi(self.config.n_heads, ctx.keys, ctx.padding, x, most=self.config.attn_config.alibi_bias_max)
        return x


class MptForCausalLM(language.ForCausalLM[MptModel]): ...


class MptForSequenceClassification(classify.ForLastTokenClassification[MptModel]): ...


class MptForTokenClassification(classify.ForTokenClassification[MptModel]): ...


class MptForQuestionAnswering(span.ForQuestionAnswering[MptModel]):
    omits = (*span.ForQuestionAnswering.omits, "past_key_values")
