"""What tasks that generate text share: settings of generation among the options, and how long answers may be."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from transept.errors import InputTypeError, TranseptError
from transept.generation.config import GenerationConfig
from transept.generation.generate import Generates
from transept.pipelines.base import Options, count
from transept.pipelines.batching import Sample, flat
from transept.pipelines.text import TextPipeline

# New tokens where neither the caller nor the checkpoint says.
DEFAULT_NEW_TOKENS = 256


class GenerationOptions(Options):
    """Options of tasks that generate text; any setting of ``GenerationConfig`` is one too.

    Args:
        return_tensors: answer with ids in place of text.
        clean_up_tokenization_spaces: take out spaces before marks; the tokenizer's own rule when absent.
        seed: where tokens are drawn, each input draws by itself, from generators with this seed and the next ones.
        streamer: gets each prompt and each token, such as a ``TextStreamer``; inputs are then answered one by one.
        generation: settings of ``GenerationConfig`` by name.
    """

    return_tensors: bool = False
    clean_up_tokenization_spaces: bool | None = None
    seed: int | None = count(least=0)
    streamer: Any = None
    generation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streamer is not None and not all(callable(getattr(self.streamer, name, None)) for name in ("put", "end")):
            problem = f"`streamer` must have the methods put and end, but is {type(self.streamer).__name__}."
            raise InputTypeError(problem, hint="Pass a TextStreamer.")


class GenerationPipeline(TextPipeline):
    """A task whose model generates text."""

    generator: Any

    def check_model(self) -> None:
        super().check_model()
        self.need(isinstance(self.model, Generates), "writes text")
        self.generator = self.model

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        made = super().prepare(items, options)
        if options.streamer is not None:
            for index, sample in enumerate(flat(made)):
                sample.group = index
        return made

    def generate(self, batch: dict[str, Any], options: Any) -> list[list[list[int]]]:
        """The ids that follow each row of a batch, one list for each returned sequence."""
        rows, settings, resolved = batch["input_ids"].shape[0], self.settings(options), self.resolved(options)
        if options.seed is not None and resolved.do_sample:
            copies = resolved.num_return_sequences or 1
            settings["seed"] = [options.seed + number for _ in range(rows) for number in range(copies)]
        written = self.generator.generate(**batch, **settings, streamer=options.streamer)
        start = 0 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        return list(written[:, start:].reshape(rows, -1, written.shape[1] - start).tolist())

    def with_options(self, given: Mapping[str, Any]) -> Any:
        config, own = self.generator.generation_config, super().option_names()
        settings = {name: value for name, value in given.items() if name not in own and config.knows(name)}
        rest = {name: value for name, value in given.items() if name not in settings}
        rest["generation"] = {**self.options.generation, **rest.get("generation", {}), **settings}
        return super().with_options(rest)

    def option_names(self) -> list[str]:
        return [*super().option_names(), *(each.name for each in fields(self.generator.generation_config))]

    def resolved(self, options: Any) -> GenerationConfig:
        found: GenerationConfig = copy.deepcopy(self.generator.generation_config)
        found.update(**options.generation)
        return found

    def settings(self, options: Any) -> dict[str, Any]:
        """Settings for ``generate``: a length and a padding id are always among them."""
        config, chosen = self.generator.generation_config, dict(options.generation)
        if not any(chosen.get(name) or getattr(config, name) for name in ("max_new_tokens", "max_length")):
            chosen["max_new_tokens"] = DEFAULT_NEW_TOKENS
        ends = chosen.get("eos_token_id", config.eos_token_id)
        pads = (chosen.get("pad_token_id"), config.pad_token_id, self.tokenizer.pad_token_id, ends, 0)
        pad = next(pad for pad in pads if pad is not None)
        chosen["pad_token_id"] = pad[0] if isinstance(pad, list) else pad
        return chosen | {"return_dict_in_generate": False, "tokenizer": self.tokenizer}

    def text(self, ids: list[int], options: Any) -> str:
        """Ids as text, without special tokens."""
        cleaned = options.clean_up_tokenization_spaces
        more = {} if cleaned is None else {"clean_up_tokenization_spaces": cleaned}
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, **more))
