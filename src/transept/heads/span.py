"""Extractive question answering: the first and last token of the answer.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.model import B
from transept.core.text import TextB
from transept.heads.classify import Classifier, HeadedTask, TokenTask
from transept.objectives.classification import spans
from transept.objectives.terms import Items
from transept.outputs import ModelOutput, QuestionAnsweringOutput


class SpanTask(HeadedTask[B]):
    """Start and end logits (B, T) for each token."""

    names = Names({"qa_outputs": "head.out_proj"})
    output_class: ClassVar[type[ModelOutput]] = QuestionAnsweringOutput

    def make_head(self, config: Config) -> nn.Module:
        return Classifier(self.model.dim, 2)

    def forward(
        self,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> ModelOutput:
        """Find answers; positions are (B) token indices, those outside the sequence are ignored.

        Returns:
            ``start_logits`` and ``end_logits`` (B, T), and ``loss`` where both positions are given.
        """
        states = self.encode(inputs, None if end_positions is None else start_positions)
        start, end = (each.contiguous() for each in self.head(states.last_hidden_state).unbind(-1))
        terms = None
        if start_positions is not None and end_positions is not None:
            terms = spans(start, end, start_positions, end_positions)
        output = self.output_class(start_logits=start, end_logits=end)
        return self.answer(output, states, terms, num_items_in_batch, return_dict)


class ForQuestionAnswering(SpanTask[TextB], TokenTask[TextB]): ...
