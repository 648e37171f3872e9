"""Classifiers over text: of sequences, of tokens, of tokens that were replaced, and of several choices.

Shapes: B batch, N choices, T positions, D hidden size, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Unpack

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.model import B, TaskModel
from transept.core.text import TextB, TextInputs
from transept.errors import InputError
from transept.layers import pool
from transept.layers.activation import activation
from transept.layers.context import Rows
from transept.objectives.classification import binary, cross_entropy, sequence_classification
from transept.objectives.terms import Items
from transept.outputs import BackboneOutput, LogitsOutput


class Classifier(nn.Module):
    """A linear layer, with a dense layer and an activation before it where the checkpoints have one.

    Args:
        dim: D.
        classes: C.
        act: name of the activation after the dense layer; no dense layer when absent.
        bias: of the last layer.
        dropout: before each layer.
    """

    def __init__(self, dim: int, classes: int, *, act: str | None = None, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = None if act is None else nn.Linear(dim, dim)
        self.act: Callable[[Tensor], Tensor] | None = None if act is None else activation(act)
        self.out_proj = nn.Linear(dim, classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., C)."""
        if self.dense is not None and self.act is not None:
            x = self.act(self.dense(self.dropout(x)))
        logits: Tensor = self.out_proj(self.dropout(x))
        return logits


class DenseClassifier(nn.Module):
    """A dense layer, an activation, dropout and a linear layer; arguments as for :class:`Classifier`."""

    def __init__(self, dim: int, classes: int, *, act: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense: nn.Module = nn.Linear(dim, dim)
        self.act, self.dropout = activation(act), nn.Dropout(dropout)
        self.out_proj = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., C)."""
        logits: Tensor = self.out_proj(self.dropout(self.act(self.dense(x))))
        return logits


class HeadedTask(TaskModel[B]):
    """A task with a classifier as its ``head``; ``act`` is the activation after its dense layer, if it has one."""

    act: ClassVar[str | None] = None
    names = Names({"classifier": "head.out_proj"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = self.make_head(config)

    @property
    def classes(self) -> int:
        """C."""
        return self.config.num_labels

    def make_head(self, config: Config) -> nn.Module:
        """(..., D) -> (..., C)."""
        return Classifier(self.model.dim, self.classes, act=self.act, dropout=self.model.head_dropout)


class PooledTask(HeadedTask[B]):
    """A task on one state per sequence.

    ``pooling`` is ``first``, ``mean``, ``last`` or ``pooler``; the backbone's own when ``None``.
    """

    pooling: ClassVar[str | None] = None
    output_class: ClassVar[type[LogitsOutput]] = LogitsOutput

    @property
    def how(self) -> str:
        return self.pooling or self.model.pooling

    @property
    def reads_pooler(self) -> bool:
        return self.how == "pooler"

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """The state of each sequence, (B, D)."""
        hidden = states.last_hidden_state
        match self.how:
            case "pooler":
                assert states.pooler_output is not None
                return states.pooler_output
            case "mean":
                return pool.mean(hidden, self.model.infer_mask(ids) if mask is None and ids is not None else mask)
            case "last":
                return pool.last(hidden, ids, mask, self.config.pad_token_id)
        return pool.first(hidden)


class SummaryTask(PooledTask[TextB]):
    """A pooled task whose config says how a sequence is summed up.

    ``summary_type`` is which state stands for it (``cls_index`` is the last one), ``summary_use_proj`` whether a dense layer
    follows, ``summary_activation`` what comes then, and ``summary_last_dropout`` the dropout after it.
    """

    def make_head(self, config: Config) -> nn.Module:
        """(B, D) -> (B, C)."""
        act, dropout = config.summary_activation or "linear", config.summary_last_dropout
        head = DenseClassifier(self.model.dim, self.classes, act=act, dropout=dropout)
        if not config.summary_use_proj:
            head.dense = nn.Identity()
        return head

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """The state of each sequence, (B, D)."""
        return pool.summary(states.last_hidden_state, self.config.summary_type)


class ForSequenceClassification(PooledTask[TextB]):
    """One of C classes, several of them, or C numbers for each sequence."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Classify sequences.

        Args:
            input_ids: (B, T), or ``inputs_embeds`` (B, T, D).
            attention_mask: (B, T), 1 for real tokens.
            labels: (B) integers, (B, C) for several labels at once, numbers for regression; see ``problem_type``.
            num_items_in_batch: items of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, C), and ``loss`` where there are labels.
        """
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        if (lengths := inputs.get("lengths")) is not None:
            rows = Rows(tuple(lengths))
            states["last_hidden_state"], attention_mask = rows.padded(states.last_hidden_state)
            input_ids = None
        logits = self.head(self.pool(states, input_ids, attention_mask))
        terms = None
        if labels is not None:
            terms = {"classification": sequence_classification(logits, labels, self.config.problem_type)}
        return self.answer(self.output_class(logits=logits), states, terms, num_items_in_batch, return_dict)


class ForLastTokenClassification(ForSequenceClassification[TextB]):
    """Sequences classified by a decoder's last real token, with one linear layer that has neither bias nor dropout."""

    names = Names({"score": "head.out_proj"})

    def make_head(self, config: Config) -> nn.Module:
        return Classifier(self.model.dim, self.classes, bias=False)


