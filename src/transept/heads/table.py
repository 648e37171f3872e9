"""Questions about tables, answered by cells and by what is made of them (Herzig et al. 2020).

Shapes: B batch, T positions, D hidden size, R rows and C columns at most, A ways to aggregate.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import RelaxedBernoulli, RelaxedOneHotCategorical

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.task import TaskModel
from transept.errors import refuse
from transept.kinds.text import TextB
from transept.objectives.classification import widened
from transept.objectives.terms import Items, LossTerm
from transept.outputs import ModelOutput

# What token types say: the segment, the column and the row (0 for the question), whether the cell was an answer before, the
# cell's rank among the numbers of its column from both ends, and how it compares with the numbers of the question.
KINDS = 7
COLUMN, ROW = 1, 2
_NEVER = -1e4  # a logit of what cannot be chosen


class TableQuestionAnsweringOutput(ModelOutput):
    """Logits (B, T) of tokens of cells that are answers, and (B, A) of how they are aggregated."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    logits_aggregation: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class _Cells:
    """Which tokens are of which cell of a table; the first cell has those of none. Padding counts nowhere."""

    def __init__(self, c: Config, types: Tensor, real: Tensor) -> None:
        self.size, self.real = (c.max_num_rows, c.max_num_columns), real
        rows, columns = (types[..., kind].clamp(max=most - 1) for kind, most in zip((ROW, COLUMN), self.size, strict=True))
        self.index = (rows * c.max_num_columns + columns).expand(real.shape)
        self.tokens = self.sum(torch.ones_like(real))
        self.there = (self.tokens > 0).to(real)

    def sum(self, values: Tensor) -> Tensor:
        """(B, T) -> (B, R, C)."""
        values = values * self.real
        none = values.new_zeros(len(values), self.size[0] * self.size[1])
        return none.scatter_add(1, self.index, values).view(-1, *self.size)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.tokens.clamp(min=1)

    def spread(self, values: Tensor) -> Tensor:
        """(B, R, C) -> (B, T): to each token what its cell has."""
        return values.flatten(1).gather(1, self.index)

    def columns(self, values: Tensor, *, empty: bool) -> Tensor:
        """Logits (B, C), the mean over the cells of each column that there is; the first stands for none, if ``empty``."""
        count = self.there.sum(dim=1)
        logits = (self.mean(values) * self.there).sum(dim=1) / count.clamp(min=1)
        first = torch.arange(count.shape[1], device=count.device) == 0
        return logits + _NEVER * torch.where(first, float(not empty), (count == 0).to(logits))


