"""ERNIE (Sun et al. 2019, 2020): BERT, pretrained on spans and facts, and in its second version told its task by embeddings."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.core.inputs import ENCODER, check_by_position, check_range
from transept.kinds.text import Options
from transept.layers import Context
from transept.models.bert import (
    BERT_EMBEDDINGS,
    BERT_LAYERS,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)


class ErnieConfig(BertConfig):
    """Settings of ERNIE; with ``use_task_id`` there are embeddings of ``task_type_vocab_size`` tasks."""

    model_type = "ernie"

    task_type_vocab_size: int = 3
    use_task_id: bool = False


class ErnieModel(BertModel):
    """ERNIE without a head; ``task_type_ids`` (1 or B, T) are the numbers of tasks, 0 where they are left out."""

    config_class = ErnieConfig
    base_model_prefix = "ernie"
    reads = (
        *("input_ids", "attention_mask", "token_type_ids", "task_type_ids", "position_ids", "inputs_embeds"),
        *(*ENCODER, "labels", "past_key_values", "use_cache"),
    )
    by_position = (*BertModel.by_position, "task_type_ids")
    names = Names(
        {"embeddings": ("", {**BERT_EMBEDDINGS, "task_type_embeddings": "embed_tasks"}), **BERT_LAYERS},
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: ErnieConfig

    def __init__(self, config: ErnieConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        self.embed_tasks = nn.Embedding(config.task_type_vocab_size, config.hidden_size) if config.use_task_id else None

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        task_type_ids: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds
        if (table := self.embed_tasks) is not None and task_type_ids is not None:
            check_by_position("task_type_ids", task_type_ids, x)
            check_range("task_type_ids", task_type_ids, table.num_embeddings, "the model has the tasks 0 to", "Leave them out.")
            x = x + table(task_type_ids)
        elif table is not None:
            x = x + table.weight[0]
        return self.embed(x, token_type_ids, self.positions(position_ids, x, ctx, input_ids), ctx), ctx


class ErnieForMaskedLM(BertForMaskedLM, backbone=ErnieModel): ...


class ErnieForCausalLM(BertLMHeadModel, backbone=ErnieModel):
    """ERNIE that predicts the next token; set ``is_decoder``."""


class ErnieForNextSentencePrediction(BertForNextSentencePrediction, backbone=ErnieModel): ...


class ErnieForPreTraining(BertForPreTraining, backbone=ErnieModel): ...


class ErnieForSequenceClassification(BertForSequenceClassification, backbone=ErnieModel): ...


class ErnieForTokenClassification(BertForTokenClassification, backbone=ErnieModel): ...


class ErnieForQuestionAnswering(BertForQuestionAnswering, backbone=ErnieModel): ...


class ErnieForMultipleChoice(BertForMultipleChoice, backbone=ErnieModel): ...
