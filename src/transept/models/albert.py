"""ALBERT (Lan et al. 2019): BERT whose layers share their parameters, in groups, with smaller embeddings of words.

It is trained to tell whether two segments are in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId, Share
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.encoder import AttentionStep, EncoderConfig, LinearPooled, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Context, PostNorm
from transept.layers.links import Linked, Step
from transept.models.bert import BERT_EMBEDDINGS, BertEmbeddings
from transept.objectives.terms import LossTerm
from transept.outputs import ModelOutput


class AlbertConfig(EncoderConfig):
    """Settings of ALBERT; the defaults are those of the largest one.

    The ``num_hidden_layers`` are cut into ``num_hidden_groups``. All of a group are one, which is ``inner_group_num`` layers.
    """

    model_type = "albert"

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_groups: Count = 1
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: Count = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    classifier_dropout_prob: Share | None = 0.1
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3


ALBERT_BLOCK: Table = {
    "full_layer_layer_norm": "mlp_norm",
    "attention": (
        "",
        {
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "dense": "self_attn.o_proj",
            "LayerNorm": "self_attn_norm",
        },
    ),
    "ffn": "mlp.up_proj",
    "ffn_output": "mlp.down_proj",
}


class AlbertEmbeddings(BertEmbeddings):
    """BERT's, of ``embedding_size``."""

    def size_of(self, config: Any) -> int:
        return config.embedding_size


class AlbertBlock(PostNorm):
    """A post-norm block without dropout after its feed-forward layer, whose attention has a place in the tree."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, mlp_dropout=0.0, **options)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"attention": AttentionStep}

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        if (attend := self.step_at("attention")) is None:
            return super().whole(x, ctx)
        x = attend(x, ctx)[0]
        return self.mlp_norm(x + self.mlp(x, ctx))


class AlbertGroup(Linked):
    """Layers that follow one another in each layer of a group."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden_states: Tensor, attention_mask: Context | Tensor | None = None, **given: Any) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, **given)
        return hidden_states


class AlbertModel(LinearPooled, TextBackbone):
    """ALBERT without a head. Its ``layers`` are those that run, in their order, of which several are the same module."""

    config_class = AlbertConfig
    head_dropouts = ("classifier_dropout_prob", "hidden_dropout_prob")
    pooling = "pooler"
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "encoder.embedding_hidden_mapping_in": "embed_proj",
            "encoder.albert_layer_groups.*.albert_layers.*": ("groups.*.layers.*", ALBERT_BLOCK),
            "pooler": "pooler",
        },
        legacy={"**.LayerNorm.gamma": "LayerNorm.weight", "**.LayerNorm.beta": "LayerNorm.bias"},
        ignore=("embeddings.position_ids",),
    )
    config: AlbertConfig

    def __init__(self, config: AlbertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.embeddings = AlbertEmbeddings(c)  # type: ignore[arg-type]
        for stored, own in BERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.embed_proj = nn.Linear(c.embedding_size, c.hidden_size)
        made = encoder_layers(c, AlbertBlock, count=c.num_hidden_groups * c.inner_group_num)
        inner = c.inner_group_num
        self.groups = nn.ModuleList(AlbertGroup(made[start : start + inner]) for start in range(0, len(made), inner))
        self.pooler = nn.Linear(c.hidden_size, c.hidden_size) if add_pooling_layer else None

    @property
    def layers(self) -> list[nn.Module]:  # type: ignore[override]
        groups: Any = self.groups
        each = self.config.num_hidden_layers / self.config.num_hidden_groups
        return [layer for index in range(self.config.num_hidden_layers) for layer in groups[int(index / each)].layers]

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embed_proj(self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions))


class _Predicts(language.VocabularyTask[AlbertModel]):
    tied_bias = True
    names = language.VocabularyTask.names | Names(
        {"predictions": ("lm_head", {"bias": "bias", "LayerNorm": "norm", "dense": "dense", "decoder": "decoder"})}
    )


class AlbertForMaskedLM(_Predicts, language.ForMaskedLM[AlbertModel]): ...


class SentenceOrderOutput(ModelOutput):
    """ALBERT's two objectives: ``prediction_logits`` (B, T, V) and ``sop_logits`` (B, 2)."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    sop_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class AlbertForPreTraining(_Predicts, language.ForPreTraining[AlbertModel]):
    """ALBERT as it is pretrained: masked tokens and the order of two segments, ``sop_logits`` (B, 2).

    ``sentence_order_label`` (B) is 0 where the segments are in order.
    """

    labels = ("labels", "sentence_order_label")
    output_class, order = SentenceOrderOutput, "sop_logits"
    names = _Predicts.names | Names({"sop_classifier.classifier": "head.out_proj"})

    def make_order_head(self, config: Config) -> nn.Module:
        return classify.Classifier(self.backbone.dim, config.num_labels, dropout=self.backbone.head_dropout())


class AlbertForSequenceClassification(classify.ForSequenceClassification[AlbertModel]): ...


class AlbertForTokenClassification(classify.ForTokenClassification[AlbertModel]): ...


class AlbertForQuestionAnswering(span.ForQuestionAnswering[AlbertModel]): ...


class AlbertForMultipleChoice(classify.ForMultipleChoice[AlbertModel]): ...
