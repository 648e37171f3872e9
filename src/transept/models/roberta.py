"""RoBERTa (Liu et al. 2019): BERT's network, trained longer on more text and without next sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Change
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Below, PaddingId
from transept.heads import classify, language, span
from transept.layers import CountedPositions
from transept.models.bert import BERT_LAYERS, BertConfig, BertEmbeddings, BertModel
from transept.storage.gguf import GGUF


class RobertaConfig(BertConfig):
    """Settings of RoBERTa. Positions count real tokens, from behind the padding id: checkpoints have two more than are used."""

    model_type = "roberta"

    vocab_size: int = 50265
    pad_token_id: Annotated[PaddingId | None, Below("max_position_embeddings")] = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        """With the positions that files lack, those up to the padding id."""
        pad, count = values.get("pad_token_id"), values.get("max_position_embeddings")
        more: int = 1 + (1 if pad is None else pad)
        return super().from_gguf(gguf, values | ({"max_position_embeddings": count + more} if isinstance(count, int) else {}))

    def in_gguf(self) -> Any:
        """BERT, whose first position is the first one that counts."""
        return BertConfig.from_dict(self.to_dict() | {"model_type": "bert", "max_position_embeddings": self.positions})

    @property
    def positions(self) -> int:
        """How many positions count."""
        return self.max_position_embeddings - (self.pad_token_id or 0) - 1


EMBEDDINGS: Table = {
    "word_embeddings": "embed_tokens",
    "token_type_embeddings": "embed_types",
    "LayerNorm": "embed_norm",
    "position_embeddings": "embed_positions",
}


class RobertaEmbeddings(BertEmbeddings):
    """BERT's, with positions that count real tokens."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self._modules["position_embeddings"] = self._modules.pop("position_embeddings")  # the last one in the tree

    def make_positions(self, config: BertConfig, size: int) -> nn.Embedding:
        assert config.pad_token_id is not None
        return CountedPositions(config.max_position_embeddings, size, config.pad_token_id)

    def positions(self, ids: Tensor | None, x: Tensor, past: int) -> Tensor:
        counted: Any = self.position_embeddings
        return counted.count(ids, x, past)


class RobertaModel(BertModel):
    config_class = RobertaConfig
    embeddings_class: ClassVar[type[BertEmbeddings]] = RobertaEmbeddings
    base_model_prefix = "roberta"
    pooling = "first"
    gguf = replace(
        BertModel.gguf,
        architecture="bert",
        changes={
            "position_embd.weight": Change(
                lambda tensor, c: F.pad(tensor, (0, 0, c.max_position_embeddings - c.positions, 0)),
                lambda tensor, c: tensor[c.max_position_embeddings - c.positions :],
                by_rows=False,
            )
        },
    )
    names = replace(BertModel.names, table={"embeddings": ("", EMBEDDINGS), **BERT_LAYERS})


class _Predicts(language.VocabularyTask[RobertaModel]):
    act, tied_bias = "gelu", True
    names = language.VocabularyTask.names | Names(
        {"lm_head": ("lm_head", {"bias": "bias", "dense": "dense", "layer_norm": "norm", "decoder": "decoder"})}
    )


class RobertaForMaskedLM(_Predicts, language.ForMaskedLM[RobertaModel]): ...


class RobertaForCausalLM(_Predicts, language.ForCausalLM[RobertaModel]): ...


class RobertaForSequenceClassification(classify.ForSequenceClassification[RobertaModel]):
    head_class = classify.FirstClassifier
    act = "tanh"
    names = Names({"classifier": "head"})


class RobertaForTokenClassification(classify.ForTokenClassification[RobertaModel]): ...


class RobertaForQuestionAnswering(span.ForQuestionAnswering[RobertaModel]): ...


class RobertaForMultipleChoice(classify.ForMultipleChoice[RobertaModel]):
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "token_type_ids", "attention_mask", "labels", "position_ids", "inputs_embeds"),
    )
    pooling, head_dropouts = "pooler", ("hidden_dropout_prob",)
