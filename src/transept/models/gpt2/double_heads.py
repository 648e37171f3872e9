"""GPT-2's task with two heads: the next token of each choice, and which choice is best."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from transept.checkpoint.names import Names
from transept.config.fields import Share
from transept.config.model import Config
from transept.core.task import wants_loss_alone
from transept.errors import InputError
from transept.heads.classify import Classifier, choices_as_rows
from transept.heads.language import ForCausalLM, LanguageTask, next_tokens
from transept.kinds.text import TextB
from transept.layers import pool
from transept.layers.mlp import activation
from transept.objectives.classification import Unscored, counted, cross_entropy
from transept.objectives.terms import Items, means
from transept.outputs import DoubleHeadsOutput


class DoubleHeadsConfig(Config):
    """Settings of the head that chooses."""

    summary_type: Literal["cls_index", "first", "last", "mean"] = "cls_index"
    summary_use_proj: bool = True
    summary_activation: str | None = None
    summary_proj_to_labels: bool = True
    summary_first_dropout: Share = 0.1


class ForDoubleHeads(LanguageTask[TextB]):
    """The next token of each choice, and the best of N choices (Radford et al. 2018).

    The config says which state stands for a choice (``summary_type``: ``cls_index`` is the one at ``mc_token_ids``, else
    ``first``, ``last`` or ``mean``), which activation follows and which share is dropped.
    """

    names = ForCausalLM.names | Names({"multiple_choice_head.summary": "head.out_proj"})
    labels = ()  # each of the two losses is given by itself
    bias, make_head = False, ForCausalLM.make_head

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("summary_use_proj", "summary_proj_to_labels"):
            if not getattr(config, name):
                config.fail(name, f"must be true for {type(self).__name__}, which needs one number per choice")
        self.head = Classifier(self.backbone.dim, 1, dropout=config.summary_first_dropout)
        self.activate = activation(config.summary_activation or "linear")

    def summary(self, hidden: Tensor, places: Tensor | None) -> Tensor:
        """(B * N, T, D) -> (B * N, D), by ``summary_type``; padding counts as well, as it did in training."""
        if self.config.summary_type != "cls_index" or places is None:
            return pool.summary(hidden, self.config.summary_type)
        if places.numel() != hidden.shape[0]:
            raise InputError(f"`mc_token_ids` has the shape {tuple(places.shape)}, but there are {hidden.shape[0]} choices.")
        return hidden.take_along_dim(places.reshape(-1, 1, 1), dim=1).squeeze(1)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        labels, chosen = inputs.get("labels"), inputs.get("mc_labels")
        counts = {} if labels is None else {"causal_lm": counted(next_tokens(labels))}
        return counts | ({} if chosen is None else {"choice": counted(chosen)})

    def forward(
        self,
        *,
        mc_token_ids: Tensor | None = None,
        labels: Tensor | None = None,
        mc_labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> DoubleHeadsOutput:
        """Predict and choose; inputs are (B, N, T).

        Args:
            mc_token_ids: (B, N), the position of each choice's classification token; the last one when absent.
            labels: (B, N, T), the same tokens again: the shift by one happens here; -100 is ignored.
            mc_labels: (B), the index of the right choice.
            num_items_in_batch: items of the whole batch for each term, where this is a micro-batch.
            return_dict, inputs: as for every task.

        Returns:
            ``logits`` (B, N, T, V) and ``mc_logits`` (B, N), with a ``loss`` and an ``mc_loss`` of their own.
        """
        rows, choices = choices_as_rows(inputs)
        if not choices:
            raise InputError(f"{type(self).__name__} needs `input_ids` of (batch, choices, positions).")
        states = self.encode(rows, labels)
        hidden = states.last_hidden_state
        alone = labels is not None and wants_loss_alone()
        logits: Any = Unscored(self.lm_head, hidden) if alone else self.lm_head(hidden)
        chosen = self.activate(self.head(self.summary(hidden, mc_token_ids))).view(choices)
        terms = {}
        if labels is not None:
            terms["causal_lm"] = cross_entropy(logits, next_tokens(labels.flatten(0, len(choices) - 1), logits))
        if mc_labels is not None:
            terms["choice"] = cross_entropy(chosen, mc_labels)
        losses = means(terms, num_items_in_batch)
        if states.hidden_states is not None:  # as the reference has them: the last ones by choice, those before in rows
            states["hidden_states"] = (*states.hidden_states[:-1], hidden.unflatten(0, choices))
        shown = None if alone else logits.unflatten(0, choices)
        output = DoubleHeadsOutput(logits=shown, mc_logits=chosen, loss_terms=terms or None)
        output["loss"], output["mc_loss"] = losses.get("causal_lm"), losses.get("choice")
        return self.answer(output, states, None, None, return_dict)
