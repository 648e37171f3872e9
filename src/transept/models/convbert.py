"""ConvBERT (Jiang et al. 2020): BERT in which half of the heads are convolutions, whose kernels each token makes."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId, Share
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Attention, Context
from transept.layers.context import Attended
from transept.models.bert import BERT_BLOCK, BERT_EMBEDDINGS, BertModel
from transept.models.electra import ElectraEmbeddings


class ConvBertConfig(EncoderConfig):
    """Settings of ConvBERT. Of the heads, one in ``head_ratio`` attends, and as many have kernels of ``conv_kernel_size``.

    Feed-forward layers work in ``num_groups`` groups. ``summary_...`` are the head of multiple choice.
    """

    model_type = "convbert"

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    embedding_size: int = 768
    head_ratio: Count = 2
    conv_kernel_size: Count = 9
    num_groups: Count = 1
    classifier_dropout: Share | None = None
    summary_type: Literal["first", "last", "mean", "cls_index"] = "last"
    summary_use_proj: bool = False
    summary_activation: str | None = None
    summary_last_dropout: Share = 0.0

    def check_model(self) -> None:
        super().check_model()
        if self.conv_kernel_size % 2 == 0:
            self.fail("conv_kernel_size", "must be odd, so that a token stands in the middle of its span")
        self.divided("hidden_size", "num_groups")
        self.divided("intermediate_size", "num_groups")


class SeparableConv(nn.Module):
    """A convolution of each channel, and a mix of channels: (B, T, D) -> (B, T, N)."""

    def __init__(self, dim: int, out: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(dim, dim, kernel, groups=dim, padding=kernel // 2, bias=False)
        self.pointwise = nn.Conv1d(dim, out, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(out, 1))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return (self.pointwise(self.depthwise(x.mT)) + self.bias).mT


class ConvAttention(Attention):
    """Attention, and beside it means over spans by kernels that each token makes: (B, T, D) -> (B, T, D)."""

    def __init__(self, dim: int, heads: int, *, kernel: int, ratio: int, **options: Any) -> None:
        heads = max(heads // ratio, 1)
        super().__init__(dim, heads, head_dim=dim // heads // 2, **options)
        size, self.kernel = self.heads * self.head_dim, kernel
        self.key_conv = SeparableConv(dim, size, kernel)
        self.kernel_proj, self.span_proj = nn.Linear(size, self.heads * kernel), nn.Linear(dim, size)

    @property
    def gathered_size(self) -> int:
        return 2 * self.heads * self.head_dim

    def gathered(self, x: Tensor, ctx: Context) -> Attended:
        attended, weights = super().gathered(x, ctx)
        real = None if ctx.padding is None else ctx.padding[..., None]
        hidden = x if real is None else x.masked_fill(~real, 0.0)  # padding is no part of a span
        kernels = self.kernel_proj(self.key_conv(hidden) * self.q_proj(x)).view(*x.shape[:2], self.heads, self.kernel)
        spans = self.span_proj(x) if real is None else self.span_proj(x).masked_fill(~real, 0.0)
        spans = F.pad(spans, (0, 0, self.kernel // 2, self.kernel // 2)).unfold(1, self.kernel, 1)  # (B, T, N, kernel)
        spans = spans.view(*x.shape[:2], self.heads, -1, self.kernel)
        means = torch.einsum("bthek,bthk->bthe", spans, kernels.softmax(dim=-1))
        return torch.cat([attended, ctx.keep(means.flatten(2))], dim=-1), weights


class GroupedLinear(nn.Module):
    """A linear layer in groups: (B, T, N) -> (B, T, M)."""

    def __init__(self, features: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(groups, features // groups, outputs // groups))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.einsum("btgi,gio->btgo", x.view(*x.shape[:2], len(self.weight), -1), self.weight)
        return out.flatten(2) + self.bias


class GroupedMLP(MLP):
    """A feed-forward layer in groups."""

    def __init__(self, dim: int, hidden: int, act: str, *, groups: int, **options: Any) -> None:
        super().__init__(dim, hidden, act, **options)
        if groups > 1:
            self.up_proj, self.down_proj = GroupedLinear(dim, hidden, groups), GroupedLinear(hidden, dim, groups)


CONVBERT_BLOCK: Table = {
    **{name: own for name, own in BERT_BLOCK.items() if not name.startswith("cross")},
    "attention.self.key_conv_attn_layer": "self_attn.key_conv",
    "attention.self.conv_kernel_layer": "self_attn.kernel_proj",
    "attention.self.conv_out_layer": "self_attn.span_proj",
}


class ConvBertModel(TextBackbone):
    """ConvBERT without a head."""

    config_class = ConvBertConfig
    ragged = False  # spans would reach from one text into the next
    head_dropouts = ("classifier_dropout", "hidden_dropout_prob")
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "embeddings_project": "embed_proj",
            "encoder.layer.*": ("layers.*", CONVBERT_BLOCK),
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: ConvBertConfig

    def __init__(self, config: ConvBertConfig) -> None:
        super().__init__(config)
        c = config
        self.embeddings = ElectraEmbeddings(c)  # type: ignore[arg-type]
        for stored, own in BERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        same = c.embedding_size == c.hidden_size
        self.embed_proj = nn.Identity() if same else nn.Linear(c.embedding_size, c.hidden_size)
        attention = partial(ConvAttention, kernel=c.conv_kernel_size, ratio=c.head_ratio)
        self.layers = encoder_layers(c, attention=attention, mlp=partial(GroupedMLP, groups=c.num_groups))

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embed_proj(self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions))


class ConvBertForMaskedLM(language.ForMaskedLM[ConvBertModel]):
    act = "gelu"
    names = language.VocabularyTask.names | Names(
        {"generator_predictions": ("lm_head", {"LayerNorm": "norm", "dense": "dense"}), "generator_lm_head": "lm_head.decoder"}
    )


class ConvBertForSequenceClassification(classify.ForSequenceClassification[ConvBertModel]):
    head_class = classify.FirstClassifier
    act = "hidden_act"
    names = Names({"classifier": "head"})


class ConvBertForTokenClassification(classify.ForTokenClassification[ConvBertModel]): ...


class ConvBertForQuestionAnswering(span.ForQuestionAnswering[ConvBertModel]): ...


class ConvBertForMultipleChoice(classify.SummaryTask[ConvBertModel], classify.ForMultipleChoice[ConvBertModel]):
    names = Names({"sequence_summary.summary": "head.dense", "classifier": "head.out_proj"})
