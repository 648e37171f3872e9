"""ELECTRA (Clark et al. 2020): BERT's blocks, trained to find the tokens that a small generator has replaced.

Token embeddings may be smaller than the hidden size. The generator, a model that fills masks, is of the same class.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Share
from transept.heads import classify, language, span
from transept.layers import Context
from transept.models.bert import BERT_EMBEDDINGS, BERT_LAYERS, BertConfig, BertEmbeddings, BertModel
from transept.objectives.classification import binary, count_binary
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, ModelOutput


class ElectraConfig(BertConfig):
    """Settings of ELECTRA; the defaults are those of the small discriminator.

    ``summary_...`` are the head of multiple choice, and its ``cls_index`` is the last state.
    """

    model_type = "electra"

    embedding_size: int = 128
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    summary_type: Literal["first", "last", "mean", "cls_index"] = "first"
    summary_use_proj: bool = True
    summary_activation: str | None = "gelu"
    summary_last_dropout: Share = 0.1


class ElectraEmbeddings(BertEmbeddings):
    """BERT's, of ``embedding_size``."""

    def size_of(self, config: ElectraConfig) -> int:
        return config.embedding_size


class ElectraModel(BertModel):
    config_class, embeddings_class = ElectraConfig, ElectraEmbeddings
    base_model_prefix = "electra"
    pooling = "first"
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "embeddings_project": "embed_proj",
            **BERT_LAYERS,
        }
    ) | Names(legacy=BertModel.names.legacy, ignore=BertModel.names.ignore)

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        same = config.embedding_size == config.hidden_size
        self.embed_proj = nn.Identity() if same else nn.Linear(config.embedding_size, config.hidden_size)

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.embed_proj(super().embed(x, types, positions, ctx))


class _Predicts(language.VocabularyTask[ElectraModel]):
    act = "gelu"
    names = language.VocabularyTask.names | Names(
        {"generator_predictions": ("lm_head", {"LayerNorm": "norm", "dense": "dense"}), "generator_lm_head": "lm_head.decoder"}
    )


class ElectraForMaskedLM(_Predicts, language.ForMaskedLM[ElectraModel]):
    omits = (*language.ForMaskedLM.omits, "encoder_hidden_states", "encoder_attention_mask")


class ElectraForCausalLM(_Predicts, language.ForCausalLM[ElectraModel]):
    """ELECTRA that predicts the next token; set ``is_decoder``."""


class DiscriminatorHead(classify.DenseClassifier):
    """One number for each token: (B, T, D) -> (B, T)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


class ElectraForPreTraining(classify.TokenTask[ElectraModel]):
    """ELECTRA's discriminator: whether each token was put in the place of the original one, ``logits`` (B, T).

    ``labels`` (B, T) are 1 where it was replaced; -100 and padding are ignored.
    """

    names = Names({"discriminator_predictions": ("head", {"dense_prediction": "out_proj"})})
    head_class, act, classes, head_dropouts = DiscriminatorHead, "hidden_act", 1, ()

    @property
    def rows_apart(self) -> bool:
        return True

    def predict(self, states: BackboneOutput, inputs: dict[str, Any]) -> ModelOutput:
        return self.output_class(logits=self.head(states.last_hidden_state))

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"replaced": binary(logits, labels, _padding(inputs))}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"replaced": count_binary(labels, _padding(inputs))}


def _padding(inputs: dict[str, Any]) -> Tensor | None:
    mask = inputs.get("attention_mask")
    return mask if mask is not None and mask.ndim == 2 else None


class ElectraForSequenceClassification(classify.ForSequenceClassification[ElectraModel]):
    head_class = classify.FirstClassifier
    act = "gelu"
    names = Names({"classifier": "head"})


class ElectraForTokenClassification(classify.ForTokenClassification[ElectraModel]): ...


class ElectraForQuestionAnswering(span.ForQuestionAnswering[ElectraModel]): ...


class ElectraForMultipleChoice(classify.SummaryTask[ElectraModel], classify.ForMultipleChoice[ElectraModel]):
    names = Names({"sequence_summary.summary": "head.dense", "classifier": "head.out_proj"})
