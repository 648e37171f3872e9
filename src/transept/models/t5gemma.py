"""T5Gemma (Zhang et al. 2025): an encoder–decoder made of two Gemma 2, of which the first reads in both directions.

The second looks at the first by cross-attention between two norms; each has its own sizes and its own table of embeddings.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Share
from transept.config.model import Config
from transept.core.parts import Composed, CompositeConfig, Part
from transept.heads.classify import Classifier, ForTokenClassification, HeadedTask, PooledTask
from transept.heads.seq2seq import ForConditionalGeneration, Seq2SeqTask
from transept.kinds.decoder import gated_mlp
from transept.kinds.seq2seq import DecoderStack, EncoderStack, Seq2SeqBackbone, Seq2SeqConfig, Stack, shifted
from transept.kinds.text import TextBackbone
from transept.layers import Attention, Block, Context, GatedMLP, SandwichNorm
from transept.models.gemma2 import Gemma2Config, Gemma2Model, softcap
from transept.outputs import BackboneOutput, LogitsOutput, Seq2SeqOutput


class T5GemmaModuleConfig(Gemma2Config):
    """Settings of one of T5Gemma's stacks; the whole model's config says dropouts, and the size of the states that are read."""

    model_type = "t5_gemma_module"

    is_decoder: bool = False
    dropout_rate: Share = 0.0
    cross_attention_hidden_size: Count | None = None
    use_bidirectional_attention = None

    is_causal = property(lambda self: self.is_decoder)
    decoder_start_token_id = property(lambda self: self.bos_token_id)

    def window(self, layer: int) -> int | None:
        """An encoder sees as many positions on either side, beside its own."""
        window = super().window(layer)
        return window if window is None or self.is_decoder else window + 1


class T5GemmaConfig(Seq2SeqConfig, CompositeConfig):
    """Settings of T5Gemma: those of its two stacks, which have its dropouts, and the ids of special tokens of the decoder."""

    model_type = "t5gemma"
    parts: ClassVar[dict[str, Any]] = {"encoder": T5GemmaModuleConfig, "decoder": T5GemmaModuleConfig}

    encoder: T5GemmaModuleConfig = field(default_factory=T5GemmaModuleConfig)
    decoder: T5GemmaModuleConfig = field(default_factory=T5GemmaModuleConfig)
    dropout_rate: Share = 0.0
    classifier_dropout_rate: Share = 0.0
    attention_dropout: Share = 0.0
    vocab_size: int = 256000
    initializer_range: Deviation = 0.02

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        ids = {name: getattr(values["decoder"], name) for name in ("bos_token_id", "pad_token_id", "eos_token_id")}
        return {"initializer_range": values["decoder"].initializer_range} | ids | values

    def set_vocab_size(self, size: int) -> None:
        self.vocab_size = self.encoder.vocab_size = self.decoder.vocab_size = size

    def validate(self) -> None:
        super().validate()
        shared = {"dropout_rate": self.dropout_rate, "attention_dropout": self.attention_dropout}
        self.encoder.change({**shared, "is_decoder": False})
        sizes = {"cross_attention_hidden_size": self.encoder.hidden_size}
        self.decoder.change({**shared, **sizes, "is_decoder": True, "use_cache": True})


class T5GemmaBlock(SandwichNorm):
    """Gemma 2's block, with cross-attention between norms where there is some; dropout comes after the norms."""

    def __init__(self, attention: Attention, mlp: nn.Module, norm: Any, **options: Any) -> None:
        super().__init__(attention, mlp, norm, **options)
        self.cross_attn_post_norm = None if self.cross_attn is None else norm()

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = ctx.keep(x) + self.dropout(self.self_attn_post_norm(self.self_attn(self.self_attn_norm(x), ctx)[0]))
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            read = self.cross_attn(self.cross_attn_norm(x), ctx)[0]
            x = x + self.dropout(self.cross_attn_post_norm(read))  # type: ignore[misc]
        return x + self.dropout(self.mlp_post_norm(self.mlp(self.mlp_norm(x), ctx)))


