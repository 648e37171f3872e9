"""XLM-RoBERTa (Conneau et al. 2019): RoBERTa on a hundred languages, with a SentencePiece vocabulary of 250,000."""

from __future__ import annotations

from transept.models.roberta import (
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)


class XLMRobertaConfig(RobertaConfig):
    """Settings of XLM-RoBERTa; a checkpoint's vocabulary is larger than the default, which is the reference's."""

    model_type = "xlm-roberta"

    vocab_size: int = 30522


class XLMRobertaModel(RobertaModel):
    """XLM-RoBERTa without a head."""

    config_class = XLMRobertaConfig
    config: XLMRobertaConfig


class XLMRobertaForMaskedLM(RobertaForMaskedLM, backbone=XLMRobertaModel): ...


class XLMRobertaForCausalLM(RobertaForCausalLM, backbone=XLMRobertaModel):
    """XLM-RoBERTa that predicts the next token; set ``is_decoder``."""


class XLMRobertaForSequenceClassification(RobertaForSequenceClassification, backbone=XLMRobertaModel): ...


class XLMRobertaForTokenClassification(RobertaForTokenClassification, backbone=XLMRobertaModel): ...


class XLMRobertaForQuestionAnswering(RobertaForQuestionAnswering, backbone=XLMRobertaModel): ...


class XLMRobertaForMultipleChoice(RobertaForMultipleChoice, backbone=XLMRobertaModel):
    """XLM-RoBERTa that chooses, by its pooler."""
