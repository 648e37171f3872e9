"""Classifiers over text: of sequences, of tokens, and of several choices.

Shapes: B batch, N choices, T positions, D hidden size, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.task import B
from transept.errors import InputError
from transept.heads.task import Task
from transept.kinds.text import TextB
from transept.layers import pool
from transept.layers.context import Rows
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.objectives.classification import counted, cross_entropy
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, LogitsOutput, ModelOutput


class Classifier(Linked):
    """A linear layer (..., D) -> (..., C), with dropout before it.

    Where ``act`` names an activation, it and a dense layer come before, with another dropout; ``bias`` is the last layer's.
    """

    # Whether a task on the first state hands it all of them, as hooks and heads that take its place expect.
    takes_all_states: ClassVar[bool] = False

    def __init__(self, dim: int, classes: int, *, act: str | None = None, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense: nn.Module | None = None if act is None else nn.Linear(dim, dim)
        self.act: Callable[[Tensor], Tensor] = activation(act or "linear")
        self.out_proj = nn.Linear(dim, classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.act(self.dense(self.dropout(x)))
        logits: Tensor = self.out_proj(self.dropout(x))
        return logits


class DenseClassifier(Classifier):
    """The same, with dropout before the last layer alone."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.dense is not None
        logits: Tensor = self.out_proj(self.dropout(self.act(self.dense(x))))
        return logits


class FirstClassifier(Classifier):
    """A classifier of the first state of each sequence, which takes that alone, (B, D), or all, (B, T, D) -> (B, C)."""

    takes_all_states = True

    def forward(self, x: Tensor, **others: Any) -> Tensor:
        return super().forward(x[:, 0] if x.ndim == 3 else x)


class HeadedTask(Task[B]):
    """A task with a classifier as its ``head``, of the kind ``head_class``.

    ``act`` is the activation after its dense layer, or the setting that names it, and ``None`` without that layer. ``bias`` is
    the last layer's. ``head_dropouts`` are the settings that say the dropout, the backbone's where ``None``.
    """

    head_class: ClassVar[type[Classifier]] = Classifier
    act: ClassVar[str | None] = None
    bias: ClassVar[bool] = True
    head_dropouts: ClassVar[tuple[str | float, ...] | None] = None
    names = Names({"classifier": "head.out_proj"})
    output_class: ClassVar[type[ModelOutput]] = LogitsOutput

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = self.make_head(config)

    @property
    def classes(self) -> int:
        return self.config.num_labels

    def make_head(self, config: Config) -> nn.Module:
        """(..., D) -> (..., C)."""
        act, dropout = self.act and getattr(config, self.act, self.act), self.backbone.head_dropout(self.head_dropouts)
        return self.head_class(self.backbone.dim, self.classes, act=act, bias=self.bias, dropout=dropout)


class PooledTask(HeadedTask[B]):
    """A task on one state a sequence; ``pooling`` is ``first``, ``mean``, ``last``, ``pooler``, or ``None``: the backbone's.

    A config whose ``head_pooling`` is ``mean`` replaces it: a setting of this library, for heads on sentence embeddings.
    """

    pooling: ClassVar[str | None] = None

    @property
    def how(self) -> str:
        return "mean" if self.config.extra.get("head_pooling") == "mean" else self.pooling or self.backbone.pooling

    @property
    def reads_pooler(self) -> bool:
        return self.how == "pooler"

    def predict(self, states: BackboneOutput | Tensor, inputs: dict[str, Any]) -> ModelOutput:
        if not isinstance(states, Tensor) and self.how == "first" and self.head_class.takes_all_states:
            return self.output_class(logits=self.head(states.last_hidden_state))
        state = states if isinstance(states, Tensor) else self.pooled(states, inputs)
        return self.output_class(logits=self.head(state))

    def features(self, states: BackboneOutput, inputs: dict[str, Any]) -> Tensor | None:
        return self.pooled(states, inputs)

    def pooled(self, states: BackboneOutput, inputs: dict[str, Any]) -> Tensor:
        return self.pool(states, inputs.get("input_ids"), inputs.get("attention_mask"))

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """The state of each sequence, (B, D)."""
        hidden = states.last_hidden_state
        match self.how:
            case "pooler":
                assert states.pooler_output is not None
                return states.pooler_output
            case "mean":
                return pool.mean(hidden, self.backbone.infer_mask(ids) if mask is None and ids is not None else mask)
            case "last":
                return pool.last(hidden, ids, mask, self.config.pad_token_id)
        return hidden[:, 0]


