"""Longformer (Beltagy et al. 2020): RoBERTa for long texts, whose tokens see near ones, and a few tokens all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.core.inputs import check_by_position, given_states, readable
from transept.core.task import TaskModel
from transept.errors import InputError
from transept.kinds.encoder import encoder_layers
from transept.kinds.text import Options
from transept.layers import Context, Pattern
from transept.layers.attention.local import GlobalTokens, SlidingAttention
from transept.models.bert import BERT_BLOCK
from transept.models.roberta import (
    EMBEDDINGS,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)
from transept.outputs import BackboneOutput, LogitsOutput, ModelOutput, QuestionAnsweringOutput


class LongformerConfig(RobertaConfig):
    """Settings of Longformer; a token sees half an ``attention_window`` each way, in all layers or in each its own.

    ``onnx_export`` is kept and has no effect.
    """

    model_type = "longformer"

    vocab_size: int = 30522
    sep_token_id: int | None = 2
    attention_window: list[int] | int = 512
    onnx_export: bool = False

    def check_model(self) -> None:
        super().check_model()
        if self.is_decoder:
            self.fail("is_decoder", "must be false: each token sees those after it")
        if len(self.windows) != self.num_hidden_layers:
            self.fail("attention_window", f"must be one number, or one for each of {self.num_hidden_layers} layers")
        if any(window < 2 or window % 2 for window in self.windows):
            self.fail("attention_window", "must be even and positive")

    @property
    def windows(self) -> list[int]:
        """The window of each layer."""
        windows = self.attention_window
        return [windows] * self.num_hidden_layers if isinstance(windows, int) else windows


class GlobalOutput(BackboneOutput):
    """States, and what tokens with global attention look at: ``global_attentions``, one (B, H, T, G) a layer."""

    global_attentions: tuple[Tensor, ...] | None = None


class GlobalLogitsOutput(LogitsOutput):
    """Logits, and what tokens with global attention look at."""

    global_attentions: tuple[Tensor, ...] | None = None


class GlobalAnswersOutput(QuestionAnsweringOutput):
    """Start and end logits, and what tokens with global attention look at."""

    global_attentions: tuple[Tensor, ...] | None = None


LONGFORMER_BLOCK: Table = {
    **{name: own for name, own in BERT_BLOCK.items() if not name.startswith("cross")},
    **{f"attention.self.{name}_global": f"self_attn.global_{name[0]}_proj" for name in ("query", "key", "value")},
}


class LongformerModel(RobertaModel):
    """Longformer without a head; ``global_attention_mask`` (B, T) is 1 for tokens that see all, and are seen by all."""

    config_class = LongformerConfig
    base_model_prefix = "longformer"
    ragged = False  # windows would reach from one text into the next
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "global_attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        "labels",
    )
    by_position = (*RobertaModel.by_position, "global_attention_mask")
    names = replace(
        RobertaModel.names,
        table={
            "embeddings": ("", EMBEDDINGS),
            "encoder.layer.*": ("layers.*", LONGFORMER_BLOCK),
            "pooler": "pooler",
        },
    )
    config: LongformerConfig

    def make_layers(self, config: Any) -> nn.ModuleList:
        layers = encoder_layers(config, self.block_class, attention=SlidingAttention)
        layer: Any
        for layer, window in zip(layers, config.windows, strict=True):
            layer.self_attn.pattern = Pattern(window=window // 2 + 1)
        return layers

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context[GlobalTokens | None]]:
        x, ctx = super().begin(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        if ctx.full_mask is not None:
            hint = "Pass (batch, positions), 1 for real tokens, and `global_attention_mask`."
            raise InputError("an `attention_mask` for pairs of positions cannot be for windows.", hint=hint)
        if global_attention_mask is not None:
            check_by_position("global_attention_mask", global_attention_mask, x)
            ctx.own = GlobalTokens.of(global_attention_mask.to(x.device).expand(len(x), -1), ctx.padding)
        return x, ctx

    def end(self, x: Tensor, ctx: Context[GlobalTokens | None]) -> Any:
        pooled = None if self.pooler is None else self.pooler(ctx.to_pool(x))
        seen = tuple(ctx.own.attentions) if ctx.own is not None and ctx.own.attentions else None
        return self.recorded(GlobalOutput(last_hidden_state=x, pooler_output=pooled, global_attentions=seen), x, ctx)


class _Task(TaskModel[LongformerModel]):
    """A task that chooses tokens for global attention where the caller does not."""

    output_class: ClassVar[type[ModelOutput]] = GlobalLogitsOutput

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        if inputs.get("global_attention_mask") is None:
            inputs = inputs | {"global_attention_mask": self.chosen(inputs)}
        return super().encode(inputs, labels)  # type: ignore[misc]

    def chosen(self, inputs: dict[str, Any]) -> Tensor | None:
        """(..., T), 1 for the tokens that see all; ``None`` where there are none."""
        return None

    def first_end(self, ids: Tensor) -> Tensor:
        """(..., 1): the place of the first of three separators of ids (..., T), which a question and a text have."""
        ends = ids == self.config.sep_token_id
        if readable(ends) and bool((wrong := ends.sum(dim=-1) != 3).any()):
            row = int(wrong.flatten().nonzero()[0])
            what = (
                f"row {row} has {int(ends.flatten(0, -2)[row].sum())} separators ({self.config.sep_token_id}), and not three."
            )
            raise InputError(what, hint="Give a question and a text to the tokenizer, or pass `global_attention_mask`.")
        return ends.int().argmax(dim=-1, keepdim=True)


class LongformerForMaskedLM(_Task, RobertaForMaskedLM, backbone=LongformerModel): ...


class LongformerForSequenceClassification(_Task, RobertaForSequenceClassification, backbone=LongformerModel):
    """The same as of RoBERTa; the first token sees all, where ``global_attention_mask`` is absent."""

    def chosen(self, inputs: dict[str, Any]) -> Tensor | None:
        given: Any = given_states(inputs)
        return (torch.arange(given.shape[1], device=given.device) == 0).long().expand(given.shape[:2])


class LongformerForTokenClassification(_Task, RobertaForTokenClassification, backbone=LongformerModel): ...


class LongformerForQuestionAnswering(_Task, RobertaForQuestionAnswering, backbone=LongformerModel):
    """The same as of RoBERTa; questions see all, where ``global_attention_mask`` is absent."""

    output_class = GlobalAnswersOutput

    def chosen(self, inputs: dict[str, Any]) -> Tensor | None:
        ids = inputs.get("input_ids")
        return None if ids is None else (torch.arange(ids.shape[-1], device=ids.device) < self.first_end(ids)).long()


class LongformerForMultipleChoice(_Task, RobertaForMultipleChoice, backbone=LongformerModel):
    """The same as of RoBERTa; what follows the first separators sees all, where ``global_attention_mask`` is absent."""

    reads = (
        *("input_ids", "token_type_ids", "attention_mask", "global_attention_mask", "labels", "position_ids"),
        "inputs_embeds",
    )

    def chosen(self, inputs: dict[str, Any]) -> Tensor | None:
        ids = inputs.get("input_ids")
        return None if ids is None else (torch.arange(ids.shape[-1], device=ids.device) > self.first_end(ids) + 1).long()
