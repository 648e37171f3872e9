"""LayoutLM (Xu et al. 2019): BERT that knows where on a page each word stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.core.inputs import INTEGERS, check_range, check_tensor
from transept.errors import InputError
from transept.heads import classify, language, span
from transept.heads.task import Task
from transept.kinds.encoder import EncoderConfig, LayersStep, encoder_layers
from transept.kinds.text import Options, TextBackbone
from transept.layers import Context, Pooler
from transept.layers.links import Step
from transept.models.bert import BERT_LAYERS, BertEmbeddings, BertModel


class LayoutLMConfig(EncoderConfig):
    """Settings of LayoutLM; boxes have coordinates below ``max_2d_position_embeddings``."""

    model_type = "layoutlm"

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: PaddingId | None = 0
    max_2d_position_embeddings: int = 1024


_PLACES = ("x", "y", "h", "w")
LAYOUTLM_EMBEDDINGS: Table = {
    "word_embeddings": "embed_tokens",
    "position_embeddings": "embed_positions",
    **{f"{name}_position_embeddings": f"embed_{name}" for name in _PLACES},
    "token_type_embeddings": "embed_types",
    "LayerNorm": "embed_norm",
}


class LayoutLMEmbeddings(BertEmbeddings):
    """BERT's with embeddings of the edges of boxes, their heights and their widths."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for name in _PLACES:
            table = nn.Embedding(config.max_2d_position_embeddings, config.hidden_size)
            self.add_module(f"{name}_position_embeddings", table)
        for name in ("token_type_embeddings", "LayerNorm", "dropout"):
            self._modules[name] = self._modules.pop(name)  # the last ones in the tree

    def places(self, boxes: Tensor) -> Tensor:
        """Boxes (B, T, 4) of left, upper, right and lower edges -> (B, T, D)."""
        x, y, h, w = (getattr(self, f"{name}_position_embeddings") for name in _PLACES)
        left, upper, right, lower = boxes.unbind(-1)
        sides: Tensor = x(left) + y(upper) + x(right) + y(lower)
        return sides + h(lower - upper) + w(right - left)


class LayoutLMModel(TextBackbone):
    """LayoutLM without a head; ``bbox`` (B, T, 4) are left, upper, right and lower edges of tokens, 0 by default."""

    config_class = LayoutLMConfig
    head_dropouts = ("hidden_dropout_prob",)
    pooling = "pooler"
    reads = ("input_ids", "bbox", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    by_position = (*TextBackbone.by_position, "bbox")
    names = Names(
        {"embeddings": ("", LAYOUTLM_EMBEDDINGS), **BERT_LAYERS},
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: LayoutLMConfig

    def __init__(self, config: LayoutLMConfig) -> None:
        super().__init__(config)
        self.embeddings = LayoutLMEmbeddings(config)
        for stored, own in LAYOUTLM_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = encoder_layers(config)
        self.pooler = Pooler(config.hidden_size)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        bbox: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds
        boxes = x.new_zeros(1, x.shape[1], 4, dtype=int) if bbox is None else self.checked(bbox, x)
        x = x + self.embeddings.places(boxes)
        if token_type_ids is not None:
            self.check_types(token_type_ids, x, self.embed_types)
        places = self.positions(position_ids, x, ctx, input_ids)
        return self.embeddings(inputs_embeds=x, token_type_ids=token_type_ids, position_ids=places), ctx

    def checked(self, boxes: Tensor, x: Tensor) -> Tensor:
        """Boxes that fit the tokens and the tables (``InputError``)."""
        check_tensor("bbox", boxes, INTEGERS, "(batch, positions, 4)")
        if boxes.shape[0] not in (1, x.shape[0]) or boxes.shape[1:] != (x.shape[1], 4):
            raise InputError(f"`bbox` has the shape {tuple(boxes.shape)}, but the batch needs {(*x.shape[:2], 4)}.")
        size, hint = self.config.max_2d_position_embeddings, "Scale boxes to 0 to 1000, the last edges not before the first."
        check_range("bbox", boxes, size, "the model has the coordinates 0 to", hint)
        check_range("bbox", boxes[..., 2:] - boxes[..., :2], size, "the model has the widths and heights 0 to", hint)
        return boxes


class _Task(Task[LayoutLMModel]):
    reads_pooler = True  # it is there in all checkpoints


class LayoutLMForMaskedLM(_Task, language.PredictionsTask[LayoutLMModel], language.ForMaskedLM[LayoutLMModel]): ...


class LayoutLMForSequenceClassification(classify.ForSequenceClassification[LayoutLMModel]): ...


class LayoutLMForTokenClassification(_Task, classify.ForTokenClassification[LayoutLMModel]): ...


class LayoutLMForQuestionAnswering(_Task, span.ForQuestionAnswering[LayoutLMModel]): ...
