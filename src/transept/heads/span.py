"""Extractive question answering: the first and last token of the answer, found apart or by a small beam search, in which the
end of an answer depends on where it starts (Yang et al. 2019).

Shapes: B batch, T positions, D hidden size, N starts, M ends for each start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.task import B, TaskModel
from transept.errors import InputError
from transept.heads.classify import HeadedTask, TokenTask
from transept.kinds.text import TextB
from transept.layers.links import Linked
from transept.objectives.classification import binary, check_is_tensor, count_binary, count_spans, spans
from transept.objectives.terms import Items, LossTerm
from transept.outputs import BeamQuestionAnsweringOutput, ModelOutput, QuestionAnsweringOutput


class SpanTask(HeadedTask[B]):
    """Start and end logits (B, T) for each token.

    ``start_positions`` and ``end_positions`` are (B) token indices, of which those outside the sequence are ignored.
    """

    labels = ("start_positions", "end_positions")

    names = Names({"qa_outputs": "head.out_proj"})
    output_class: ClassVar[type[ModelOutput]] = QuestionAnsweringOutput
    classes = 2
    head_dropouts: ClassVar[tuple[str | float, ...] | None] = ()

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        start, end = (each.contiguous() for each in self.head(states.last_hidden_state).unbind(-1))
        return self.output_class(start_logits=start, end_logits=end)

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return spans(output.start_logits, output.end_logits, *labels)

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        return count_spans(labels[0], labels[1], self.length(inputs))

    def length(self, inputs: dict[str, Any]) -> int:
        """The number of tokens that there are logits for."""
        return positions_of(inputs)


def positions_of(inputs: dict[str, Any]) -> int:
    """T of a text's inputs."""
    ids = inputs.get("input_ids")
    return int((inputs["inputs_embeds"] if ids is None else ids).shape[1])


class ForQuestionAnswering(SpanTask[TextB], TokenTask[TextB]): ...


