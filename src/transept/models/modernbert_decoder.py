"""ModernBERT as a decoder (Weller et al. 2025): the same layers, in which a position sees only those before it."""

from __future__ import annotations

from torch import nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.heads import classify, language
from transept.kinds.text import CausalBackbone
from transept.layers import Attention, Pattern
from transept.models.modernbert import (
    LOCAL,
    MODERNBERT_BLOCK,
    ModernBertBaseConfig,
    ModernBertHead,
    ModernBertModel,
    ModernBertTask,
)


class ModernBertDecoderConfig(ModernBertBaseConfig):
    """Settings of ModernBERT's decoder; a query of a local layer sees half of ``local_attention``, itself included."""

    model_type = "modernbert-decoder"


ATTENTION: Table = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "Wo": "o_proj"}


class ModernBertDecoderModel(ModernBertModel, CausalBackbone):
    config_class = ModernBertDecoderConfig
    infers_texts = True
    reads = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "labels", "use_cache")
    names = ModernBertModel.names | Names({"layers.*": ("layers.*", {**MODERNBERT_BLOCK, "attn": ("self_attn", ATTENTION)})})
    attention_class = Attention

    def pattern(self, kind: str) -> Pattern:
        return Pattern(causal=True, window=self.config.sliding_window if kind == LOCAL else None)


class ModernBertDecoderForCausalLM(ModernBertTask[ModernBertDecoderModel], language.ForCausalLM[ModernBertDecoderModel]):
    names = Names(
        {"lm_head": "lm_head", "decoder": "lm_head.out_proj"}, ties={"lm_head.out_proj.weight": "backbone.embed_tokens.weight"}
    )

    def make_head(self, config: Config) -> nn.Module:
        return ModernBertHead(self.backbone.config, config.vocab_size, bias=config.decoder_bias)

    def last_deviation(self) -> float:
        return self.backbone.narrow

    def get_output_embeddings(self) -> nn.Linear | None:
        assert isinstance(self.lm_head, ModernBertHead)
        return self.lm_head.out_proj


class ModernBertDecoderForSequenceClassification(
    ModernBertTask[ModernBertDecoderModel], classify.ForSequenceClassification[ModernBertDecoderModel]
):
    names = Names({"head": "head", "classifier": "head.out_proj"})

    def make_head(self, config: Config) -> nn.Module:
        dropout = config.classifier_dropout
        return ModernBertHead(self.backbone.config, self.classes, bias=config.classifier_bias, dropout=dropout)