BLOCK: Table = {
    "self_attn": "self_attn",
    "pre_self_attn_layernorm": "self_attn_norm",
    "post_self_attn_layernorm": "self_attn_post_norm",
    "mlp": "mlp",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}
CROSS: Table = {
    "cross_attn": "cross_attn",
    "pre_cross_attn_layernorm": "cross_attn_norm",
    "post_cross_attn_layernorm": "cross_attn_post_norm",
}


class T5GemmaStack(Gemma2Model, Stack):
    config_class = T5GemmaModuleConfig
    block_class, embedding_class = T5GemmaBlock, nn.Embedding  # type: ignore[assignment]
    infers_texts = False
    names = Names(
        {"embed_tokens": "embed_tokens", "norm": "norm", "layers.*": ("layers.*", BLOCK)}, ignore=("rotary_emb.inv_freq",)
    )
    config: T5GemmaModuleConfig

    def __init__(self, config: T5GemmaModuleConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, dropout=self.config.dropout_rate, **more)

    def feed_forward(self, layer: int) -> nn.Module:
        return gated_mlp(self.config, self.config.hidden_activation, partial(GatedMLP, dropout=self.config.dropout_rate))

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Embeddings that are given are scaled too."""
        scale = torch.full((), self.dim**0.5, dtype=x.dtype, device=x.device)
        return self.dropout(super().embed(x * scale, types, positions, ctx))

    def finalize(self, x: Tensor) -> Tensor:
        return self.dropout(super().finalize(x))


class T5GemmaEncoder(T5GemmaStack, EncoderStack):
    base_model_prefix = "encoder"
    causal = False
    reads = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")


class T5GemmaDecoder(T5GemmaStack, DecoderStack):
    base_model_prefix = "decoder"
    names = T5GemmaStack.names | Names({"layers.*": ("layers.*", {**BLOCK, **CROSS})})
    reads = (
        *("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "use_cache"),
        *("encoder_hidden_states", "encoder_attention_mask"),
    )

    def block(self, layer: int, **more: Any) -> Block:
        cross = self.attention(layer, cross=self.config.cross_attention_hidden_size or True)
        return super().block(layer, cross=cross, **more)

    def infer_mask(self, ids: Tensor) -> Tensor | None:
        """Padding, at whatever place, is what has its id: labels that are ignored become it, and sequences start otherwise."""
        pad = self.config.pad_token_id
        return None if pad is None else ids.ne(pad)


class _Whole(Composed):
    """What models with both stacks and those with the encoder alone have in common."""

    config_class = T5GemmaConfig
    base_model_prefix = "model"
    head_dropouts: ClassVar[tuple[str | float, ...]] = ("classifier_dropout_rate",)

    def deviation(self, module: nn.Module) -> float:
        """That of heads falls with the number of their rows."""
        return super().deviation(module) * (module.out_features**-0.5 if isinstance(module, nn.Linear) else 1.0)


class T5GemmaModel(_Whole, Seq2SeqBackbone):
    """T5Gemma without a head; ``embed_tokens`` is the encoder's."""

    encoder_reads = ("position_ids",)
    reads = (
        *("input_ids", "attention_mask", "position_ids", "decoder_input_ids", "decoder_attention_mask", "decoder_position_ids"),
        *("encoder_outputs", "past_key_values", "inputs_embeds", "decoder_inputs_embeds", "labels", "use_cache"),
    )
    names = Names()

    @classmethod
    def parts_of(cls, config: Config) -> tuple[Part, ...]:
        return Part("encoder", T5GemmaEncoder, "encoder"), Part("decoder", T5GemmaDecoder, "decoder")

    dim = property(lambda self: self.decoder.dim)

    def joined(self, decoded: BackboneOutput, encoded: BackboneOutput) -> Seq2SeqOutput:
        """The output, which has the last of the decoder's hidden states where none are asked for."""
        output = super().joined(decoded, encoded)
        output["decoder_hidden_states"] = decoded.hidden_states or (decoded.last_hidden_state,)
        return output

    def shifted(self, ids: Tensor) -> Tensor:
        return shifted(self.config.decoder, ids)

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.encoder.replace_embedding_table(table)


