"""Which part of a model is the first to give numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from transept.errors import GenerationError
from transept.generation.decode import Decoding, Prompt
from transept.generation.processors import NonFiniteError
from transept.outputs import ModelOutput


@contextmanager
def layer_named(decoding: Decoding, prompt: Prompt) -> Iterator[None]:
    """Add the name of the layer to errors about logits that are NaN or infinite; the model runs once more to find it.

    Raises:
        GenerationError: in place of one of the same kind.
    """
    try:
        yield
    except NonFiniteError as error:
        name = _culprit(decoding, prompt)
        if name is None:
            raise GenerationError(f"{error.message} The model's own are finite: a logits processor makes it.") from error
        raise GenerationError(f"{error.message} The first layer to give such values is {name}.", hint=error.hint) from error


def _culprit(decoding: Decoding, prompt: Prompt) -> str | None:
    """The first module, inner ones before those they are in, whose output is not finite."""
    wrong: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            if not wrong and not all(bool(part.isfinite().all()) for part in _tensors(output)):
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


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors of numbers that a module gives."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple | list):
        for part in output:
            yield from _tensors(part)
    elif isinstance(output, ModelOutput):
        yield from _tensors(output.to_tuple())
