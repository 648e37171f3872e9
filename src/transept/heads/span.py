"""Extractive question answering: the first and last token of the answer.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.text import TextB, TextInputs
from transept.heads.classify import Classifier, HeadedTask
from transept.objectives.classification import spans
from transept.objectives.terms import Items
from transept.outputs import QuestionAnsweringOutput


class ForQuestionAnswering(HeadedTask[TextB]):
    """Start and end logits for each token."""

    names = Names({"qa_outputs": "head.out_proj"})
    output_class: ClassVar[type[QuestionAnsweringOutput]] = QuestionAnsweringOutput

    def make_head(self, config: Config) -> nn.Module:
        return Classifier(self.model.dim, 2)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> QuestionAnsweringOutput:
        """Find answers; positions are (B) token indices, those outside the sequence are ignored.

        Returns:
            ``start_logits`` and ``end_logits`` (B, T), and ``loss`` where both positions are given.
        """
        inputs.setdefault("use_cache", False)  # all tokens are looked at together
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        start, end = self.head(states.last_hidden_state).unbind(-1)
        start, end = start.contiguous(), end.contiguous()
        terms = None
        if start_positions is not None and end_positions is not None:
            terms = spans(start, end, start_positions, end_positions)
        output = self.output_class(start_logits=start, end_logits=end)
        return self.answer(output, states, terms, num_items_in_batch, return_dict)