class ForTableQuestionAnswering(TaskModel[TextB]):
    """Cells that answer a question: ``logits`` (B, T) of tokens, ``logits_aggregation`` (B, A) of what is made of the cells."""

    reads_pooler = True
    names = Names(
        {name: name for name in ("output_weights", "column_output_weights", "output_bias", "column_output_bias")}
        | {"aggregation_classifier": "aggregation_classifier"}
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        c, dim = config, self.backbone.dim
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.output_weights, self.column_output_weights = (nn.Parameter(torch.empty(dim)) for _ in range(2))
        self.output_bias, self.column_output_bias = (nn.Parameter(torch.empty(())) for _ in range(2))
        aggregates = c.num_aggregation_labels > 0
        self.aggregation_classifier = nn.Linear(dim, c.num_aggregation_labels) if aggregates else None

    def reset_parameters(self) -> None:
        std = 0.0 if self.config.init_cell_selection_weights_to_zero else self.config.initializer_range
        for weight in (self.output_weights, self.column_output_weights):
            nn.init.normal_(weight, std=std)
        for bias in (self.output_bias, self.column_output_bias):
            nn.init.zeros_(bias)

    def forward(
        self,
        *,
        table_mask: Tensor | None = None,
        labels: Tensor | None = None,
        aggregation_labels: Tensor | None = None,
        float_answer: Tensor | None = None,
        numeric_values: Tensor | None = None,
        numeric_values_scale: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> TableQuestionAnsweringOutput:
        """Find the answers, and with ``labels`` the loss.

        Args:
            table_mask: (B, T), 1 for tokens of cells that may be aggregated; those below the header when absent.
            labels: (B, T), 1 for tokens of the answer's cells, else 0.
            aggregation_labels: (B), how cells are aggregated, where that is known.
            float_answer: (B), the answers, NaN where they are cells; ``use_answer_as_supervision`` needs them.
            numeric_values, numeric_values_scale: (B, T), the number of each token's cell, NaN where it has none, and in how
                many tokens it stands; needed with ``float_answer``.
            num_items_in_batch, return_dict, inputs: as for every task.

        Raises:
            InputError: what the loss needs is missing.
        """
        states, given = self.backbone(return_dict=True, **inputs), {"table_mask": table_mask, "labels": labels}
        given |= {"aggregation_labels": aggregation_labels, "float_answer": float_answer}
        given |= {"numeric_values": numeric_values, "numeric_values_scale": numeric_values_scale}
        types = inputs.get("token_type_ids")
        if types is None:
            types = states.last_hidden_state.new_zeros(1, states.last_hidden_state.shape[1], KINDS, dtype=torch.long)
        if table_mask is None:
            given["table_mask"] = types[..., ROW] > 0
        output: TableQuestionAnsweringOutput
        output, terms = self.find_cells(states, _Cells(self.config, types, self.real(states, inputs)), given)
        return self.answer(output, states, terms, num_items_in_batch, return_dict)

    def find_cells(self, states: Any, cells: _Cells, given: dict[str, Any]) -> tuple[Any, dict[str, LossTerm] | None]:
        """The output, and with labels the parts of the loss."""
        c, x = self.config, self.dropout(states.last_hidden_state)
        tokens = widened(x @ self.output_weights + self.output_bias) / c.temperature
        columns = widened(x @ self.column_output_weights + self.column_output_bias)
        columns = cells.columns(columns, empty=c.allow_empty_column_selection)
        if c.average_logits_per_cell:
            tokens = cells.spread(cells.mean(tokens))
        output = TableQuestionAnsweringOutput(logits=tokens)
        if c.select_one_column:
            output["logits"] = self.of_one_column(tokens, columns, cells)
        if self.aggregation_classifier is not None:
            output["logits_aggregation"] = self.aggregation_classifier(states.pooler_output)
        if (labels := given["labels"]) is None:
            return output, None
        one = c.select_one_column
        losses = self.column_loss(tokens, columns, labels, cells) if one else self.token_loss(tokens, labels, cells)
        return output, self.terms(losses, output, given)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        if (labels := inputs.get("labels")) is None:
            return {}
        names = [] if self.config.disable_per_token_loss else ["cells"]
        names += ["aggregation"] if self.aggregation_classifier is not None else []
        return dict.fromkeys([*names, *(["answer"] if self.learns_from_answers else [])], torch.tensor(len(labels)))

    @property
    def learns_from_answers(self) -> bool:
        return bool(self.config.use_answer_as_supervision) and self.aggregation_classifier is not None

    def real(self, states: Any, inputs: dict[str, Any]) -> Tensor:
        """(B, T): 1 for real tokens, 0 for padding."""
        mask, ids, like = inputs.get("attention_mask"), inputs.get("input_ids"), widened(states.last_hidden_state[..., 0])
        if mask is None and ids is not None:
            mask = self.backbone.infer_mask(ids)
        return torch.ones_like(like) if mask is None or mask.ndim != 2 else (mask != 0).to(like)

    def of_one_column(self, tokens: Tensor, columns: Tensor, cells: _Cells) -> Tensor:
        """The logits (B, T) of cells, which outside the likeliest column cannot be chosen."""
        number = torch.arange(columns.shape[1], device=columns.device)
        chosen = (number == columns.argmax(dim=1, keepdim=True)) & (number != 0)
        return cells.spread(cells.mean(tokens) + _NEVER * (1 - cells.there * chosen[:, None]))

    def column_loss(self, tokens: Tensor, columns: Tensor, labels: Tensor, cells: _Cells) -> Tensor:
        """(B): the cross-entropy of the answer's column, and the mean one of the cells in it."""
        wanted = cells.sum(labels.to(tokens))
        most, column = wanted.sum(dim=1).max(dim=1)
        column = column.masked_fill(most == 0, 0)
        inside = cells.there * (torch.arange(columns.shape[1], device=columns.device) == column[:, None])[:, None]
        losses = F.binary_cross_entropy_with_logits(cells.mean(tokens), (wanted > 0).to(tokens), reduction="none") * inside
        mean = losses.sum(dim=(1, 2)) / inside.sum(dim=(1, 2)).clamp(min=1)
        return F.cross_entropy(columns, column, reduction="none") + mean.masked_fill(most == 0, 0.0)

    def token_loss(self, tokens: Tensor, labels: Tensor, cells: _Cells) -> Tensor:
        """(B): the mean binary cross-entropy of tokens, of which those of the answer weigh more."""
        weight = torch.where(labels == 0, 1.0, self.config.positive_label_weight) * cells.real
        losses = F.binary_cross_entropy_with_logits(tokens, labels.to(tokens), reduction="none") * weight
        return losses.sum(dim=1) / cells.real.sum(dim=1).clamp(min=1)

    def terms(self, cells: Tensor, output: Any, given: dict[str, Any]) -> dict[str, LossTerm]:
        """The parts of the loss, of that of the cells (B)."""
        c, count = self.config, torch.tensor(len(cells), device=cells.device)
        parts: dict[str, Tensor] = {} if c.disable_per_token_loss else {"cells": cells}
        if self.learns_from_answers:
            parts |= self.answer_losses(parts, widened(output.logits_aggregation), output.logits, given)
        elif self.aggregation_classifier is not None:
            self.need(given, "aggregation_labels")
            logits = widened(output.logits_aggregation)
            parts["aggregation"] = F.cross_entropy(logits, given["aggregation_labels"], reduction="none")
        weights = {"aggregation": c.aggregation_loss_weight, "answer": c.answer_loss_importance}
        return {name: LossTerm(part.sum(), count, weights.get(name, 1.0)) for name, part in parts.items()}

    def need(self, given: dict[str, Any], *names: str) -> None:
        for name in names:
            refuse(given[name] is None, f"the loss of {type(self).__name__} needs `{name}`.", "Pass it beside `labels`.")

    def answer_losses(
        self, parts: dict[str, Tensor], logits: Tensor, tokens: Tensor, given: dict[str, Any]
    ) -> dict[str, Tensor]:
        """What is learnt of answers alone: whether cells are aggregated, and how, so that the result is the answer."""
        self.need(given, "float_answer", "numeric_values", "numeric_values_scale")
        c, answer = self.config, given["float_answer"].to(logits)
        unsure = c.cell_selection_preference is None
        refuse(unsure, "the loss needs the setting `cell_selection_preference`.", "Set it in the config: 0.2 is usual.")
        mass = logits.softmax(dim=-1)[:, 1:].sum(dim=1)
        selects = (mass <= c.cell_selection_preference) & (given["labels"].sum(dim=1) > 0)
        aggregates = (~answer.isnan() & ~selects).to(logits)
        none = -logits.log_softmax(dim=-1)[:, 0] * (1 - aggregates)
        answer = answer.nan_to_num() * aggregates
        result = self.expected(logits[:, 1:], tokens, given) * aggregates
        if c.use_normalized_answer_loss:
            size = (torch.maximum(result.abs(), answer.abs()) + 1e-10).detach()
            errors = F.huber_loss(result / size, answer / size, reduction="none")
        else:
            errors = F.huber_loss(result, answer, reduction="none", delta=c.huber_loss_delta or 1.0)
        small = 1.0 if c.answer_loss_cutoff is None else (errors <= c.answer_loss_cutoff).to(errors)
        found = {name: part * (1 - aggregates) for name, part in parts.items()}
        return found | {"aggregation": (none - mass.log() * aggregates) * small, "answer": errors * aggregates * small}

    def expected(self, logits: Tensor, tokens: Tensor, given: dict[str, Any]) -> Tensor:
        """(B): the result on average, where cells and ways (sum, mean, number) are drawn by their probabilities."""
        c, ways = self.config, (logits / self.config.aggregation_temperature).softmax(dim=-1)
        what = f"`num_aggregation_labels` is {logits.shape[1] + 1}, but answers are learnt of four: none, sum, mean and count."
        refuse(logits.shape[1] != 3, what, "Set it to 4, or `use_answer_as_supervision` to False.")
        shares = tokens.sigmoid()
        if c.use_gumbel_for_cells:
            shares = RelaxedBernoulli(torch.tensor(c.temperature), logits=tokens * c.temperature).sample()  # type: ignore[no-untyped-call]
        if c.use_gumbel_for_aggregation:
            ways = RelaxedOneHotCategorical(torch.tensor(c.aggregation_temperature), logits=logits).sample()  # type: ignore[no-untyped-call]
        shares = shares / given["numeric_values_scale"].to(tokens) * given["table_mask"].to(tokens)
        values, count = given["numeric_values"].to(tokens).nan_to_num(), shares.sum(dim=1)
        total = (shares * values).sum(dim=1)
        results = torch.stack([total, self.mean(total, values, shares), count], dim=1)
        expected: Tensor = (results * ways).sum(dim=1)
        return expected

    def mean(self, total: Tensor, values: Tensor, shares: Tensor) -> Tensor:
        """(B): the mean of a random set of cells, whose values are ``total`` together, approximated as the config says."""
        how = self.config.average_approximation_function
        if how == "ratio":
            return total / (shares.sum(dim=1) + 1e-10)
        size = shares.sum(dim=1, keepdim=True) - shares + 1  # of the set, on average, where this cell is in it
        weight = shares / size
        if how == "second_order":
            spread = shares * (1 - shares)
            weight = weight * ((spread.sum(dim=1, keepdim=True) - spread) / size.square() + 1)
        return (values * weight).sum(dim=1)
