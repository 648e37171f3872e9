"""SqueezeBERT (Iandola et al. 2020): BERT whose linear layers work in groups of channels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId
from transept.heads import classify, language, span
from transept.heads.task import Task
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Attention, Context, Pooler, PostNorm
from transept.models.bert import BERT_EMBEDDINGS, BertEmbeddings, BertModel


class SqueezeBertConfig(EncoderConfig):
    """Settings of SqueezeBERT; ``..._groups`` are those of each layer. ``embedding_size`` must be the hidden size."""

    model_type = "squeezebert"

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: PaddingId | None = 0
    embedding_size: int = 768
    q_groups: Count = 4
    k_groups: Count = 4
    v_groups: Count = 4
    post_attention_groups: Count = 1
    intermediate_groups: Count = 4
    output_groups: Count = 4

    def check_model(self) -> None:
        super().check_model()
        if self.embedding_size != self.hidden_size:
            self.fail("embedding_size", f"must be `hidden_size` ({self.hidden_size})")
        for name in ("q", "k", "v", "post_attention", "intermediate", "output"):
            self.divided("intermediate_size" if name == "output" else "hidden_size", f"{name}_groups")


class GroupedConv(nn.Conv1d):
    """A convolution over one position at a time, in groups, of states (B, T, N) -> (B, T, M)."""

    def __init__(self, features: int, outputs: int, groups: int) -> None:
        super().__init__(features, outputs, 1, groups=groups)
        self.in_features, self.out_features = features, outputs

    def forward(self, x: Tensor) -> Tensor:
        if self.groups == 1:
            return F.linear(x, self.weight[..., 0], self.bias)
        weight = self.weight.view(self.groups, -1, x.shape[-1] // self.groups)
        out = torch.einsum("btgi,goi->btgo", x.view(*x.shape[:2], self.groups, -1), weight).flatten(2)
        return out if self.bias is None else out + self.bias


class GroupedAttention(Attention):
    """Attention with projections in groups: those of queries, keys, values and outputs."""

    def __init__(self, dim: int, *args: Any, groups: tuple[int, int, int, int], **options: Any) -> None:
        super().__init__(dim, *args, **options)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (GroupedConv(dim, dim, number) for number in groups)


class GroupedMLP(MLP):
    """A feed-forward layer in groups: those of both layers."""

    def __init__(self, dim: int, hidden: int, act: str, *, groups: tuple[int, int], **options: Any) -> None:
        super().__init__(dim, hidden, act, **options)
        self.up_proj = GroupedConv(dim, hidden, groups[0])
        self.down_proj = GroupedConv(hidden, dim, groups[1])


SQUEEZEBERT_BLOCK: Table = {
    "attention": ("self_attn", {"query": "q_proj", "key": "k_proj", "value": "v_proj"}),
    "post_attention": ("", {"conv1d": "self_attn.o_proj", "layernorm": "self_attn_norm"}),
    "intermediate.conv1d": "mlp.up_proj",
    "output": ("", {"conv1d": "mlp.down_proj", "layernorm": "mlp_norm"}),
}


class SqueezeBertModel(TextBackbone):
    """SqueezeBERT without a head."""

    config_class = SqueezeBertConfig
    base_model_prefix = "transformer"
    head_dropouts = ("hidden_dropout_prob",)
    pooling = "pooler"
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "encoder.layers.*": ("layers.*", SQUEEZEBERT_BLOCK),
            "pooler": "pooler",
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: SqueezeBertConfig

    def __init__(self, config: SqueezeBertConfig) -> None:
        super().__init__(config)
        c = config
        self.embeddings = BertEmbeddings(c)  # type: ignore[arg-type]
        for stored, own in BERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        attention = partial(GroupedAttention, groups=(c.q_groups, c.k_groups, c.v_groups, c.post_attention_groups))
        mlp = partial(GroupedMLP, groups=(c.intermediate_groups, c.output_groups))
        self.layers = encoder_layers(c, PostNorm, attention=attention, mlp=mlp)
        for module in self.layers.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-12  # whatever the config says
        self.pooler = Pooler(c.hidden_size)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions)


class _Task(Task[SqueezeBertModel]):
    reads_pooler = True  # it is there in all checkpoints


class SqueezeBertForMaskedLM(_Task, language.PredictionsTask[SqueezeBertModel], language.ForMaskedLM[SqueezeBertModel]): ...


class SqueezeBertForSequenceClassification(classify.ForSequenceClassification[SqueezeBertModel]): ...


class SqueezeBertForTokenClassification(_Task, classify.ForTokenClassification[SqueezeBertModel]): ...


class SqueezeBertForQuestionAnswering(_Task, span.ForQuestionAnswering[SqueezeBertModel]): ...


class SqueezeBertForMultipleChoice(classify.ForMultipleChoice[SqueezeBertModel]): ...
