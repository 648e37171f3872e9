"""RoBERTa (Liu et al. 2019): BERT's network, trained longer on more text and without next sentences.

Positions count real tokens, from behind the padding id, and sequences are classified by the state of the first one.
"""

from __future__ import annotations

from transept.checkpoint.names import Names
from transept.heads import classify, language, span
from transept.layers import CountedPositions
from transept.models.bert import BertConfig, BertModel


class RobertaConfig(BertConfig):
    """Settings of RoBERTa. Checkpoints have two positions more than they can use, those up to the padding id."""

    model_type = "roberta"

    vocab_size: int = 50265
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2

    def validate(self) -> None:
        super().validate()
        if self.pad_token_id is None or not 0 <= self.pad_token_id < self.max_position_embeddings:
            self.fail("pad_token_id", f"must be below `max_position_embeddings` ({self.max_position_embeddings})")


class RobertaModel(BertModel):
    config_class = RobertaConfig
    base_model_prefix = "roberta"
    pooling = "first"

    def __init__(self, config: RobertaConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        assert config.pad_token_id is not None
        self.embed_positions = CountedPositions(config.max_position_embeddings, config.hidden_size, config.pad_token_id)


class _Predicts(language.VocabularyTask[RobertaModel]):
    act, tied_bias = "gelu", "lm_head.bias"
    names = language.VocabularyTask.names | Names({"lm_head": ("lm_head", {"layer_norm": "norm"})})


class RobertaForMaskedLM(_Predicts, language.ForMaskedLM[RobertaModel]): ...


class RobertaForCausalLM(_Predicts, language.ForCausalLM[RobertaModel]):
    """RoBERTa that predicts the next token; set ``is_decoder``."""


class RobertaForSequenceClassification(classify.ForSequenceClassification[RobertaModel]):
    act = "tanh"
    names = Names({"classifier": "head"})


class RobertaForTokenClassification(classify.ForTokenClassification[RobertaModel]): ...


class RobertaForQuestionAnswering(span.ForQuestionAnswering[RobertaModel]): ...


class RobertaForMultipleChoice(classify.ForMultipleChoice[RobertaModel]):
    reads = ("input_ids", "token_type_ids", "attention_mask", "labels", "position_ids", "inputs_embeds")
    pooling, head_dropouts = "pooler", ("hidden_dropout_prob",)
