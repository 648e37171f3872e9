"""BART (Lewis et al. 2020): an encoder and a decoder with post-norm layers, trained to restore corrupted text.

Logits are shifted by a constant for each token, and without inputs of its own the decoder reads the encoder's, one later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, PaddingId, Share
from transept.config.model import Config
from transept.heads.seq2seq import ForBiasedGeneration, ForQuestionAnswering, ForSequenceClassification, StackForCausalLM
from transept.kinds.seq2seq import DecoderStack, EncoderStack, Seq2SeqBackbone, Seq2SeqConfig, Stack
from transept.layers import MLP, Attention, Block, Context, OffsetPositions, Pattern, PostNorm, PreNorm, standard_layers


class BartConfig(Seq2SeqConfig):
    """Settings of BART; the defaults are those of bart-large."""

    model_type = "bart"
    aliases = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads"}
    aliases |= {"num_hidden_layers": "encoder_layers", "initializer_range": "init_std"}

    vocab_size: int = 50265
    max_position_embeddings: int = 1024
    encoder_layers: Layers = 12
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: Layers = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    encoder_layerdrop: Share = 0.0
    decoder_layerdrop: Share = 0.0
    activation_function: str = "gelu"
    d_model: Annotated[int, Multiple("encoder_attention_heads"), Multiple("decoder_attention_heads")] = 1024
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    init_std: Deviation = 0.02
    classifier_dropout: Share = 0.0
    scale_embedding: bool = False
    num_labels: int = 3
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 2
    forced_eos_token_id: int | list[int] | None = 2

    @property
    def embed_scale(self) -> float:
        return math.sqrt(self.d_model) if self.scale_embedding else 1.0


class ScaledEmbedding(nn.Embedding):
    """Embeddings that are multiplied by ``embed_scale`` when they are looked up."""

    def __init__(self, c: Config) -> None:
        super().__init__(c.vocab_size, c.hidden_size, c.pad_token_id)
        self.scale = c.embed_scale

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.scale


_ATTENTION: Table = {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}
BART_BLOCK: Table = {
    "self_attn": ("self_attn", _ATTENTION),
    "self_attn_layer_norm": "self_attn_norm",
    "encoder_attn": ("cross_attn", _ATTENTION),
    "encoder_attn_layer_norm": "cross_attn_norm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
    "final_layer_norm": "mlp_norm",
}


class BartStack(Stack):
    """What the two stacks of BART have in common; pre-norm layers are followed by a last norm."""

    config_class = BartConfig
    block_class: ClassVar[type[Block]] = PostNorm
    attention_class: ClassVar[Callable[..., Attention]] = Attention  # of a sequence to itself
    cross_class: ClassVar[Callable[..., Attention]] = Attention
    norms_embeddings: ClassVar[bool] = True
    names = Names(
        {
            "embed_tokens": "embed_tokens",
            "embed_positions": "embed_positions",
            "layers.*": ("layers.*", BART_BLOCK),
            "layernorm_embedding": "embed_norm",
            "layer_norm": "norm",
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.make_embeddings(config)
        self.dropout = nn.Dropout(config.dropout)
        heads, inner, act = self.setting("attention_heads"), self.setting("ffn_dim"), config.activation_function
        options = {"dropout": config.attention_dropout, "bias": self.biased}
        attention = partial(self.attention_class, config.d_model, heads, **options)
        cross = partial(self.cross_class, config.d_model, heads, cross=self.cross, **options)
        self.layers = standard_layers(
            config,
            partial(self.block_class, dropout=config.dropout, layerdrop=self.setting("layerdrop"), bounds=not self.causal),
            partial(attention, pattern=Pattern(causal=self.causal)),
            partial(MLP, config.d_model, inner, act, dropout=config.activation_dropout),
            partial(nn.LayerNorm, config.d_model),
            cross=cross if self.cross else None,
            count=self.setting("layers"),
        )
        self.norm = nn.LayerNorm(config.d_model) if issubclass(self.block_class, PreNorm) else None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        x = x + self.embed_positions(positions).to(x.dtype)
        return self.dropout(x if self.embed_norm is None else self.embed_norm(x))

    @property
    def cross(self) -> bool | int:
        """Whether layers attend to the encoder's states, or the size of these where it is another."""
        return self.causal

    @property
    def biased(self) -> bool:
        """Whether attention has biases."""
        return True

    def setting(self, name: str) -> Any:
        """The encoder's or the decoder's setting of that name."""
        return getattr(self.config, f"{'decoder' if self.causal else 'encoder'}_{name}")

    def make_embeddings(self, c: Config) -> None:
        self.embed_tokens: nn.Embedding = ScaledEmbedding(c)
        self.embed_positions = self.make_positions(c)
        self.embed_norm = nn.LayerNorm(c.d_model) if self.norms_embeddings else None

    def make_positions(self, c: Config) -> nn.Module:
        return OffsetPositions(c.max_position_embeddings, c.d_model)


class BartEncoder(BartStack, EncoderStack):
    base_model_prefix = "model.encoder"


class BartDecoder(BartStack, DecoderStack):
    base_model_prefix = "model.decoder"
    # Of a whole model's checkpoint, where the table of embeddings may be stored once for both halves.
    names = BartStack.names | Names(
        legacy={f"{prefix}shared": f"{prefix}decoder.embed_tokens" for prefix in ("", "model.")},
        ignore=("encoder", "shared", "decoder.embed_tokens", "decoder.version", "final_logits_bias"),
    )


class BartModel(Seq2SeqBackbone):
    config_class = BartConfig
    encoder_class: ClassVar[type[Stack]] = BartEncoder
    decoder_class: ClassVar[type[Stack]] = BartDecoder
    base_model_prefix = "model"
    names = Seq2SeqBackbone.names | Names(ignore=("encoder.version", "decoder.version"))

    def default_decoder_ids(self, ids: Tensor | None) -> Tensor:
        return super().default_decoder_ids(ids) if ids is None else self.shifted(ids)


class BartForConditionalGeneration(ForBiasedGeneration[BartModel]): ...


class BartForSequenceClassification(ForSequenceClassification[BartModel]): ...


class BartForQuestionAnswering(ForQuestionAnswering[BartModel]): ...


class BartForCausalLM(StackForCausalLM[BartDecoder]): ...
