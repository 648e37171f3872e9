"""Nyströmformer (Xiong et al. 2021): BERT whose attention goes through a few landmarks of a text, after Nyström's method."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId
from transept.errors import InputError
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Attention, Context
from transept.layers.context import Attended
from transept.models.bert import BERT_BLOCK, BERT_EMBEDDINGS, BertEmbeddings, BertModel


class NystromformerConfig(EncoderConfig):
    """Settings of Nyströmformer: ``num_landmarks`` stand for texts of ``segment_means_seq_len`` tokens.

    Where the two are equal, attention is the usual one and texts may have any length. Values are added up over
    ``conv_kernel_size`` tokens. ``inv_coeff_init_option`` begins the search for an inverse nearer to it.
    """

    model_type = "nystromformer"

    vocab_size: int = 30000
    hidden_act: str = "gelu_new"
    max_position_embeddings: int = 510
    type_vocab_size: int = 2
    segment_means_seq_len: Count = 64
    num_landmarks: Count = 64
    conv_kernel_size: Count = 65
    inv_coeff_init_option: bool = False
    layer_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    add_cross_attention: bool = False

    def check_model(self) -> None:
        super().check_model()
        self.divided("segment_means_seq_len", "num_landmarks")
        if self.conv_kernel_size % 2 == 0:
            self.fail("conv_kernel_size", "must be odd, so that a token stands in the middle of its span")


class LandmarkAttention(Attention):
    """Attention by landmarks, the means of parts of a text, and beside it sums of values over spans."""

    def __init__(self, *args: Any, settings: NystromformerConfig, **options: Any) -> None:
        super().__init__(*args, **options)
        c = settings
        self.length, self.landmarks, self.by_head = c.segment_means_seq_len, c.num_landmarks, c.inv_coeff_init_option
        size, kernel = self.heads, c.conv_kernel_size
        self.conv = nn.Conv2d(size, size, (kernel, 1), padding=(kernel // 2, 0), bias=False, groups=size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        real = None if ctx.padding is None else ctx.padding[:, None, :, None]
        if self.landmarks == self.length:
            out, weights = super().attend(q, k, v, mask, causal, ctx)
        else:
            q, k = (x if real is None else x.masked_fill(~real, 0.0) for x in (q, k))
            out, weights = self.by_landmarks(q, k, v, mask, ctx)
        return out + self.conv(v if real is None else v.masked_fill(~real, 0.0)), weights  # padding is no part of a span

    def by_landmarks(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ctx: Context) -> Attended:
        """What queries (B, H, T, E) gather from keys and values through the landmarks of both."""
        if q.shape[2] != self.length:
            what = f"the sequence has {q.shape[2]} positions, but this model's landmarks are for {self.length}."
            raise InputError(what, hint=f'Pad it: padding="max_length", max_length={self.length} in the tokenizer.')
        of_q, of_k = (x.reshape(*x.shape[:2], self.landmarks, -1, x.shape[-1]).mean(dim=3) for x in (q, k))
        first = torch.softmax(q @ of_k.mT * self.scale, dim=-1) @ self.inverse(
            torch.softmax(of_q @ of_k.mT * self.scale, dim=-1)
        )
        gathered, weights = ctx.kernel(of_q, k, v, mask, False, self.scale, 0.0)
        return first @ gathered, None if weights is None else first @ weights

    def inverse(self, x: Tensor, steps: int = 6) -> Tensor:
        """An inverse of matrices (B, H, L, L) after Moore and Penrose, to which some steps come near."""
        sums = x.sum(dim=-2, keepdim=True)
        most = sums.amax(dim=(-1, -2) if self.by_head else (-1, -2, -3), keepdim=True)
        found, one = x.mT / most, torch.eye(x.shape[-1], device=x.device, dtype=x.dtype)
        for _ in range(steps):
            product = x @ found
            found = 0.25 * found @ (13 * one - product @ (15 * one - product @ (7 * one - product)))
        return found


class NystromformerEmbeddings(BertEmbeddings):
    """BERT's; the first two rows of the table of positions stand for none."""

    def make_positions(self, config: Any, size: int) -> nn.Embedding:
        return nn.Embedding(config.max_position_embeddings + 2, size)

    def positions(self, ids: Tensor | None, x: Tensor, past: int) -> Tensor:
        return super().positions(ids, x, past) + 2


class NystromformerModel(TextBackbone):
    """Nyströmformer without a head."""

    config_class = NystromformerConfig
    ragged = False  # spans and landmarks would reach from one text into the next
    head_dropouts = ("hidden_dropout_prob",)
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", {**BERT_BLOCK, "attention.self.conv": "self_attn.conv"}),
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: NystromformerConfig

    def __init__(self, config: NystromformerConfig) -> None:
        super().__init__(config)
        self.embeddings = NystromformerEmbeddings(config)  # type: ignore[arg-type]
        for stored, own in BERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = encoder_layers(config, attention=partial(LandmarkAttention, settings=config))

    @property
    def first_position(self) -> int:
        return 2

    def positions(self, given: Tensor | None, x: Tensor, ctx: Context, ids: Tensor | None = None) -> Tensor:
        found = super().positions(given, x, ctx, ids)
        return found + self.first_position if given is None else found

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions)


class NystromformerForMaskedLM(language.PredictionsTask[NystromformerModel], language.ForMaskedLM[NystromformerModel]): ...


class NystromformerForSequenceClassification(classify.ForSequenceClassification[NystromformerModel]):
    head_class, act = classify.FirstClassifier, "hidden_act"
    names = Names({"classifier": "head"})


class NystromformerForMultipleChoice(classify.ForMultipleChoice[NystromformerModel]):
    head_class, act, head_dropouts = classify.DenseClassifier, "relu", ()
    names = Names({"pre_classifier": "head.dense", "classifier": "head.out_proj"})


class NystromformerForTokenClassification(classify.ForTokenClassification[NystromformerModel]): ...


class NystromformerForQuestionAnswering(span.ForQuestionAnswering[NystromformerModel]): ...
