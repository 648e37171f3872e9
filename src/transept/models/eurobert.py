"""EuroBERT (Boizard et al. 2025): Llama's network as an encoder, whose positions see all others."""

from __future__ import annotations

from typing import Any, Literal, Self

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.config.model import Config
from transept.heads import classify, language
from transept.kinds.decoder import DecoderConfig
from transept.models.llama import LlamaModel
from transept.outputs import BackboneOutput


class EuroBertConfig(DecoderConfig):
    """Settings of EuroBERT; the defaults are those of the model of 210 million parameters.

    ``classifier_pooling`` says what is classified: the first state (``bos``), the ``mean`` of all, or with ``late`` each state,
    and the answer is the mean of logits. ``pretraining_tp`` has no effect.
    """

    model_type = "eurobert"
    is_causal = False

    vocab_size: int = 128256
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    hidden_act: str = "silu"
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 128001
    bos_token_id: int | None = 128000
    eos_token_id: int | list[int] | None = 128001
    mask_token_id: int = 128002
    attention_bias: bool = False
    mlp_bias: bool = False
    pretraining_tp: int | None = 1
    classifier_pooling: Literal["bos", "mean", "late"] = "late"

    def in_gguf(self) -> Self:
        """A network without a head."""
        return self.with_settings(tie_word_embeddings=True)


class EuroBertModel(LlamaModel):
    config_class = EuroBertConfig
    gguf = Layout()
    causal, infers_texts, pooling = False, False, "first"
    head_dropouts = ()
    reads = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels")


class EuroBertForMaskedLM(language.ForMaskedLM[EuroBertModel]):
    names = Names({"lm_head": "lm_head"}, ties={"lm_head.weight": "backbone.embed_tokens.weight"})

    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.backbone.dim, config.vocab_size, config.mlp_bias)


class LateClassifier(classify.DenseClassifier):
    """Classes of what the dense layer and the activation gave before a mean was taken: (B, D) -> (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out_proj(x)
        return logits


class EuroBertForSequenceClassification(classify.ForSequenceClassification[EuroBertModel]):
    names = Names({"dense": "head.dense", "classifier": "head.out_proj"})

    def make_head(self, config: Config) -> nn.Module:
        kind = LateClassifier if config.classifier_pooling == "late" else classify.DenseClassifier
        return kind(self.backbone.dim, self.classes, act="gelu")

    @property
    def how(self) -> str:
        return "first" if self.config.classifier_pooling == "bos" else "mean"

    def features(self, states: BackboneOutput, inputs: dict[str, Any]) -> Tensor | None:
        """All states, where the head computes with them before a mean is taken."""
        return None if isinstance(self.head, LateClassifier) else super().features(states, inputs)

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        if isinstance(head := self.head, LateClassifier):
            assert head.dense is not None
            states = BackboneOutput(last_hidden_state=head.act(head.dense(states.last_hidden_state)))
        return super().pool(states, ids, mask)


class EuroBertForTokenClassification(classify.ForTokenClassification[EuroBertModel]): ...