class ForTokenClassification(HeadedTask[TextB]):
    """One of C classes for each token."""

    output_class: ClassVar[type[LogitsOutput]] = LogitsOutput

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Classify tokens; ``labels`` (B, T) with -100 for ignored ones, ``logits`` (B, T, C)."""
        inputs.setdefault("use_cache", False)  # all tokens are classified at once
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.head(states.last_hidden_state)
        terms = None if labels is None else {"classification": cross_entropy(logits, labels)}
        return self.answer(self.output_class(logits=logits), states, terms, num_items_in_batch, return_dict)


class ForReplacedTokenDetection(HeadedTask[TextB]):
    """Whether each token is the original one or was put in its place (Clark et al. 2020)."""

    def make_head(self, config: Config) -> nn.Module:
        return DenseClassifier(self.model.dim, 1, act=config.hidden_act)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Tell tokens apart; ``labels`` (B, T): 1 where replaced, -100 ignored as padding is; ``logits`` (B, T)."""
        inputs.setdefault("use_cache", False)  # all tokens are looked at together
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.head(states.last_hidden_state).squeeze(-1)
        terms = None
        if labels is not None:
            padded = attention_mask is not None and attention_mask.ndim == 2
            terms = {"replaced": binary(logits, labels, attention_mask if padded else None)}
        return self.answer(LogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)


class ForMultipleChoice(PooledTask[TextB]):
    """The best of N choices, each a sequence of its own."""

    @property
    def classes(self) -> int:
        """Each choice gets one number."""
        return 1

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Choose; inputs are (B, N, T), ``labels`` (B) the index of the right choice, ``logits`` (B, N)."""
        given = input_ids if input_ids is not None else inputs.get("inputs_embeds")
        if given is None or given.ndim < 3:
            raise InputError("multiple choice needs `input_ids` of (batch, choices, positions).")
        choices = given.shape[1]
        for name in ("token_type_ids", "position_ids", "inputs_embeds", "input_mask"):
            if (value := inputs.get(name)) is not None:
                inputs[name] = value.flatten(0, 1)  # type: ignore[attr-defined]
        ids = None if input_ids is None else input_ids.flatten(0, 1)
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        states = self.model(input_ids=ids, attention_mask=mask, return_dict=True, **inputs)
        logits = self.head(self.pool(states, ids, mask)).view(-1, choices)
        terms = None if labels is None else {"choice": cross_entropy(logits, labels)}
        return self.answer(self.output_class(logits=logits), states, terms, num_items_in_batch, return_dict)
