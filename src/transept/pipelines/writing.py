"""What tasks that write text share: settings of generation among the options, and how long answers may be."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from torch import Tensor

from transept.core.model import Model
from transept.errors import InputError, InputTypeError, nearest
from transept.generation.config import GenerationConfig
from transept.generation.generate import Generates
from transept.pipelines.base import check_count
from transept.pipelines.text import TextPipeline

# New tokens where neither the caller nor the checkpoint says.
DEFAULT_NEW_TOKENS = 256


@dataclass(frozen=True)
class WritingOptions:
    """Options of tasks that write text; any setting of ``GenerationConfig`` is one too.

    Args:
        return_tensors: answer with ids in place of text.
        clean_up_tokenization_spaces: take out spaces before marks; the tokenizer's own rule when absent.
        seed: where tokens are drawn, each input draws by itself, from generators with this seed and the next ones for further
            returned sequences: its answer is that of the input alone.
        generation: settings of ``GenerationConfig`` by name.
    """

    return_tensors: bool = False
    clean_up_tokenization_spaces: bool | None = None
    seed: int | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("seed", self.seed, optional=True, least=0)


O = TypeVar("O", bound=WritingOptions)  # noqa: E741 (the options of a task, a dataclass)


class WritingPipeline(TextPipeline[O]):
    """A task whose model writes; see :class:`transept.pipelines.text.TextPipeline`.

    Raises:
        InputTypeError: the model does not.
    """

    def __init__(self, model: Model, tokenizer: Any, options: O, **batching: Any) -> None:
        super().__init__(model, tokenizer, options, **batching)
        if not isinstance(model, Generates):
            raise InputTypeError(f"the task {self.task!r} needs a model that writes text, and {type(model).__name__} does not.")
        self.writer: Generates = model

    def write(self, batch: dict[str, Any], options: O) -> list[list[list[int]]]:
        """The ids that follow each row of a batch, one list for each returned sequence."""
        rows, settings = batch["input_ids"].shape[0], self.settings(options)
        resolved = self.resolved(options)
        if options.seed is not None and resolved.do_sample:
            copies = resolved.num_return_sequences or 1
            settings["seed"] = [options.seed + number for _ in range(rows) for number in range(copies)]
        written = self.writer.generate(**batch, **settings)
        assert isinstance(written, Tensor)
        start = 0 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        found: list[list[list[int]]] = written[:, start:].reshape(rows, -1, written.shape[1] - start).tolist()
        return found

    def with_options(self, given: Mapping[str, Any]) -> O:
        """The options of one call; settings of generation are told by their names.

        Raises:
            InputError: neither an option nor a setting, with the nearest names.
        """
        config = self.writer.generation_config
        own = [each.name for each in fields(self.options)]
        chosen = {name: value for name, value in given.items() if name in own}
        rest = {name: value for name, value in given.items() if name not in own}
        for name in rest:
            if not config.knows(name):
                known = [*own, *(each.name for each in fields(config))]
                raise InputError(f"the task {self.task!r} has no option {name!r}.", hint=nearest(name, known))
        merged = {**self.options.generation, **chosen.pop("generation", {}), **rest}
        return replace(self.options, **chosen, generation=merged)

    def resolved(self, options: O) -> GenerationConfig:
        """All settings of a call, those of the checkpoint among them."""
        found = copy.deepcopy(self.writer.generation_config)
        found.update(**options.generation)
        return found

    def settings(self, options: O) -> dict[str, Any]:
        """Settings for ``generate``: a length and a padding id are always among them."""
        config, chosen = self.writer.generation_config, dict(options.generation)
        if not any(chosen.get(name) or getattr(config, name) for name in ("max_new_tokens", "max_length")):
            chosen["max_new_tokens"] = DEFAULT_NEW_TOKENS
        ends = chosen.get("eos_token_id", config.eos_token_id)
        pads = (chosen.get("pad_token_id"), config.pad_token_id, self.tokenizer.pad_token_id, ends, 0)
        pad = next(pad for pad in pads if pad is not None)
        chosen["pad_token_id"] = pad[0] if isinstance(pad, list) else pad
        return chosen | {"return_dict_in_generate": False, "tokenizer": self.tokenizer}

    def text(self, ids: list[int], options: O) -> str:
        """Ids as text, without special tokens."""
        cleaned = options.clean_up_tokenization_spaces
        more = {} if cleaned is None else {"clean_up_tokenization_spaces": cleaned}
        found: str = self.tokenizer.decode(ids, skip_special_tokens=True, **more)
        return found
