"""Splinter (Ram et al. 2021): BERT pretrained to find spans that occur again, which a question token stands for.

Its head for answers is the one of its pretraining, so that few examples are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.config.model import Config
from transept.errors import InputError
from transept.heads import span
from transept.kinds.encoder import EncoderConfig, LayersStep, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Context
from transept.layers.links import Step
from transept.models.bert import BERT_EMBEDDINGS, BERT_LAYERS, BertEmbeddings, BertModel
from transept.objectives.classification import count_spans, spans
from transept.objectives.terms import LossTerm
from transept.outputs import ModelOutput


class SplinterConfig(EncoderConfig):
    """Settings of Splinter; ``question_token_id`` is the token that stands for what is looked for."""

    model_type = "splinter"

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: PaddingId | None = 0
    question_token_id: int = 104


class SplinterModel(TextBackbone):
    """Splinter without a head."""

    config_class = SplinterConfig
    head_dropouts = ("hidden_dropout_prob",)
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {"embeddings": ("", BERT_EMBEDDINGS), **BERT_LAYERS}, legacy=BertModel.names.legacy, ignore=BertModel.names.ignore
    )
    config: SplinterConfig

    def __init__(self, config: SplinterConfig) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)  # type: ignore[arg-type]
        for stored, own in BERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = encoder_layers(config)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions)


class Transform(nn.Module):
    """A dense layer, GELU and a norm: (..., D) -> (..., D)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(x)))


class SpanSelection(nn.Module):
    """Start and end logits (B, Q, T) of what Q question tokens of each text stand for."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query_start_transform, self.query_end_transform = Transform(dim), Transform(dim)
        self.start_transform, self.end_transform = Transform(dim), Transform(dim)
        self.start_classifier, self.end_classifier = (nn.Linear(dim, dim, bias=False) for _ in range(2))

    def forward(self, inputs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        asked = inputs.gather(1, positions[..., None].expand(-1, -1, inputs.shape[-1]))
        start = self.start_classifier(self.query_start_transform(asked)) @ self.start_transform(inputs).mT
        return start, self.end_classifier(self.query_end_transform(asked)) @ self.end_transform(inputs).mT


class _Selects(span.ForQuestionAnswering[SplinterModel]):
    """A task with spans for question tokens, at ``question_positions`` (B, Q)."""

    takes: ClassVar[tuple[str, ...]] = ("question_positions",)
    names = Names({"splinter_qass": "head"})

    def make_head(self, config: Config) -> nn.Module:
        return SpanSelection(self.backbone.dim)

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        return super().encode({name: value for name, value in inputs.items() if name not in self.takes}, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        given = inputs.get("question_positions")
        hidden: Tensor = states.last_hidden_state
        logits = self.head(hidden, self.questions(hidden, inputs) if given is None else given)
        if given is None:
            logits = tuple(each.squeeze(1) for each in logits) if self.asks_once else logits
        if (mask := inputs.get("attention_mask")) is not None:
            hidden_by = (1 - mask.to(hidden.dtype)) * torch.finfo(hidden.dtype).min
            logits = tuple(each + (hidden_by if each.ndim == 2 else hidden_by[:, None]) for each in logits)
        return self.output_class(start_logits=logits[0].contiguous(), end_logits=logits[1].contiguous())

    asks_once: ClassVar[bool] = True  # whether a text has one question, where nothing tells their places

    def questions(self, hidden: Tensor, inputs: dict[str, Any]) -> Tensor:
        """(B, Q): the places of question tokens in texts with states (B, T, D)."""
        raise NotImplementedError


class SplinterForQuestionAnswering(_Selects, span.ForQuestionAnswering[SplinterModel]):
    """Splinter that answers a question: the first question token of each text asks, where ``question_positions`` are absent."""

    def questions(self, hidden: Tensor, inputs: dict[str, Any]) -> Tensor:
        if (ids := inputs.get("input_ids")) is None:
            return torch.zeros(hidden.shape[0], 1, dtype=torch.long, device=hidden.device)
        return (ids == self.config.question_token_id).int().argmax(dim=-1)[:, None]


class SplinterForPreTraining(_Selects, span.ForQuestionAnswering[SplinterModel]):
    """Splinter as it is pretrained: logits are (B, Q, T), and positions (B, Q), of which the padding id is none."""

    asks_once = False

    def questions(self, hidden: Tensor, inputs: dict[str, Any]) -> Tensor:
        if (ids := inputs.get("input_ids")) is None:
            raise InputError("`question_positions` are needed beside `inputs_embeds`.")
        asks = ids == self.config.question_token_id
        counts = asks.sum(dim=1)
        if not torch.compiler.is_compiling() and not bool(counts.all()):
            row = int((counts == 0).nonzero()[0])
            raise InputError(f"row {row} has no question token ({self.config.question_token_id}).")
        places = asks.int().sort(dim=1, descending=True, stable=True).indices[:, : int(counts.max())]
        known = torch.arange(places.shape[1], device=ids.device) < counts[:, None]
        return places.masked_fill(~known, self.config.pad_token_id or 0)

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        if inputs.get("question_positions") is None:
            raise InputError("`question_positions` are needed for a loss.", hint="Pass (batch, questions) places of tokens.")
        found = self.targets(labels, output.start_logits.shape[-1])
        return spans(output.start_logits.flatten(0, 1), output.end_logits.flatten(0, 1), *found)

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        length = self.length(inputs)
        return count_spans(*self.targets(labels, length), length)

    def targets(self, labels: list[Any], length: int) -> tuple[Tensor, Tensor]:
        """(B * Q) positions each, of which those that are none are behind the text."""
        flat = [each.flatten().clamp(0, max(length - 1, 0)) for each in labels]
        start, end = (each.masked_fill(each == self.config.pad_token_id, length) for each in flat)
        return start, end
