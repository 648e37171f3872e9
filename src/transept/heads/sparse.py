"""Language modelling where tokens choose experts, whose even use is part of the loss."""

from __future__ import annotations

from transept.core.model import O
from transept.core.text import TextB
from transept.heads.language import ForCausalLM
from transept.objectives.terms import Items, LossTerm
from transept.outputs import ModelOutput, SparseLogitsOutput, SparseOutput


class ForSparseCausalLM(ForCausalLM[TextB]):
    """The next token.

    With ``output_router_logits`` the routers' logits are given, ``aux_loss`` tells how even the choices of real tokens were,
    and the loss, where there is one, has it as a further term.
    """

    output_class = SparseLogitsOutput

    def answer(
        self,
        output: O,
        states: ModelOutput,
        terms: dict[str, LossTerm] | None,
        items: Items | None,
        return_dict: bool | None,
    ) -> O:
        """Complete the output with what the backbone tells of its experts, too."""
        if isinstance(states, SparseOutput) and states.loss_terms is not None:
            output["aux_loss"] = sum(term.mean for term in states.loss_terms.values())
            terms = None if terms is None else terms | states.loss_terms
        return super().answer(output, states, terms, items, return_dict)
