"""FlauBERT (Le et al. 2020): XLM's network for French, whose norms may stand before its sublayers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transept.config.fields import Share
from transept.layers import Block, Context, PreNorm
from transept.models.xlm import (
    XLMConfig,
    XLMForMultipleChoice,
    XLMForQuestionAnswering,
    XLMForQuestionAnsweringSimple,
    XLMForSequenceClassification,
    XLMForTokenClassification,
    XLMModel,
    XLMWithLMHeadModel,
    without_padding,
)


class FlaubertConfig(XLMConfig):
    """Settings of FlauBERT: ``pre_norm`` puts norms before sublayers, ``layerdrop`` leaves layers out in training."""

    model_type = "flaubert"

    pre_norm: bool = False
    layerdrop: Share = 0.0


class UnpaddedPreNorm(PreNorm):
    """A pre-norm block, after which padding is zeros."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        return without_padding(super().whole(x, ctx), ctx)


class FlaubertModel(XLMModel):
    config_class = FlaubertConfig
    base_model_prefix = "transformer"
    config: FlaubertConfig

    def block_of(self, config: Any) -> type[Block]:
        return UnpaddedPreNorm if config.pre_norm else super().block_of(config)


class FlaubertWithLMHeadModel(XLMWithLMHeadModel, backbone=FlaubertModel): ...


class FlaubertForSequenceClassification(XLMForSequenceClassification, backbone=FlaubertModel): ...


class FlaubertForTokenClassification(XLMForTokenClassification, backbone=FlaubertModel): ...


class FlaubertForQuestionAnsweringSimple(XLMForQuestionAnsweringSimple, backbone=FlaubertModel): ...


class FlaubertForQuestionAnswering(XLMForQuestionAnswering, backbone=FlaubertModel): ...


class FlaubertForMultipleChoice(XLMForMultipleChoice, backbone=FlaubertModel): ...
