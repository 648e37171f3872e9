"""BigBird (Zaheer et al. 2020): BERT for long texts, whose blocks of positions attend to a few other blocks."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId
from transept.config.model import Config
from transept.core.inputs import INTEGERS, check_tensor
from transept.core.task import TaskModel
from transept.heads import classify, span
from transept.kinds.encoder import LinearPooled, encoder_layers
from transept.layers import MLP, Attention
from transept.layers.attention.sparse import BlockSparseAttention
from transept.layers.links import Linked
from transept.models.bert import (
    BertConfig,
    BertEmbeddings,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)
from transept.outputs import ModelOutput


class BigBirdConfig(BertConfig):
    """Settings of BigBird.

    With ``block_sparse`` attention, texts of more than ``5 + 2 * num_random_blocks`` blocks of ``block_size`` positions are
    attended to by blocks; decoders see all before them. ``rescale_embeddings`` multiplies the embeddings of words by the root
    of their size, and ``use_bias`` is for queries, keys and values.
    """

    model_type = "big_bird"

    vocab_size: int = 50358
    hidden_act: str = "gelu_new"
    max_position_embeddings: int = 4096
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    sep_token_id: int | None = 66
    attention_type: Literal["original_full", "block_sparse"] = "block_sparse"
    use_bias: bool = True
    rescale_embeddings: bool = False
    block_size: Count = 64
    num_random_blocks: Count = 3


class BigBirdEmbeddings(BertEmbeddings):
    """BERT's, whose dropout comes before the norm, and whose words may be scaled."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.scale = config.hidden_size**0.5 if config.rescale_embeddings else 1.0

    def words(self, ids: Tensor | None, embeds: Tensor | None) -> Tensor:
        return super().words(ids, embeds) * self.scale

    def end(self, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(x))


class BigBirdModel(LinearPooled, BertModel):
    """BigBird without a head; the pooler of ``add_pooling_layer`` makes ``pooler_output``."""

    config_class, embeddings_class = BigBirdConfig, BigBirdEmbeddings
    base_model_prefix = "bert"
    config: BigBirdConfig

    @property
    def rows_apart(self) -> bool:
        """Not where blocks are chosen: which one is the last follows from how far a batch is padded."""
        return self.config.attention_type == "original_full" or self.causal

    def make_pooler(self, config: Any) -> nn.Module:
        return nn.Linear(config.hidden_size, config.hidden_size)

    def make_layers(self, config: Any) -> nn.ModuleList:
        c = config
        attention: Any = Attention
        if c.attention_type == "block_sparse":
            attention = partial(BlockSparseAttention, block=c.block_size, random=c.num_random_blocks)
        options: dict[str, Any] = {"attention": attention, "causal": c.is_decoder, "cross": c.add_cross_attention}
        return encoder_layers(c, self.block_class, qkv_bias=c.use_bias, out_bias=True, **options)


class _Pooled(TaskModel[BigBirdModel]):
    reads_pooler = True  # it is there in all checkpoints


class BigBirdForMaskedLM(_Pooled, BertForMaskedLM, backbone=BigBirdModel): ...


class BigBirdForCausalLM(_Pooled, BertLMHeadModel, backbone=BigBirdModel):
    """BigBird that predicts the next token; set ``is_decoder``."""

    reads = (*BertModel.reads[:-3], "past_key_values", "labels", "use_cache")


class BigBirdForPreTraining(BertForPreTraining, backbone=BigBirdModel): ...


class BigBirdForSequenceClassification(_Pooled, classify.ForSequenceClassification[BigBirdModel]):
    head_class, act, pooling = classify.FirstClassifier, "hidden_act", "first"
    names = Names({"classifier": "head"})


class BigBirdForTokenClassification(_Pooled, BertForTokenClassification, backbone=BigBirdModel): ...


class BigBirdForMultipleChoice(BertForMultipleChoice, backbone=BigBirdModel):
    head_dropouts = ("hidden_dropout_prob",)


class AnswerHead(Linked):
    """A feed-forward layer that is added to its input and normed, and start and end logits: (B, T, D) -> (B, T, 2)."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.mlp, self.norm = (
            MLP(c.hidden_size, c.intermediate_size, c.hidden_act),
            nn.LayerNorm(c.hidden_size, c.layer_norm_eps),
        )
        self.dropout, self.out_proj = nn.Dropout(c.hidden_dropout_prob), nn.Linear(c.hidden_size, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.norm(x + self.dropout(self.mlp(self.dropout(x)))))


ANSWER_HEAD: Table = {
    "intermediate.dense": "mlp.up_proj",
    "output": ("", {"dense": "mlp.down_proj", "LayerNorm": "norm"}),
    "qa_outputs": "out_proj",
}


class BigBirdForQuestionAnswering(span.ForQuestionAnswering[BigBirdModel]):
    """BigBird that answers questions. ``question_lengths`` (B, 1) count a question's tokens, with the separator behind it.

    They are found by the separator where they are not given. No answer is in a question, but the first token may be one.
    """

    takes = ("question_lengths",)
    reads = (
        *("input_ids", "attention_mask", "question_lengths", "token_type_ids", "position_ids", "inputs_embeds"),
        *("start_positions", "end_positions"),
    )
    names = Names({"qa_classifier": ("head", ANSWER_HEAD)})

    def make_head(self, config: Config) -> nn.Module:
        return AnswerHead(config)

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        asked = self.asked(inputs)
        if asked is not None and inputs.get("token_type_ids") is None:
            inputs = inputs | {"token_type_ids": (~asked).long()}
        return super().encode({name: value for name, value in inputs.items() if name not in self.takes}, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        output, asked = super().predict(states, inputs), self.asked(inputs)
        if asked is not None:
            hidden = torch.cat([torch.zeros_like(asked[:, :1]), asked[:, 1:]], dim=1) * 1e6
            output["start_logits"], output["end_logits"] = output["start_logits"] - hidden, output["end_logits"] - hidden
        return output

    def asked(self, inputs: dict[str, Any]) -> Tensor | None:
        """(B, T): true for tokens of questions, ``None`` where nothing tells."""
        ids, lengths = inputs.get("input_ids"), inputs.get("question_lengths")
        if lengths is not None:
            check_tensor("question_lengths", lengths, INTEGERS, "(batch, 1)")
        elif ids is None or self.config.sep_token_id is None:
            return None
        else:
            lengths = (ids == self.config.sep_token_id).int().argmax(dim=-1, keepdim=True) + 1
        return torch.arange(self.length(inputs), device=lengths.device)[None] < lengths
