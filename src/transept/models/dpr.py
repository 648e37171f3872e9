"""DPR (Karpukhin et al. 2020): two BERTs that embed questions and passages for search, and one that reads answers."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.heads.task import Task
from transept.models.bert import BertConfig, BertModel
from transept.outputs import ModelOutput


class DPRConfig(BertConfig):
    """Settings of DPR; with a ``projection_dim`` above 0, embeddings are of that size."""

    model_type = "dpr"

    projection_dim: int = 0


class EmbeddingOutput(ModelOutput):
    """The embedding of each text, ``pooler_output`` (B, D)."""

    pooler_output: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class PassageOutput(ModelOutput):
    """Start and end logits (B, T) of answers in passages, and how likely each has one, ``relevance_logits`` (B)."""

    start_logits: Tensor
    end_logits: Tensor | None = None
    relevance_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class _Network(BertModel):
    """BERT without a pooler, as all parts of DPR have it."""

    config_class = DPRConfig
    base_model_prefix = "bert_model"
    pooling = "first"
    reads = ("input_ids", "attention_mask", "token_type_ids", "inputs_embeds", "labels")
    config: DPRConfig

    def __init__(self, config: DPRConfig) -> None:
        super().__init__(config, add_pooling_layer=False)

    def infer_mask(self, ids: Tensor) -> Tensor | None:
        return None if self.config.pad_token_id is None else ids != self.config.pad_token_id


class _Encoder(Task[_Network]):
    """The first state of each text, projected where the config says so."""

    labels: ClassVar[tuple[str, ...]] = ()
    output_class = EmbeddingOutput

    def __init__(self, config: DPRConfig) -> None:
        super().__init__(config)
        size = config.projection_dim
        self.project = nn.Linear(self.backbone.dim, size) if size else None

    @property
    def rows_apart(self) -> bool:
        return True

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        first: Tensor = states.last_hidden_state[:, 0]
        return EmbeddingOutput(pooler_output=first if self.project is None else self.project(first))


class DPRContextEncoder(_Encoder, Task[_Network]):
    """The embeddings of passages."""

    base_model_prefix = "ctx_encoder.bert_model"
    names = Names({"ctx_encoder.encode_proj": "project"})


class DPRQuestionEncoder(_Encoder, Task[_Network]):
    """The embeddings of questions."""

    base_model_prefix = "question_encoder.bert_model"
    names = Names({"question_encoder.encode_proj": "project"})


class DPRReader(_Encoder, Task[_Network]):
    """Answers in passages that stand behind a question and a title."""

    base_model_prefix = "span_predictor.encoder.bert_model"
    refuses = ("token_type_ids",)
    names = Names(
        {
            "span_predictor.encoder.encode_proj": "project",
            "span_predictor.qa_outputs": "spans",
            "span_predictor.qa_classifier": "relevance",
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        size = config.projection_dim or self.backbone.dim
        self.spans, self.relevance = nn.Linear(size, 2), nn.Linear(size, 1)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        hidden: Tensor = states.last_hidden_state
        start, end = (each.contiguous() for each in self.spans(hidden).unbind(-1))
        relevance = self.relevance(hidden[:, 0]).squeeze(-1)
        return PassageOutput(start_logits=start, end_logits=end, relevance_logits=relevance)