class T5GemmaEncoderModel(_Whole, TextBackbone):
    """T5Gemma's encoder as a model by itself; it reads the checkpoints of whole models too."""

    parts = (Part("encoder", T5GemmaEncoder, "encoder"),)
    token_parts = ("encoder",)
    pooling = "last"
    reads = T5GemmaEncoder.reads
    names = Names(ignore=("decoder", "lm_head"))

    def __init__(self, config: T5GemmaConfig) -> None:
        super().__init__(config.with_settings(is_encoder_decoder=False))

    dim = property(lambda self: self.encoder.dim)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **asked: Any,
    ) -> Any:
        return self.encoder(input_ids, attention_mask, position_ids, inputs_embeds, **asked)


class T5GemmaForConditionalGeneration(ForConditionalGeneration[T5GemmaModel]):
    names = Names({"lm_head": "lm_head"}, ties={"lm_head.out_proj.weight": "backbone.decoder.embed_tokens.weight"})

    def __init__(self, config: T5GemmaConfig) -> None:
        super().__init__(config)
        self.lm_head: Any = Classifier(self.backbone.dim, self.backbone.decoder.vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.lm_head.out_proj

    def score(self, hidden: Tensor) -> Tensor:
        return softcap(super().score(hidden), self.config.decoder.final_logit_softcapping)


class _Classification(Seq2SeqTask[T5GemmaModel], HeadedTask[T5GemmaModel]):
    """What the decoder makes of a text that both stacks read, or with ``is_encoder_decoder=False`` the encoder alone."""

    names = Names({"score": "head"})
    refuses, output_class = ("past_key_values", "use_cache"), LogitsOutput

    def __init__(self, config: T5GemmaConfig, is_encoder_decoder: bool | None = None) -> None:
        super().__init__(config if is_encoder_decoder is None else config.with_settings(is_encoder_decoder=is_encoder_decoder))

    @classmethod
    def backbone_part(cls, config: Config) -> Part:
        part = super().backbone_part(config)
        return part if config.is_encoder_decoder else replace(part, kind=T5GemmaEncoderModel)

    def reads_cache(self, labels: Tensor | None) -> bool:
        return False

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> BackboneOutput:
        if not self.config.is_encoder_decoder:
            given = {name: value for name, value in inputs.items() if not name.startswith(("decoder_", "encoder_"))}
            return super(Seq2SeqTask, self).encode(given, labels)
        found = super().encode(inputs, labels)
        seen = {name: found.get(f"decoder_{name}") for name in ("hidden_states", "attentions")}
        return BackboneOutput(last_hidden_state=found.last_hidden_state, **seen)


class T5GemmaForSequenceClassification(_Classification, PooledTask[T5GemmaModel]):
    """One of C classes for each sequence, by the state of its last token: ``logits`` (B, C), ``labels`` (B)."""

    pooling = "last"

    @property
    def rows_apart(self) -> bool:
        """False for both stacks: of a text that nothing pads, the decoder does not read the last token."""
        return not self.config.is_encoder_decoder

    def pooled(self, states: BackboneOutput, inputs: dict[str, Any]) -> Tensor:
        side = "decoder_" if self.config.is_encoder_decoder else ""
        return self.pool(states, inputs.get(f"{side}input_ids"), inputs.get(f"{side}attention_mask"))


class T5GemmaForTokenClassification(_Classification, ForTokenClassification[T5GemmaModel]): ...