class PairScorer(Linked):
    """One number for a pair of states: a dense layer, tanh, a norm (or the identity), and a linear layer."""

    def __init__(self, dim: int, norm: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        self.dense, self.norm, self.out_proj = nn.Linear(2 * dim, dim), norm, nn.Linear(dim, 1, bias)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """(..., D), (..., D) -> (...)."""
        scores: Tensor = self.out_proj(self.norm(torch.tanh(self.dense(torch.cat([one, other], dim=-1)))))
        return scores.squeeze(-1)


class ForBeamQuestionAnswering(TaskModel[TextB]):
    """The likeliest starts, for each of them the likeliest ends, and whether there is an answer at all.

    The config says how many: ``start_n_top`` and ``end_n_top``.
    """

    names = Names(
        {
            "start_logits.dense": "start",
            "end_logits": ("end", {"dense_0": "dense", "LayerNorm": "norm", "dense_1": "out_proj"}),
            "answer_class": ("impossible", {"dense_0": "dense", "dense_1": "out_proj"}),
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        dim = self.backbone.dim
        self.start, self.end = nn.Linear(dim, 1), PairScorer(dim, nn.LayerNorm(dim, config.layer_norm_eps))
        self.impossible = PairScorer(dim, nn.Identity(), bias=False)

    def forward(
        self,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        is_impossible: Tensor | None = None,
        cls_index: Tensor | None = None,
        p_mask: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> BeamQuestionAnsweringOutput:
        """Find answers, or with both positions their loss.

        Args:
            start_positions, end_positions: (B) token indices; those outside the sequence are ignored.
            is_impossible: (B), 1 where there is no answer; counts in the loss together with ``cls_index``.
            cls_index: (B), the token that tells whether there is one; the last one when absent.
            p_mask: (B, T), 1 for tokens that cannot be in an answer.
            num_items_in_batch: items of the whole batch for each term, where this is a micro-batch.
            return_dict, inputs: as for every task.

        Returns:
            ``loss``; or, without positions, ``start_top_...`` (B, N), ``end_top_...`` (B, M * N) and ``cls_logits`` (B).

        Raises:
            InputError: masks or indices of another shape than the inputs, or fewer positions than N or M.
        """
        states = self.backbone(return_dict=True, **inputs)
        hidden = states.last_hidden_state
        if p_mask is not None and p_mask.shape != hidden.shape[:2]:
            raise InputError(f"`p_mask` has the shape {tuple(p_mask.shape)}, but the inputs are {tuple(hidden.shape[:2])}.")
        start = _without(self.start(hidden).squeeze(-1), p_mask)
        if start_positions is None or end_positions is None:
            output = self.search(hidden, start, p_mask, cls_index)
            return self.answer(output, states, None, num_items_in_batch, return_dict)
        check_is_tensor(start_positions, "start_positions")
        first = _picked(hidden, start_positions.clamp(0, hidden.shape[1] - 1), "start_positions")
        end = _without(self.end(hidden, first[:, None].expand_as(hidden)), p_mask)
        terms = spans(start, end, start_positions, end_positions)
        if is_impossible is not None and cls_index is not None:
            scores = self.impossible(first, _picked(hidden, cls_index, "cls_index"))
            terms["impossible"] = replace(binary(scores, is_impossible.reshape(-1)), weight=0.5)
        return self.answer(BeamQuestionAnsweringOutput(), states, terms, num_items_in_batch, return_dict)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        starts, ends = inputs.get("start_positions"), inputs.get("end_positions")
        if starts is None or ends is None:
            return {}
        counts = count_spans(starts, ends, positions_of(inputs))
        if inputs.get("is_impossible") is not None and inputs.get("cls_index") is not None:
            counts["impossible"] = count_binary(inputs["is_impossible"])
        return counts

    def search(self, hidden: Tensor, start: Tensor, banned: Tensor | None, place: Tensor | None) -> BeamQuestionAnsweringOutput:
        """The best starts, their best ends, and the odds of there being no answer, judged by the mean of all starts."""
        for name in ("start_n_top", "end_n_top"):
            if not 1 <= (most := getattr(self.config, name)) <= hidden.shape[1]:
                few = f"`{name}` is {most}, but there are {hidden.shape[1]} positions to choose from."
                raise InputError(few, hint=f"Set model.config.{name}, or pass longer inputs.")
        chances = start.softmax(dim=-1)
        best, index = chances.topk(self.config.start_n_top, dim=-1)
        first = hidden.take_along_dim(index[:, :, None], dim=1)[:, None].expand(-1, hidden.shape[1], -1, -1)
        end = self.end(hidden[:, :, None].expand_as(first), first)
        ends = _without(end, None if banned is None else banned[:, :, None]).softmax(dim=1)
        best_ends, end_index = ends.topk(self.config.end_n_top, dim=1)
        last = hidden[:, -1] if place is None else _picked(hidden, place, "cls_index")
        return BeamQuestionAnsweringOutput(
            start_top_log_probs=best,
            start_top_index=index,
            end_top_log_probs=best_ends.flatten(1),
            end_top_index=end_index.flatten(1),
            cls_logits=self.impossible((chances[:, None] @ hidden).squeeze(1), last),
        )


def _without(scores: Tensor, banned: Tensor | None) -> Tensor:
    """Scores of tokens that cannot be chosen become so low that their share of a softmax is zero."""
    lowest = -65500.0 if scores.dtype is torch.float16 else -1e30
    return scores if banned is None else scores.masked_fill(banned.to(scores.device) != 0, lowest)


def _picked(hidden: Tensor, places: Tensor, name: str) -> Tensor:
    """The state (B, D) of each row at (B) or (B, 1) places, of which those outside the sequence are refused on the CPU."""
    check_is_tensor(places, name)
    rows, length = hidden.shape[:2]
    if places.numel() != rows:
        raise InputError(f"`{name}` has the shape {tuple(places.shape)}, but there are {rows} sequences.")
    if not torch.compiler.is_compiling() and places.device.type == "cpu" and bool(((places < 0) | (places >= length)).any()):
        raise InputError(f"`{name}` holds {places.tolist()}, but the sequences have the positions 0 to {length - 1}.")
    return hidden.take_along_dim(places.reshape(-1, 1, 1).to(hidden.device), dim=1).squeeze(1)
