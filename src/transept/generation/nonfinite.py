"""An error in place of text that is made of NaN or infinity, with the name of the layer that gives such values first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn

from transept.errors import GenerationError
from transept.generation.decoding import Decoding
from transept.generation.logits_processors import KnowsRows
from transept.generation.prompt import Prompt


class NonFiniteError(GenerationError):
    """Logits that are NaN or infinite."""


class FiniteLogitsCheck(KnowsRows):
    """An error in place of text made from NaN or infinity, or from a vocabulary that is banned as a whole.

    Single tokens may be impossible, that is ``-inf``.

    Args:
        prompt_length: length of the prompt, for messages that count new tokens.
        num_beams: rows per prompt, of which one with a possible token is enough.
    """

    def __init__(self, prompt_length: int, num_beams: int = 1) -> None:
        self.prompt_length, self.num_beams = prompt_length, num_beams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores (B, V) themselves.

        Raises:
            GenerationError: naming the row, or with beams the prompt, and the number of the new token; a
                :class:`NonFiniteError` where it is the numbers.
        """
        best = scores.amax(-1)  # NaN, or infinite, where any of the row is
        if bool(best.isfinite().all()):
            return scores
        best = best.view(-1, self.num_beams)
        if bool(((best < math.inf) & (best.amax(-1, keepdim=True) > -math.inf)).all()):
            return scores
        wrong = best.isnan().any(-1) | (best == math.inf).any(-1)
        hopeless = wrong if bool(wrong.any()) else best.amax(-1) == -math.inf
        row = int(hopeless.int().argmax())
        place = f"new token {input_ids.shape[-1] - self.prompt_length + 1} of row {self.row(row)}"
        if bool(wrong[row]):
            what = "NaN" if bool(best[row].isnan().any()) else "infinity"
            raise NonFiniteError(
                f"The logits for {place} hold {what}.",
                hint="Its weights, inputs or dtype make it: float16 overflows where bfloat16 and float32 do not. "
                "To go on with such values replaced pass remove_invalid_values=True.",
            )
        raise GenerationError(
            f"Every token is banned as {place}.",
            hint="Loosen what bans them, such as bad_words_ids, suppress_tokens, no_repeat_ngram_size or min_new_tokens.",
        )


@contextmanager
def layer_named(decoding: Decoding, prompt: Prompt) -> Iterator[None]:
    """Add the name of the layer to errors about logits that are NaN or infinite; the model runs once more to find it.

    Raises:
        GenerationError: in place of one of the same kind.
    """
    try:
        yield
    except NonFiniteError as error:
        name = _first_layer(decoding, prompt)
        if name is None:
            raise GenerationError(f"{error.message} The model's own are finite: a logits processor makes it.") from error
        raise GenerationError(f"{error.message} The first layer to give such values is {name}.", hint=error.hint) from error


def _first_layer(decoding: Decoding, prompt: Prompt) -> str | None:
    """The first module, inner ones before those they are in, whose output is not finite."""
    wrong: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            parts = [part for part in pytree.tree_leaves(output) if isinstance(part, Tensor) and part.is_floating_point()]
            if not wrong and not all(bool(part.isfinite().all()) for part in parts):
                wrong.append(name or type(module).__name__)

        return look

    model: Any = decoding.model
    hooks = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        if model.config.is_encoder_decoder and prompt.source is not None:
            model.get_encoder()(prompt.source, prompt.inputs.get("attention_mask"))
        if not wrong:
            decoding.read_again()
    finally:
        for handle in hooks:
            handle.remove()
    return wrong[0] if wrong else None