class SummaryTask(PooledTask[TextB]):
    """A pooled task whose config says how a sequence is summed up.

    ``summary_type`` is which state stands for it (``cls_index`` is the last one), ``summary_use_proj`` whether a dense layer
    follows, ``summary_activation`` what comes then, and ``summary_last_dropout`` the dropout after it.
    """

    @property
    def rows_apart(self) -> bool:
        return bool(self.config.summary_type == "first")

    def make_head(self, config: Config) -> nn.Module:
        act, dropout = config.summary_activation or "linear", config.summary_last_dropout
        head = DenseClassifier(self.backbone.dim, self.classes, act=act, dropout=dropout)
        if not config.summary_use_proj:
            head.dense = nn.Identity()
        return head

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        return pool.summary(states.last_hidden_state, self.config.summary_type)


class ForSequenceClassification(PooledTask[TextB]):
    """One of C classes, several of them, or C numbers for each sequence: ``logits`` (B, C).

    ``labels`` are (B) integers, (B, C) for several labels at once, or numbers for regression; see ``problem_type``.
    """

    @property
    def rows_apart(self) -> bool:
        return True

    def predict(self, states: BackboneOutput | Tensor, inputs: dict[str, Any]) -> ModelOutput:
        if (lengths := inputs.get("lengths")) is not None and not isinstance(states, Tensor):
            states["last_hidden_state"], mask = Rows(tuple(lengths)).padded(states.last_hidden_state)
            inputs = inputs | {"input_ids": None, "attention_mask": mask}
        return super().predict(states, inputs)


class ForLastTokenClassification(ForSequenceClassification[TextB]):
    """Sequences classified by a decoder's last real token, with one linear layer that has neither bias nor dropout."""

    names = Names({"score": "head.out_proj"})
    bias, head_dropouts = False, ()


class TokenTask(HeadedTask[B]):
    """A task on all tokens together."""

    def reads_cache(self, labels: Tensor | None) -> bool:
        """False: nothing comes after all tokens."""
        return False


class ForTokenClassification(TokenTask[B]):
    """One of C classes for each token: ``logits`` (B, T, C), ``labels`` (B, T) with -100 for ignored ones."""

    @property
    def rows_apart(self) -> bool:
        return True

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"classification": cross_entropy(logits, labels)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"classification": counted(labels)}


def choices_as_rows(inputs: dict[str, Any]) -> tuple[dict[str, Any], torch.Size]:
    """Inputs (B, N, T) as (B * N, T), and their shape without positions."""
    ids, embeds = inputs.get("input_ids"), inputs.get("inputs_embeds")
    shape = ids.shape[:-1] if ids is not None else torch.Size() if embeds is None else embeds.shape[:-2]
    given = {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim > len(shape)}
    rows = {
        name: value.flatten(0, max(len(shape) - 1, 0)) for name, value in given.items() if value.shape[: len(shape)] == shape
    }
    return inputs | rows, shape


class ForMultipleChoice(PooledTask[TextB]):
    """The best of N choices, each a sequence of its own: inputs (B, N, T), ``logits`` (B, N), ``labels`` (B)."""

    classes = 1

    @property
    def rows_apart(self) -> bool:
        return True

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        rows, shape = choices_as_rows(inputs)
        if len(shape) != 2:
            raise InputError("multiple choice needs `input_ids` of (batch, choices, positions).")
        return super().encode(rows, labels)

    def predict(self, states: BackboneOutput | Tensor, inputs: dict[str, Any]) -> ModelOutput:
        output = super().predict(states, inputs)
        output["logits"] = output["logits"].squeeze(-1)
        return output

    def pooled(self, states: BackboneOutput, inputs: dict[str, Any]) -> Tensor:
        """(B, N, D)."""
        rows, shape = choices_as_rows(inputs)
        pooled = super().pooled(states, rows)
        return pooled.view(*shape, pooled.shape[-1])

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"choice": cross_entropy(logits, labels)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"choice": counted(labels)}
